//! Takes the place of `traces` in a program without the feature `otlp`: tracing cannot start, so no value of these
//! types exists.

use std::pin::Pin;
use std::time::Duration;

use axum::http::HeaderMap;
use slidegate::{Decision, StoreError};
use thiserror::Error;

use super::results::RequestResult;
use super::trace_settings::TraceSettings;

/// The error of starting a tracer, which always fails in this program.
#[derive(Debug, Error)]
#[error(
    "--otlp-endpoint: this program was compiled without traces; install a package of slidegate, or compile it with \
     `--features otlp`"
)]
pub struct TracerError;

/// A tracer of decisions. No value of it exists, because this program has no tracing.
pub enum DecisionTracer {}

/// The trace span of a request. No value of it exists, because this program has no tracing.
pub enum DecisionSpan {}

/// A tracer of calls to the store. No value of it exists, because this program has no tracing.
pub enum StoreTracer {}

/// The trace span of a call to the store. No value of it exists, because this program has no tracing.
pub enum StoreSpan {}

impl DecisionTracer {
    /// Returns an error, because this program has no tracing.
    pub fn start(_: TraceSettings) -> Result<Self, TracerError> {
        Err(TracerError)
    }

    pub fn trusts_forwarded_traceparent(&self) -> bool {
        match *self {}
    }

    pub fn begin_decision_span(
        &self,
        _: &'static str,
        _: &HeaderMap,
        _: bool,
    ) -> Option<DecisionSpan> {
        match *self {}
    }

    pub fn store_tracer(&self, _: &'static str) -> StoreTracer {
        match *self {}
    }

    pub async fn flush(&self, _: Duration) {
        match *self {}
    }
}

impl DecisionSpan {
    pub async fn run<R>(&self, _: Pin<&mut impl Future<Output = R>>) -> R {
        match *self {}
    }

    pub fn finish(self, _: RequestResult, _: (&'static str, i64)) {
        match self {}
    }
}

impl StoreTracer {
    pub fn begin(&self) -> StoreSpan {
        match *self {}
    }
}

impl StoreSpan {
    pub fn finish(self, _: Option<&StoreError>) {
        match self {}
    }
}

/// Does nothing, because no request is traced.
pub fn record_decision_in_current_span(_: &str, _: &Decision<'_>) {}
