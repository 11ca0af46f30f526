//! Reads the trace span of the caller from the headers of W3C Trace Context.

use axum::http::HeaderMap;
use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{SpanContext, TraceContextExt, TraceFlags, TraceState};
use opentelemetry_sdk::propagation::TraceContextPropagator;

const TRACEPARENT_HEADER: &str = "traceparent";
const TRACESTATE_HEADER: &str = "tracestate";

/// Maximum number of bytes of the header `tracestate`. A longer header is ignored. The standard requires support for at
/// least this length.
const MAX_TRACESTATE_BYTES: usize = 512;

/// The relation between the span of a decision and the span of its caller: a child of the caller's span, or only linked
/// to it.
pub struct TraceParent {
    /// The context with the parent of the decision's span. If the context contains no span, the decision starts a new
    /// trace.
    pub(super) context: Context,
    /// The caller's span to which the decision's span is linked, or `None` if there is no link.
    pub(super) link: Option<SpanContext>,
}

/// The trace context headers for the propagator, each with one value. If a name occurs several times, the propagator
/// would read only the first header: but a repeated `traceparent` is ambiguous, and the values of a repeated
/// `tracestate` must be joined.
struct TraceContextHeaders<'h> {
    traceparent: Option<&'h str>,
    tracestate: String,
}

impl TraceParent {
    /// Creates a relation in which the caller's span is the parent. The sampled flag of the caller decides whether the
    /// decision is traced. Malformed headers are ignored, and so is a `traceparent` that occurs twice.
    pub fn trusted(headers: &HeaderMap) -> Self {
        let headers = TraceContextHeaders::new(headers);
        let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &headers);
        Self { context, link: None }
    }

    /// Creates a relation in which the decision starts its own trace, with a link to the caller's span. If an untrusted
    /// caller were the parent, it could control sampling: by its sampled flag, or by a trace id that the sampler
    /// accepts. `tracestate` is omitted, because it is arbitrary text.
    pub fn untrusted(headers: &HeaderMap) -> Self {
        let trusted = Self::trusted(headers).context;
        let caller = trusted.span().span_context().clone();
        let link = caller.is_valid().then(|| {
            let (trace, span) = (caller.trace_id(), caller.span_id());
            SpanContext::new(trace, span, TraceFlags::NOT_SAMPLED, true, TraceState::NONE)
        });
        Self { context: Context::new(), link }
    }
}

impl<'h> TraceContextHeaders<'h> {
    fn new(headers: &'h HeaderMap) -> Self {
        let values = |name| headers.get_all(name).iter().map(|value| value.to_str().unwrap_or(""));
        let mut traceparent = values(TRACEPARENT_HEADER);
        let tracestate = values(TRACESTATE_HEADER).collect::<Vec<_>>().join(",");
        Self {
            traceparent: traceparent.next().filter(|_| traceparent.next().is_none()),
            tracestate: Some(tracestate)
                .filter(|state| state.len() <= MAX_TRACESTATE_BYTES)
                .unwrap_or_default(),
        }
    }
}

impl Extractor for TraceContextHeaders<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            TRACEPARENT_HEADER => self.traceparent,
            TRACESTATE_HEADER => Some(&self.tracestate),
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec![TRACEPARENT_HEADER, TRACESTATE_HEADER]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLER_TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn trace_headers(traceparent: &[&str], tracestate: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in traceparent {
            headers.append(TRACEPARENT_HEADER, value.parse().unwrap());
        }
        for value in tracestate {
            headers.append(TRACESTATE_HEADER, value.parse().unwrap());
        }
        headers
    }

    fn parse_trusted_parent_span(traceparent: &[&str], tracestate: &[&str]) -> Option<SpanContext> {
        let context = TraceParent::trusted(&trace_headers(traceparent, tracestate)).context;
        context.has_active_span().then(|| context.span().span_context().clone())
    }

    #[test]
    fn trusted_trace_headers_set_parent_span() {
        let caller = parse_trusted_parent_span(&[CALLER_TRACEPARENT], &["a=1", "b=2"]).unwrap();
        assert_eq!(caller.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(caller.span_id().to_string(), "b7ad6b7169203331");
        assert!(caller.is_sampled() && caller.is_remote());
        assert_eq!(caller.trace_state().header(), "a=1,b=2");
        assert!(
            !parse_trusted_parent_span(&[&CALLER_TRACEPARENT.replace("-01", "-00")], &[])
                .unwrap()
                .is_sampled()
        );
        let later = CALLER_TRACEPARENT.replace("00-", "01-") + "-more";
        assert_eq!(
            parse_trusted_parent_span(&[&later], &[]).unwrap().trace_id(),
            caller.trace_id()
        );
    }

    #[test]
    fn link_to_untrusted_caller_contains_only_ids() {
        let untrusted =
            |traceparent: &[&str]| TraceParent::untrusted(&trace_headers(traceparent, &["a=1"]));
        let parent = untrusted(&[CALLER_TRACEPARENT]);
        assert!(!parent.context.has_active_span());
        let link = parent.link.unwrap();
        assert_eq!(link.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(link.span_id().to_string(), "b7ad6b7169203331");
        assert_eq!(link.trace_state().header(), "");
        assert!(!link.is_sampled() && link.is_remote());
        assert_eq!(untrusted(&["nonsense"]).link, None);
        assert_eq!(untrusted(&[CALLER_TRACEPARENT, CALLER_TRACEPARENT]).link, None);
    }

    #[test]
    fn malformed_traceparent_is_ignored() {
        let longer = format!("{CALLER_TRACEPARENT}-more");
        for wrong in [
            "",
            "00",
            &CALLER_TRACEPARENT[..52],
            &longer,
            &format!("ff{}", &CALLER_TRACEPARENT[2..]),
            &CALLER_TRACEPARENT.to_uppercase(),
            &CALLER_TRACEPARENT.replace("-01", "-x1"),
            &CALLER_TRACEPARENT.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            &CALLER_TRACEPARENT.replace("b7ad6b7169203331", &"0".repeat(16)),
            &CALLER_TRACEPARENT.replace("0af7", "äa7"),
        ] {
            assert_eq!(parse_trusted_parent_span(&[wrong], &[]), None, "{wrong}");
        }
        assert_eq!(parse_trusted_parent_span(&[], &["a=1"]), None);
        assert_eq!(
            parse_trusted_parent_span(&[CALLER_TRACEPARENT, CALLER_TRACEPARENT], &[]),
            None,
            "two headers are ambiguous"
        );
    }

    #[test]
    fn malformed_or_long_tracestate_is_ignored() {
        let long = format!("a={}", "x".repeat(600));
        for state in ["nonsense", "a=1,b", &long] {
            let caller = parse_trusted_parent_span(&[CALLER_TRACEPARENT], &[state]).unwrap();
            assert_eq!(caller.trace_state().header(), "", "{state}");
        }
    }
}
