//! The two spans of a decision: its own, and below it that of the store.

use std::future::{Future, poll_fn};
use std::pin::Pin;

use opentelemetry::trace::{Span as _, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, Span};
use slidegate::{Ruling, StoreError};

use super::{DecisionTracer, TraceParent};
use crate::request_handler::ClassifyResponse;
use crate::telemetry::metrics::RequestResult;

/// The span of a decision; nothing, if it is not traced.
pub struct DecisionSpan(Option<Context>);

/// The span of what a store is asked; nothing, if the decision is not traced.
pub struct StoreSpan(Option<Span>);

impl DecisionSpan {
    /// Begins one, if there are traces and this is sampled.
    pub fn begin(
        tracer: Option<&DecisionTracer>,
        name: &'static str,
        parent: Option<TraceParent>,
    ) -> Self {
        Self(tracer.zip(parent).and_then(|(tracer, parent)| tracer.begin(name, parent)))
    }

    /// Does this within the span: what the store is asked meanwhile stands below it.
    pub async fn run_within<T>(&self, mut work: Pin<&mut impl Future<Output = T>>) -> T {
        poll_fn(|context| {
            let _within = self.0.clone().map(Context::attach);
            work.as_mut().poll(context)
        })
        .await
    }

    /// Tells what was decided.
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

    /// Tells how it was answered, and ends the span.
    pub fn finish(&self, response: &impl ClassifyResponse) {
        let Some(context) = &self.0 else { return };
        let (span, finish) = (context.span(), response.result());
        span.set_attribute(KeyValue::new("slidegate.outcome", finish.name()));
        span.set_attribute(response.status_attribute());
        if matches!(finish, RequestResult::StoreUnavailable | RequestResult::Error) {
            span.set_status(Status::error(finish.name()));
        }
        span.end();
    }
}

impl StoreSpan {
    pub(super) fn begin(tracer: &SdkTracer, kind: &'static str) -> Self {
        Self(Context::map_current(|decision| {
            decision.span().is_recording().then(|| {
                let builder = tracer.span_builder("slidegate.store").with_kind(SpanKind::Client);
                let mut span = tracer.build_with_context(builder, decision);
                span.set_attribute(KeyValue::new("slidegate.store", kind));
                span
            })
        }))
    }

    /// Tells how the store answered, and ends the span.
    pub fn finish(self, error: Option<&StoreError>) {
        let Some(mut span) = self.0 else { return };
        if let Some(error) = error {
            span.set_status(Status::error(error.to_string()));
        }
        span.end();
    }
}
