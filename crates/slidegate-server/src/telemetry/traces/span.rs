//! The trace spans of a decision: one for the decision itself, and a child for its call to the store.

use std::future::{Future, poll_fn};
use std::pin::Pin;

use opentelemetry::trace::{Span as _, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, Span};
use slidegate::{Ruling, StoreError};

use super::{DecisionTracer, TraceParent};
use crate::request_handler::ClassifyResponse;
use crate::telemetry::metrics::RequestResult;

/// The trace span of a decision. Empty if the decision is not traced.
pub struct DecisionSpan(Option<Context>);

/// The trace span of a call to the store. Empty if the decision is not traced.
pub struct StoreSpan(Option<Span>);

impl DecisionSpan {
    /// Begins the span of a decision. The span is empty if tracing is disabled or the decision is not sampled.
    pub fn begin(
        tracer: Option<&DecisionTracer>,
        name: &'static str,
        parent: Option<TraceParent>,
    ) -> Self {
        Self(
            tracer
                .zip(parent)
                .and_then(|(tracer, parent)| tracer.begin_decision_span(name, parent)),
        )
    }

    /// Runs `work` with this span as the current span, so that the spans of store calls become its children.
    pub async fn run_within<T>(&self, mut work: Pin<&mut impl Future<Output = T>>) -> T {
        poll_fn(|context| {
            let _within = self.0.clone().map(Context::attach);
            work.as_mut().poll(context)
        })
        .await
    }

    /// Records the decision as attributes of the span.
    pub fn record_ruling(&self, domain: &str, ruling: &Ruling) {
        let Some(context) = &self.0 else { return };
        let span = context.span();
        let decision = ruling.decision();
        span.set_attribute(KeyValue::new("slidegate.domain", domain.to_owned()));
        span.set_attribute(KeyValue::new("slidegate.degraded", decision.is_degraded()));
        if let Some(binding) = ruling.binding() {
            let remaining = i64::try_from(decision.remaining()).unwrap_or(i64::MAX);
            span.set_attribute(KeyValue::new("slidegate.rule", binding.rule.name().to_owned()));
            span.set_attribute(KeyValue::new("slidegate.limit", binding.limit.id().to_owned()));
            span.set_attribute(KeyValue::new("slidegate.remaining", remaining));
        }
    }

    /// Records the result of the request as attributes of the span, and ends the span.
    pub fn finish(&self, response: &impl ClassifyResponse) {
        let Some(context) = &self.0 else { return };
        let (span, result) = (context.span(), response.request_result());
        span.set_attribute(KeyValue::new("slidegate.outcome", result.name()));
        span.set_attribute(response.status_span_attribute());
        if matches!(result, RequestResult::StoreUnavailable | RequestResult::Error) {
            span.set_status(Status::error(result.name()));
        }
        span.end();
    }
}

impl StoreSpan {
    pub(super) fn begin_as_child_of_decision(tracer: &SdkTracer, kind: &'static str) -> Self {
        Self(Context::map_current(|decision| {
            decision.span().is_recording().then(|| {
                let builder = tracer.span_builder("slidegate.store").with_kind(SpanKind::Client);
                let mut span = tracer.build_with_context(builder, decision);
                span.set_attribute(KeyValue::new("slidegate.store", kind));
                span
            })
        }))
    }

    /// Records the error of the store call if it failed, and ends the span.
    pub fn finish(self, error: Option<&StoreError>) {
        let Some(mut span) = self.0 else { return };
        if let Some(error) = error {
            span.set_status(Status::error(error.to_string()));
        }
        span.end();
    }
}
