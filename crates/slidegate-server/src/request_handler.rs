//! The parts that all decision endpoints of a listener share: the service, rendering, metrics and tracing.
//!
//! For each request, an endpoint begins a [`RequestScope`], and decides and renders the response within this scope.

use std::pin::Pin;
use std::sync::Arc;

use axum::http::HeaderMap;
use quanta::Instant;
use slidegate::{Request, Ruling};

use crate::rendering::ResponseRenderer;
use crate::service::{ActivePolicy, Service};
use crate::telemetry::metrics::{ListenerKind, ListenerMetrics};
use crate::telemetry::request_result::ClassifyResponse;
use crate::telemetry::traces::TraceParent;
use crate::telemetry::traces::span::DecisionSpan;

const TRACEPARENT_HEADER: &str = "traceparent";

/// The service, renderer and metrics of one listener.
pub struct RequestHandler {
    service: Arc<Service>,
    renderer: ResponseRenderer,
    metrics: Option<ListenerMetrics>,
}

/// The trace context of a request, read from the trace headers of its caller. It determines the parent of the request's
/// span. `None` if tracing is disabled.
pub struct TraceContext(Option<TraceParent>);

/// A request in progress, with its trace span, and with a timer if metrics are collected.
pub struct RequestScope<'d> {
    handler: &'d RequestHandler,
    span: DecisionSpan,
    _timer: Option<LatencyTimer<'d>>,
}

/// A timer that records the elapsed time in the metrics when the timer is dropped.
struct LatencyTimer<'d>(&'d ListenerMetrics, Instant);

impl RequestHandler {
    /// Creates the handler of the requests to one listener.
    pub fn new(service: Arc<Service>, renderer: ResponseRenderer, kind: ListenerKind) -> Self {
        let metrics = service.telemetry().metrics().map(|metrics| metrics.listener(kind));
        Self { service, renderer, metrics }
    }

    /// Returns the policy that is active now. A reload replaces it with another one.
    pub fn active_policy(&self) -> Arc<ActivePolicy> {
        self.service.active_policy()
    }

    /// Returns the renderer of responses.
    pub fn renderer(&self) -> &ResponseRenderer {
        &self.renderer
    }

    /// Returns the metrics of the listener, or `None` if metrics are not collected.
    pub fn metrics(&self) -> Option<&ListenerMetrics> {
        self.metrics.as_ref()
    }

    /// Returns the trace context in the request headers of a caller. The caller is trusted: its sampled flag decides
    /// whether the request is traced.
    pub fn trace_context(&self, headers: &HeaderMap) -> TraceContext {
        let is_tracing = self.service.telemetry().tracer().is_some();
        TraceContext(is_tracing.then(|| parse_trusted_trace_parent(headers)))
    }

    /// Returns the trace context in the headers of a request that a proxy forwards. The end client may have written
    /// these headers, so they determine sampling only with `--trust-traceparent`.
    pub fn forwarded_trace_context(&self, headers: &HeaderMap) -> TraceContext {
        let tracer = self.service.telemetry().tracer();
        TraceContext(tracer.map(|tracer| match tracer.trusts_forwarded() {
            true => parse_trusted_trace_parent(headers),
            false => {
                TraceParent::untrusted(read_header_values_as_text(headers, TRACEPARENT_HEADER))
            }
        }))
    }

    /// Starts the timer and the trace span of a request. Must be called after the whole request has arrived, so that a
    /// slow client does not count as latency. `name` is the name of the span.
    pub fn begin(&self, name: &'static str, trace: TraceContext) -> RequestScope<'_> {
        RequestScope {
            handler: self,
            span: DecisionSpan::begin(self.service.telemetry().tracer(), name, trace.0),
            _timer: self.metrics.as_ref().map(|metrics| LatencyTimer(metrics, Instant::now())),
        }
    }
}

impl RequestScope<'_> {
    /// Decides about a request, and charges its cost if every limit allows the request.
    pub async fn check(&self, domain: &str, request: &Request<'_>) -> Ruling {
        self.record_ruling_in_span(domain, self.handler.service.check(request).await)
    }

    /// Decides like [`check`](Self::check), with a policy that the caller has already loaded.
    pub async fn check_with_policy(
        &self,
        policy: &ActivePolicy,
        domain: &str,
        request: &Request<'_>,
    ) -> Ruling {
        self.record_ruling_in_span(
            domain,
            self.handler.service.check_with_policy(policy, request).await,
        )
    }

    /// Returns the decision that [`check`](Self::check) would return. Charges nothing.
    pub async fn peek(&self, domain: &str, request: &Request<'_>) -> Ruling {
        self.record_ruling_in_span(domain, self.handler.service.peek(request).await)
    }

    /// Records units that have been consumed. Never denies.
    pub async fn report(&self, domain: &str, request: &Request<'_>) -> Ruling {
        self.record_ruling_in_span(domain, self.handler.service.report(request).await)
    }

    fn record_ruling_in_span(&self, domain: &str, ruling: Ruling) -> Ruling {
        self.span.record_ruling(domain, &ruling);
        ruling
    }

    /// Runs `work` within the trace span, and ends the span with the response. The caller pins `work`, because a future
    /// that is passed by value would be stored twice: by the caller and by this function.
    pub async fn run<R: ClassifyResponse>(&self, work: Pin<&mut impl Future<Output = R>>) -> R {
        let response = self.span.run_within(work).await;
        self.span.finish(&response);
        response
    }
}

impl Drop for LatencyTimer<'_> {
    fn drop(&mut self) {
        self.0.observe_duration(self.1.elapsed());
    }
}

fn parse_trusted_trace_parent(headers: &HeaderMap) -> TraceParent {
    TraceParent::trusted(
        read_header_values_as_text(headers, TRACEPARENT_HEADER),
        read_header_values_as_text(headers, "tracestate"),
    )
}

fn read_header_values_as_text<'h>(
    headers: &'h HeaderMap,
    name: &str,
) -> impl Iterator<Item = &'h str> {
    headers.get_all(name).into_iter().map(|value| value.to_str().unwrap_or_default())
}
