//! What the faces that decide share: who decides, how that is told, and who watches it.

use std::pin::Pin;
use std::sync::Arc;

use axum::http::HeaderMap;
use opentelemetry::KeyValue;
use quanta::Instant;
use slidegate::{Request, Ruling};

use crate::http::ResponseRenderer;
use crate::service::{ActivePolicy, Service};
use crate::watch::metrics::{ListenerKind, ListenerMetrics, RequestResult};
use crate::watch::traces::{DecisionSpan, TraceParent};

const TRACEPARENT: &str = "traceparent";

/// What the paths of a face share that decide.
pub struct RequestHandler {
    service: Arc<Service>,
    renderer: ResponseRenderer,
    metrics: Option<ListenerMetrics>,
}

/// Where the caller is in a trace; not looked for if there are no traces.
pub struct TraceContext(Option<TraceParent>);

/// A question that is being answered: timed, and traced if that is so.
pub struct RequestScope<'d> {
    handler: &'d RequestHandler,
    span: DecisionSpan,
    _timer: Option<Timer<'d>>,
}

/// Counts the time until it is dropped.
struct Timer<'d>(&'d ListenerMetrics, Instant);

/// An answer, as those see it who watch.
pub trait ClassifyResponse {
    /// How the question was answered.
    fn result(&self) -> RequestResult;

    /// The code that says so to the caller, by its name in a span.
    fn status_attribute(&self) -> KeyValue;
}

impl RequestHandler {
    /// Of one face.
    pub fn new(service: Arc<Service>, renderer: ResponseRenderer, kind: ListenerKind) -> Self {
        let metrics = service.watch().metrics().map(|metrics| metrics.listener(kind));
        Self { service, renderer, metrics }
    }

    /// Returns the policy that decides now.
    pub fn active_policy(&self) -> Arc<ActivePolicy> {
        self.service.active_policy()
    }

    /// How rulings are told.
    pub fn renderer(&self) -> &ResponseRenderer {
        &self.renderer
    }

    /// Where answers are counted, if anywhere.
    pub fn metrics(&self) -> Option<&ListenerMetrics> {
        self.metrics.as_ref()
    }

    /// Where the caller is, by its headers.
    pub fn trace_context(&self, headers: &HeaderMap) -> TraceContext {
        let is_tracing = self.service.watch().traces().is_some();
        TraceContext(is_tracing.then(|| trusted_parent(headers)))
    }

    /// Returns the trace context of a forwarded request. The end client may have written its headers, so they decide
    /// sampling only with `--trust-traceparent`.
    pub fn forwarded_trace_context(&self, headers: &HeaderMap) -> TraceContext {
        let traces = self.service.watch().traces();
        TraceContext(traces.map(|traces| match traces.trusts_forwarded() {
            true => trusted_parent(headers),
            false => TraceParent::untrusted(header_values(headers, TRACEPARENT)),
        }))
    }

    /// Begins when the whole question is there: what a client takes to send it is not ours. `name` is that
    /// of the span.
    pub fn begin(&self, name: &'static str, trace: TraceContext) -> RequestScope<'_> {
        RequestScope {
            handler: self,
            span: DecisionSpan::begin(self.service.watch().traces(), name, trace.0),
            _timer: self.metrics.as_ref().map(|metrics| Timer(metrics, Instant::now())),
        }
    }
}

impl RequestScope<'_> {
    /// Takes what the request costs if every limit has room for it.
    pub async fn check(&self, domain: &str, request: &Request<'_>) -> Ruling {
        self.record(domain, self.handler.service.check(request).await)
    }

    /// [`check`](Self::check) by a policy that the caller has looked at already.
    pub async fn check_with_policy(
        &self,
        policy: &ActivePolicy,
        domain: &str,
        request: &Request<'_>,
    ) -> Ruling {
        self.record(domain, self.handler.service.check_with_policy(policy, request).await)
    }

    /// What [`check`](Self::check) would say. Takes nothing.
    pub async fn peek(&self, domain: &str, request: &Request<'_>) -> Ruling {
        self.record(domain, self.handler.service.peek(request).await)
    }

    /// Records units that have been consumed. Never denies.
    pub async fn report(&self, domain: &str, request: &Request<'_>) -> Ruling {
        self.record(domain, self.handler.service.report(request).await)
    }

    fn record(&self, domain: &str, ruling: Ruling) -> Ruling {
        self.span.ruled(domain, &ruling);
        ruling
    }

    /// Finds the answer within the span, and ends that. Where the work is is where it stays: handed over by
    /// value it would be there twice.
    pub async fn run<R: ClassifyResponse>(&self, work: Pin<&mut impl Future<Output = R>>) -> R {
        let response = self.span.around(work).await;
        self.span.answered(&response);
        response
    }
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        self.0.observe_duration(self.1.elapsed());
    }
}

fn trusted_parent(headers: &HeaderMap) -> TraceParent {
    TraceParent::trusted(header_values(headers, TRACEPARENT), header_values(headers, "tracestate"))
}

fn header_values<'h>(headers: &'h HeaderMap, name: &str) -> impl Iterator<Item = &'h str> {
    headers.get_all(name).into_iter().map(|value| value.to_str().unwrap_or_default())
}
