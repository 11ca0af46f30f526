//! Records the requests of a listener and the calls to the store: durations and results in the metrics, trace spans,
//! and failed calls to the store in the log, at a limited rate.
//!
//! The circuit breaker logs an outage. Without the log of failures, calls that fail while most calls succeed would
//! change decisions without a line in the log: because they take longer than the timeout, or because of the value of
//! one key.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use quanta::Instant;
use slidegate::StoreError;
use slidegate::clock::{Clock, SystemClock};
use tracing::warn;

use super::metrics::{ListenerKind, ListenerMetrics, StoreMetrics};
use super::results::{ClassifyResponse, RequestResult};
use super::traces::{DecisionSpan, StoreTracer};
use super::{DecisionTracer, LogThrottle, Redactor, Telemetry};

/// The metrics and the tracer of one listener.
pub struct RequestRecorder {
    metrics: Option<ListenerMetrics>,
    tracer: Option<Arc<DecisionTracer>>,
}

/// The headers that contain the trace context of a request. It determines the parent of the request's span.
#[derive(Clone, Copy)]
pub enum TraceHeaders<'h> {
    /// The headers of a caller. The caller is trusted: its sampled flag decides whether the request is traced.
    Direct(&'h HeaderMap),
    /// The headers of a request that a proxy forwards. The end client may have written these headers, so they determine
    /// sampling only with `--trust-traceparent`.
    Forwarded(&'h HeaderMap),
}

impl RequestRecorder {
    /// Creates the recorder of a listener.
    pub fn new(telemetry: &Telemetry, kind: ListenerKind) -> Self {
        let metrics = telemetry.metrics().map(|metrics| metrics.listener_metrics(kind));
        Self { metrics, tracer: telemetry.tracer().cloned() }
    }

    /// Runs `work`, which responds to a request, within the trace span of the request. Records the duration, the result
    /// and the span. A cancelled request has no response, and no duration. Must be called after the whole request has
    /// arrived, so that a slow client does not count as latency.
    ///
    /// The caller pins `work`, because a future that is passed by value would be stored twice.
    pub async fn record<R: ClassifyResponse>(
        &self,
        span_name: &'static str,
        headers: TraceHeaders<'_>,
        work: Pin<&mut impl Future<Output = R>>,
    ) -> R {
        let timed = self.metrics.as_ref().map(|metrics| (metrics, Instant::now()));
        let span = self.tracer.as_deref().and_then(|tracer| headers.begin_span(tracer, span_name));
        let response = match &span {
            Some(span) => span.run(work).await,
            None => work.await,
        };
        if let Some((metrics, started)) = timed {
            let time = started.elapsed().saturating_sub(response.wait_time());
            metrics.record_request(time, response.request_result());
        }
        if let Some(span) = span {
            span.finish(response.request_result(), response.span_status_attribute());
        }
        response
    }

    /// Counts a request that the listener rejected before it called [`record`](Self::record).
    pub fn count_rejected(&self, result: RequestResult) {
        if let Some(metrics) = &self.metrics {
            metrics.count_result(result);
        }
    }
}

impl TraceHeaders<'_> {
    fn begin_span(self, tracer: &DecisionTracer, name: &'static str) -> Option<DecisionSpan> {
        let (headers, is_trusted) = match self {
            Self::Direct(headers) => (headers, true),
            Self::Forwarded(headers) => (headers, tracer.trusts_forwarded_traceparent()),
        };
        tracer.begin_decision_span(name, headers, is_trusted)
    }
}

/// The metrics, the tracer and the log of the calls to a store.
pub struct StoreRecorder {
    metrics: Option<StoreMetrics>,
    tracer: Option<StoreTracer>,
    failure_log: StoreFailureLog,
}

impl StoreRecorder {
    /// Creates a recorder. Records no metrics if `metrics` is `None`, and no traces if `tracer` is `None`. `redactor`
    /// decides which values of keys are hashed in the log.
    pub fn new(
        metrics: Option<StoreMetrics>,
        tracer: Option<StoreTracer>,
        redactor: Redactor,
    ) -> Self {
        Self { metrics, tracer, failure_log: StoreFailureLog::new(redactor) }
    }

    /// Runs a call, and records it.
    pub async fn record<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.record_if_store_called(call, |_| true).await
    }

    /// Runs an operation that may call the store, and records it. If `is_call` returns `false` for the result, the
    /// store was not called, and only the trace has a record.
    pub async fn record_if_store_called<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
        is_call: impl FnOnce(&T) -> bool,
    ) -> Result<T, StoreError> {
        let span = self.tracer.as_ref().map(StoreTracer::begin);
        let timed = self.metrics.as_ref().map(|metrics| (metrics, Instant::now()));
        let result = call.await;
        let error = result.as_ref().err();
        if let Some(error) = error {
            self.failure_log.log(error);
        }
        if let Some((metrics, started)) = timed
            && result.as_ref().map_or(true, is_call)
        {
            metrics.record_call(started.elapsed(), error);
        }
        if let Some(span) = span {
            span.finish(error);
        }
        result
    }
}

/// A log of failed calls to the store, with at most one message per minute and class of failure.
struct StoreFailureLog {
    throttles: Vec<(&'static str, LogThrottle)>,
    redactor: Redactor,
    clock: SystemClock,
}

impl StoreFailureLog {
    /// Creates a log that has not logged a message yet.
    fn new(redactor: Redactor) -> Self {
        let throttle = |class| (class, LogThrottle::new(1, Duration::from_secs(60)));
        let throttles =
            StoreError::classes_with_remedies().map(|(class, _)| throttle(class)).collect();
        Self { throttles, redactor, clock: SystemClock::new() }
    }

    /// Logs a failed call, unless a failure of this class has been logged in the current minute. The field `unlogged`
    /// is the number of such calls since the last message. Rejections by the open breaker are not logged, because the
    /// breaker logs its own state.
    fn log(&self, error: &StoreError) {
        let class = error.class();
        if matches!(error, StoreError::BreakerOpen | StoreError::Unsupported(_)) {
            return;
        }
        let throttle = self.throttles.iter().find(|(other, _)| *other == class);
        let Some(unlogged) =
            throttle.and_then(|(_, throttle)| throttle.try_acquire(self.clock.now()))
        else {
            return;
        };
        // Only an error about a key with a value of another program contains values of clients, so its keys are
        // redacted.
        let key =
            error.keys_with_foreign_values().map(|keys| self.redactor.redact_store_keys(keys));
        let message = match error {
            StoreError::Rejected { message, .. } => message.clone(),
            _ => error.to_string(),
        };
        warn!(
            class,
            key,
            error = key.is_none().then_some(message),
            remedy = error.remedy(),
            unlogged,
            "a call to the store failed, so on_store_error decides its requests"
        );
    }
}
