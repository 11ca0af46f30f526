//! What the faces that decide share: who decides, how that is told, and who watches it.

use std::pin::Pin;
use std::sync::Arc;

use axum::http::HeaderMap;
use opentelemetry::KeyValue;
use quanta::Instant;
use slidegate::{Request, Ruling};

use crate::http::Answers;
use crate::service::{Ruled, Service};
use crate::watch::metrics::{Answered, Face, FaceMetrics};
use crate::watch::traces::{DecisionSpan, TraceParent};

const TRACEPARENT: &str = "traceparent";

/// What the paths of a face share that decide.
pub struct Decisions {
    service: Arc<Service>,
    answers: Answers,
    metrics: Option<FaceMetrics>,
}

/// Where the caller is in a trace; not looked for if there are no traces.
pub struct Caller(Option<TraceParent>);

/// A question that is being answered: timed, and traced if that is so.
pub struct Question<'d> {
    decisions: &'d Decisions,
    span: DecisionSpan,
    _timer: Option<Timer<'d>>,
}

/// Counts the time until it is dropped.
struct Timer<'d>(&'d FaceMetrics, Instant);

/// An answer, as those see it who watch.
pub trait Told {
    /// How the question was answered.
    fn answered(&self) -> Answered;

    /// The code that says so to the caller, by its name in a span.
    fn code(&self) -> KeyValue;
}

impl Decisions {
    /// Of one face.
    pub fn new(service: Arc<Service>, answers: Answers, face: Face) -> Self {
        let metrics = service.watch().metrics().map(|metrics| metrics.face(face));
        Self { service, answers, metrics }
    }

    /// Returns the policy that decides now.
    pub fn active(&self) -> Arc<Ruled> {
        self.service.ruled()
    }

    /// How rulings are told.
    pub fn answers(&self) -> &Answers {
        &self.answers
    }

    /// Where answers are counted, if anywhere.
    pub fn metrics(&self) -> Option<&FaceMetrics> {
        self.metrics.as_ref()
    }

    /// Where the caller is, by its headers.
    pub fn caller(&self, headers: &HeaderMap) -> Caller {
        let traced = self.service.watch().traces().is_some();
        Caller(traced.then(|| trusted(headers)))
    }

    /// Returns the trace context of a forwarded request. The end client may have written its headers, so they decide
    /// sampling only with `--trust-traceparent`.
    pub fn forwarded_caller(&self, headers: &HeaderMap) -> Caller {
        let traces = self.service.watch().traces();
        Caller(traces.map(|traces| match traces.trusts_forwarded() {
            true => trusted(headers),
            false => TraceParent::untrusted(values(headers, TRACEPARENT)),
        }))
    }

    /// Begins when the whole question is there: what a client takes to send it is not ours. `name` is that
    /// of the span.
    pub fn begin(&self, name: &'static str, caller: Caller) -> Question<'_> {
        Question {
            decisions: self,
            span: DecisionSpan::begin(self.service.watch().traces(), name, caller.0),
            _timer: self.metrics.as_ref().map(|metrics| Timer(metrics, Instant::now())),
        }
    }
}

impl Question<'_> {
    /// Takes what the request costs if every limit has room for it.
    pub async fn check(&self, domain: &str, request: &Request<'_>) -> Ruling {
        self.ruled(domain, self.decisions.service.check(request).await)
    }

    /// [`check`](Self::check) by a policy that the caller has looked at already.
    pub async fn check_by(&self, ruled: &Ruled, domain: &str, request: &Request<'_>) -> Ruling {
        self.ruled(domain, self.decisions.service.check_by(ruled, request).await)
    }

    /// What [`check`](Self::check) would say. Takes nothing.
    pub async fn peek(&self, domain: &str, request: &Request<'_>) -> Ruling {
        self.ruled(domain, self.decisions.service.peek(request).await)
    }

    /// Records units that have been consumed. Never denies.
    pub async fn report(&self, domain: &str, request: &Request<'_>) -> Ruling {
        self.ruled(domain, self.decisions.service.report(request).await)
    }

    fn ruled(&self, domain: &str, ruling: Ruling) -> Ruling {
        self.span.ruled(domain, &ruling);
        ruling
    }

    /// Finds the answer within the span, and ends that. Where the work is is where it stays: handed over by
    /// value it would be there twice.
    pub async fn answer<A: Told>(&self, find: Pin<&mut impl Future<Output = A>>) -> A {
        let answer = self.span.around(find).await;
        self.span.answered(&answer);
        answer
    }
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        self.0.took(self.1.elapsed());
    }
}

fn trusted(headers: &HeaderMap) -> TraceParent {
    TraceParent::trusted(values(headers, TRACEPARENT), values(headers, "tracestate"))
}

fn values<'h>(headers: &'h HeaderMap, name: &str) -> impl Iterator<Item = &'h str> {
    headers.get_all(name).into_iter().map(|value| value.to_str().unwrap_or_default())
}
