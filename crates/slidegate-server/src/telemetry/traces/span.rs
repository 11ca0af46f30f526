//! The trace span of a decision.

use std::future::{Future, poll_fn};
use std::pin::Pin;

use opentelemetry::trace::{Status, TraceContextExt};
use opentelemetry::{Context, KeyValue};
use slidegate::Decision;

use super::{DecisionTracer, TraceParent};
use crate::telemetry::request_result::{ClassifyResponse, RequestResult};

/// The trace span of a decision. Empty if the decision is not traced.
struct DecisionSpan(Option<Context>);

/// A decision to record in a span: the domain of the request, and the decision.
pub struct TracedDecision {
    pub domain: String,
    pub decision: Decision<'static>,
}

/// Runs `work` within the span of a decision. Records the decision and the response of `work` in the span, and returns
/// the response. The span is empty if tracing is disabled or the decision is not sampled.
///
/// The caller pins `work`, because a future that is passed by value would be stored twice: by the caller and by this
/// function.
pub async fn trace_decision<R: ClassifyResponse>(
    tracer: Option<&DecisionTracer>,
    name: &'static str,
    parent: Option<TraceParent>,
    work: Pin<&mut impl Future<Output = (R, Option<TracedDecision>)>>,
) -> R {
    let span = DecisionSpan::begin(tracer, name, parent);
    let (response, decision) = span.run_within(work).await;
    if let Some(TracedDecision { domain, decision }) = decision {
        span.record_decision(domain, &decision);
    }
    span.finish(&response);
    response
}

impl DecisionSpan {
    /// Begins the span of a decision. The span is empty if tracing is disabled or the decision is not sampled.
    fn begin(
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
    async fn run_within<T>(&self, mut work: Pin<&mut impl Future<Output = T>>) -> T {
        poll_fn(|context| {
            let _within = self.0.clone().map(Context::attach);
            work.as_mut().poll(context)
        })
        .await
    }

    /// Records the decision as attributes of the span.
    fn record_decision(&self, domain: String, decision: &Decision<'_>) {
        let Some(context) = &self.0 else { return };
        let span = context.span();
        span.set_attribute(KeyValue::new("slidegate.domain", domain));
        span.set_attribute(KeyValue::new("slidegate.degraded", decision.is_degraded()));
        if let Some(binding) = decision.binding() {
            let remaining = i64::try_from(decision.remaining()).unwrap_or(i64::MAX);
            span.set_attribute(KeyValue::new("slidegate.rule", binding.rule_name().to_owned()));
            span.set_attribute(KeyValue::new("slidegate.limit", binding.id().to_owned()));
            span.set_attribute(KeyValue::new("slidegate.remaining", remaining));
        }
    }

    /// Records the result of the request as attributes of the span, and ends the span.
    fn finish(&self, response: &impl ClassifyResponse) {
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
