//! Records calls to the store: durations and errors in the metrics, trace spans, and failures in the log, at a limited
//! rate.
//!
//! The circuit breaker logs an outage. Without the log of failures, calls that fail while most calls succeed would change
//! decisions without a line in the log: because they take longer than the timeout, or because of the value of one key.

use std::time::Duration;

use quanta::Instant;
use slidegate::{Clock, StoreError, SystemClock};
use tracing::warn;

use super::log_throttle::LogThrottle;
use super::metrics::StoreMetrics;
use super::redact::Redactor;
use super::traces::StoreTracer;

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
        let span = self.tracer.as_ref().map(StoreTracer::begin);
        let timed = self.metrics.as_ref().map(|metrics| (metrics, Instant::now()));
        let result = call.await;
        let error = result.as_ref().err();
        if let Some(error) = error {
            self.failure_log.log(error);
        }
        if let Some((metrics, started)) = timed {
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
        let throttles = StoreError::classes().map(|(class, _)| throttle(class)).collect();
        Self { throttles, redactor, clock: SystemClock::new() }
    }

    /// Logs a failed call, unless a failure of this class has been logged in the current minute. The field `unlogged` is
    /// the number of such calls since the last message. Rejections by the open breaker are not logged, because the
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
        // Only the message about the value of a key has values of clients.
        let key = error.foreign_keys().map(|keys| self.redactor.redact_store_keys(keys));
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
