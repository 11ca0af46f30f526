//! Reads the trace span of the caller from the headers of W3C Trace Context.

use std::str::FromStr;

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};

/// Maximum number of bytes of the header `tracestate`. A longer header is ignored. The standard requires support for at
/// least this length.
const MAX_TRACESTATE_BYTES: usize = 512;

/// The relation between the span of a decision and the span of its caller: a child of the caller's span, or only linked
/// to it.
pub struct TraceParent {
    /// The context with the parent of the decision's span. If the context contains no span, the decision starts a new
    /// trace.
    pub(super) context: Context,
    /// The trace id and span id of the caller, if the decision's span is only linked to the caller's span.
    link: Option<(TraceId, SpanId)>,
}

impl TraceParent {
    /// Creates a relation in which the caller's span is the parent. The sampled flag of the caller decides whether the
    /// decision is traced. Malformed headers are ignored, and so is a `traceparent` that occurs twice.
    pub fn trusted<'h>(
        traceparent: impl Iterator<Item = &'h str>,
        tracestate: impl Iterator<Item = &'h str>,
    ) -> Self {
        let context = Context::new();
        let context = match parse_traceparent_header(traceparent) {
            Some((trace, span, flags)) => {
                let state = join_tracestate_headers(tracestate);
                context.with_remote_span_context(SpanContext::new(trace, span, flags, true, state))
            }
            None => context,
        };
        Self { context, link: None }
    }

    /// Creates a relation in which the decision starts its own trace, with a link to the caller's span. If an untrusted
    /// caller were the parent, it could control sampling: by its sampled flag, or by a trace id that the sampler
    /// accepts. `tracestate` is omitted, because it is arbitrary text.
    pub fn untrusted<'h>(traceparent: impl Iterator<Item = &'h str>) -> Self {
        let link = parse_traceparent_header(traceparent).map(|(trace, span, _)| (trace, span));
        Self { context: Context::new(), link }
    }

    /// Returns the caller's span to which the decision's span is linked, or `None` if there is no link.
    pub(super) fn link_to_caller(&self) -> Option<SpanContext> {
        let (trace, span) = self.link?;
        Some(SpanContext::new(trace, span, TraceFlags::NOT_SAMPLED, true, TraceState::NONE))
    }
}

/// Parses the header `traceparent`: `00-<32 digits>-<16 digits>-<2 digits>`. Later versions may append further fields.
/// Returns `None` if the header is missing, malformed, or occurs twice.
fn parse_traceparent_header<'h>(
    mut traceparent: impl Iterator<Item = &'h str>,
) -> Option<(TraceId, SpanId, TraceFlags)> {
    let (Some(text), None) = (traceparent.next(), traceparent.next()) else { return None };
    let mut fields = text.trim_matches([' ', '\t']).splitn(5, '-');
    let [version, trace, span, flags] = [2, 32, 16, 2].map(|digits| {
        let field = fields.next()?;
        let hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        (field.len() == digits && field.bytes().all(hex)).then_some(field)
    });
    let version = version?;
    if version == "ff" || (version == "00" && fields.next().is_some()) {
        return None;
    }
    let trace = TraceId::from_hex(trace?).ok().filter(|id| *id != TraceId::INVALID)?;
    let span = SpanId::from_hex(span?).ok().filter(|id| *id != SpanId::INVALID)?;
    let flags = u8::from_str_radix(flags?, 16).ok()?;
    Some((trace, span, TraceFlags::new(flags) & TraceFlags::SAMPLED))
}

/// Joins all `tracestate` headers. Returns an empty state if they are malformed or too long.
fn join_tracestate_headers<'h>(headers: impl Iterator<Item = &'h str>) -> TraceState {
    let mut joined = String::new();
    for header in headers {
        if joined.len() + header.len() >= MAX_TRACESTATE_BYTES {
            return TraceState::default();
        }
        if !joined.is_empty() {
            joined.push(',');
        }
        joined.push_str(header);
    }
    TraceState::from_str(&joined).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::iter::{empty, once};

    use super::*;

    const CALLER_TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn parse_trusted_parent_span(traceparent: &[&str], tracestate: &[&str]) -> Option<SpanContext> {
        let parent = TraceParent::trusted(traceparent.iter().copied(), tracestate.iter().copied());
        let context = parent.context;
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
        let untrusted = TraceParent::untrusted(once(CALLER_TRACEPARENT));
        assert!(!untrusted.context.has_active_span());
        let link = untrusted.link_to_caller().unwrap();
        assert_eq!(link.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(link.span_id().to_string(), "b7ad6b7169203331");
        assert!(!link.is_sampled() && link.is_remote());
        assert_eq!(TraceParent::untrusted(once("nonsense")).link, None);
        assert_eq!(
            TraceParent::untrusted([CALLER_TRACEPARENT, CALLER_TRACEPARENT].into_iter()).link,
            None
        );
    }

    #[test]
    fn malformed_traceparent_is_ignored() {
        let longer = format!("{CALLER_TRACEPARENT}-more");
        for wrong in [
            "",
            "00",
            &CALLER_TRACEPARENT[..54],
            &format!("{CALLER_TRACEPARENT}-"),
            &longer,
            &format!("ff{}", &CALLER_TRACEPARENT[2..]),
            &CALLER_TRACEPARENT.to_uppercase(),
            &CALLER_TRACEPARENT.replace("-01", "-+1"),
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
            let caller = TraceParent::trusted(once(CALLER_TRACEPARENT), once(state)).context;
            assert_eq!(caller.span().span_context().trace_state().header(), "", "{state}");
        }
        assert!(TraceParent::trusted(once(CALLER_TRACEPARENT), empty()).context.has_active_span());
    }
}
