//! Records the requests of one listener: durations and results in the metrics, and trace spans.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use opentelemetry::trace::{FutureExt, Status, TraceContextExt};
use opentelemetry::{Context, KeyValue};
use quanta::Instant;

use super::metrics::{ListenerKind, ListenerMetrics};
use super::results::{ClassifyResponse, RequestResult};
use super::traces::TraceParent;
use super::{DecisionTracer, Telemetry};

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

/// A timer that records the elapsed time and the result of a request in the metrics when the timer is dropped.
struct RequestTimer<'d> {
    metrics: &'d ListenerMetrics,
    started: Instant,
    /// The time for which the request waited for capacity, which is not a part of the elapsed time.
    waited: Duration,
    /// The result of the request. `None` until the response is complete.
    result: Option<RequestResult>,
}

impl RequestRecorder {
    /// Creates the recorder of a listener.
    pub fn new(telemetry: &Telemetry, kind: ListenerKind) -> Self {
        let metrics = telemetry.metrics().map(|metrics| metrics.listener(kind));
        Self { metrics, tracer: telemetry.tracer().cloned() }
    }

    /// Runs `work`, which responds to a request, within the trace span of the request. Records the duration, the result
    /// and the span. Must be called after the whole request has arrived, so that a slow client does not count as latency.
    ///
    /// The caller pins `work`, because a future that is passed by value would be stored twice.
    pub async fn record<R: ClassifyResponse>(
        &self,
        span_name: &'static str,
        headers: TraceHeaders<'_>,
        work: Pin<&mut impl Future<Output = R>>,
    ) -> R {
        let mut timer = self.metrics.as_ref().map(RequestTimer::start);
        let span = self.tracer.as_deref().and_then(|tracer| {
            let parent = headers.trace_parent(tracer);
            tracer.begin_decision_span(span_name, parent)
        });
        let response = match &span {
            Some(span) => work.with_context(span.clone()).await,
            None => work.await,
        };
        if let Some(timer) = &mut timer {
            timer.waited = response.waited();
            timer.result = Some(response.request_result());
        }
        if let Some(span) = &span {
            end_span(span, &response);
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

/// Records the result of a request as attributes of its span, and ends the span.
fn end_span(context: &Context, response: &impl ClassifyResponse) {
    let (span, result) = (context.span(), response.request_result());
    span.set_attribute(KeyValue::new("slidegate.outcome", result.name()));
    span.set_attribute(response.status_span_attribute());
    if matches!(result, RequestResult::StoreUnavailable | RequestResult::Error) {
        span.set_status(Status::error(result.name()));
    }
    span.end();
}

impl TraceHeaders<'_> {
    fn trace_parent(self, tracer: &DecisionTracer) -> TraceParent {
        match self {
            Self::Direct(headers) => TraceParent::trusted(headers),
            Self::Forwarded(headers) if tracer.trusts_forwarded() => TraceParent::trusted(headers),
            Self::Forwarded(headers) => TraceParent::untrusted(headers),
        }
    }
}

impl<'d> RequestTimer<'d> {
    fn start(metrics: &'d ListenerMetrics) -> Self {
        Self { metrics, started: Instant::now(), waited: Duration::ZERO, result: None }
    }
}

impl Drop for RequestTimer<'_> {
    fn drop(&mut self) {
        let elapsed = self.started.elapsed().saturating_sub(self.waited);
        self.metrics.record_request(elapsed, self.result);
    }
}
