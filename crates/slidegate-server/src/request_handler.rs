//! The handling of a request that needs a decision, for all listeners: parse, decide, render, with metrics and traces.
//!
//! A listener calls [`RequestHandler::handle`] once per request, after the whole request has arrived, and passes the
//! functions that parse the request and render the response. The response returns as a value.

mod permits;
mod reservations;

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::HeaderMap;
use quanta::Instant;
use slidegate::{Decision, IdempotencyKey, OnceError, Request};

use crate::names::RequestError;
use crate::rendering::ResponseRenderer;
use crate::reservation_token::SealError;
use crate::service::names::NameSource;
use crate::service::permits::PermitToken;
use crate::service::{ActivePolicy, Service};
use crate::telemetry::DecisionTracer;
use crate::telemetry::metrics::{ListenerKind, ListenerMetrics};
use crate::telemetry::request_result::{ClassifyResponse, RequestResult};
use crate::telemetry::traces::TraceParent;
use crate::telemetry::traces::span::{TracedDecision, trace_decision};

/// The service, renderer, metrics and tracer of one listener.
pub struct RequestHandler {
    service: Arc<Service>,
    renderer: ResponseRenderer,
    metrics: Option<ListenerMetrics>,
    tracer: Option<Arc<DecisionTracer>>,
}

/// A call of the handler: the decision that a listener needs, and the trace to which the decision belongs.
pub struct Call<'c> {
    pub operation: Operation<'c>,
    /// The name of the trace span.
    pub span_name: &'static str,
    pub trace: TraceHeaders<'c>,
    /// Whether the response contains the permit of the request. Otherwise the permit is released after the decision.
    returns_permit: bool,
}

/// The decision that a listener needs.
#[derive(Clone, Copy)]
pub enum Operation<'p> {
    /// Decides about the request, and charges its cost if every limit allows the request.
    Check,
    /// Decides like `Check`, but waits for up to [`ParsedRequest::max_wait`] until the request fits.
    CheckWithin,
    /// Decides like `Check`, with a policy that the caller has already loaded.
    CheckWithPolicy(&'p ActivePolicy),
    /// Returns the decision that `Check` would return. Charges nothing.
    Peek,
    /// Records units that have been consumed. Never denies.
    Report,
}

/// The headers that contain the trace context of a request. It determines the parent of the request's span.
#[derive(Clone, Copy)]
pub enum TraceHeaders<'h> {
    /// The headers of a caller. The caller is trusted: its sampled flag decides whether the request is traced.
    Direct(&'h HeaderMap),
    /// The headers of a request that a proxy forwards. The end client may have written these headers, so they determine
    /// sampling only with `--trust-traceparent`.
    Forwarded(&'h HeaderMap),
}

/// A parsed request of a listener.
pub trait ParsedRequest {
    /// Converts this request to the request type that the gate evaluates.
    fn to_gate_request(&self) -> Request<'_>;

    /// Returns the idempotency key of the request, or `None` if it has none.
    fn idempotency_key(&self) -> Option<IdempotencyKey<'_>> {
        None
    }

    /// Returns the time for which the request may wait until it fits, zero by default.
    fn max_wait(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the origin of the attribute names of the request, the caller by default.
    fn name_source(&self) -> NameSource {
        NameSource::Caller
    }

    /// Returns the tokens of the permits that the request releases, none by default.
    fn permits_to_release(&self) -> Vec<&str> {
        Vec::new()
    }
}

/// A timer that records the elapsed time and the result of a request in the metrics when the timer is dropped.
struct RequestTimer<'d> {
    metrics: &'d ListenerMetrics,
    started: Instant,
    /// The time for which the request waited for capacity, which is not a part of the elapsed time.
    waited: Duration,
    /// The result of the request. `None` until the response is complete.
    result: Option<RequestResult>,
}

impl<'c> Call<'c> {
    /// Creates a call whose response contains no permit.
    pub fn new(operation: Operation<'c>, span_name: &'static str, trace: TraceHeaders<'c>) -> Self {
        Self { operation, span_name, trace, returns_permit: false }
    }

    /// Returns the call with a response that contains the permit of the request.
    pub fn returning_permit(self) -> Self {
        Self { returns_permit: true, ..self }
    }
}

impl RequestHandler {
    /// Creates the handler of the requests to one listener.
    pub fn new(service: Arc<Service>, renderer: ResponseRenderer, kind: ListenerKind) -> Self {
        let metrics = service.telemetry().metrics().map(|metrics| metrics.listener(kind));
        let tracer = service.telemetry().tracer().cloned();
        Self { service, renderer, metrics, tracer }
    }

    /// Handles a request: parses it with `parse`, decides, and returns the response of `render`. Records the duration,
    /// the result and the trace span. Must be called after the whole request has arrived, so that a slow client does
    /// not count as latency. If the future is dropped, because the client has disconnected, a waiting call leaves its
    /// queue.
    pub async fn handle<Q, R, E>(
        &self,
        call: Call<'_>,
        parse: impl FnOnce() -> Result<Q, E>,
        render: impl FnOnce(&ResponseRenderer, &Q, &Decision<'_>, Option<&PermitToken>) -> Result<R, E>,
    ) -> Result<R, E>
    where
        Q: ParsedRequest,
        E: From<OnceError> + From<SealError> + From<RequestError>,
        Result<R, E>: ClassifyResponse,
    {
        let Call { operation, span_name, trace, returns_permit } = call;
        let tracer = self.tracer.as_deref();
        let waited_us = AtomicU64::new(0);
        let work = pin!(async {
            let parsed = match parse() {
                Ok(parsed) => parsed,
                Err(error) => return (Err(error), None),
            };
            let released = parsed.permits_to_release();
            if !released.is_empty() {
                // Boxed, because few requests release permits.
                Box::pin(self.service.release_all(&released)).await;
            }
            let request = parsed.to_gate_request();
            if let Err(error) = self.service.check_request(&request) {
                return (Err(error.into()), None);
            }
            // A request that only releases permits charges nothing, and is not a request without a rule for metrics.
            let operation =
                if request.descriptors().is_empty() { Operation::Peek } else { operation };
            let decision = match (parsed.idempotency_key(), operation) {
                (Some(key), operation) => {
                    // Boxed, because most requests have no key, and should not pay for a larger future.
                    let once = Box::pin(self.service.decide_once(
                        operation,
                        &request,
                        &key,
                        parsed.max_wait(),
                    ));
                    match once.await {
                        Ok((decision, waited)) => {
                            store_duration(&waited_us, waited);
                            decision
                        }
                        Err(error) => return (Err(error.into()), None),
                    }
                }
                (None, Operation::CheckWithin) if !parsed.max_wait().is_zero() => {
                    // Boxed, because this future is large, and few requests wait.
                    let wait = Box::pin(self.service.check_within(&request, parsed.max_wait()));
                    let (decision, waited) = wait.await;
                    store_duration(&waited_us, waited);
                    decision
                }
                (None, Operation::Check | Operation::CheckWithin) => {
                    self.service.check(&request).await
                }
                (None, Operation::CheckWithPolicy(policy)) => {
                    self.service.check_with_policy(policy, &request).await
                }
                (None, Operation::Peek) => self.service.peek(&request).await,
                (None, Operation::Report) => self.service.report(&request).await,
            };
            if let Err(error) = self.check_attributes(&request, &decision, parsed.name_source()) {
                return (Err(error.into()), None);
            }
            let response = self.respond(returns_permit, &parsed, &decision, render);
            let domain = tracer.map(|_| request.domain().to_owned());
            (response, domain.map(|domain| TracedDecision { domain, decision }))
        });
        self.measure(span_name, trace, &waited_us, work).await
    }

    /// Checks the attributes of a request if no limit applies to it: it may have misspelt names.
    fn check_attributes(
        &self,
        request: &Request<'_>,
        decision: &Decision<'_>,
        source: NameSource,
    ) -> Result<(), RequestError> {
        // A decision without the store may have no limits for another reason.
        match decision.limits().next().is_some() || decision.is_degraded() {
            true => Ok(()),
            false => self.service.check_attributes(request, source),
        }
    }

    /// Returns the response to a decided request.
    fn respond<Q, R, E: From<SealError>>(
        &self,
        returns_permit: bool,
        parsed: &Q,
        decision: &Decision<'_>,
        render: impl FnOnce(&ResponseRenderer, &Q, &Decision<'_>, Option<&PermitToken>) -> Result<R, E>,
    ) -> Result<R, E> {
        let permit = match returns_permit {
            true => self.service.seal_permit(decision)?,
            false => {
                self.service.release_unreturned_permit(decision);
                None
            }
        };
        render(&self.renderer, parsed, decision, permit.as_ref())
    }

    /// Runs `work`, which creates the response to a request. Records the duration, the result and the trace span. The
    /// duration is without the time for which the request waited for capacity, which `work` stores in `waited_us`.
    ///
    /// The caller pins `work`, because a future that is passed by value would be stored twice.
    async fn measure<R, E>(
        &self,
        span_name: &'static str,
        trace: TraceHeaders<'_>,
        waited_us: &AtomicU64,
        work: Pin<&mut impl Future<Output = (Result<R, E>, Option<TracedDecision>)>>,
    ) -> Result<R, E>
    where
        Result<R, E>: ClassifyResponse,
    {
        let mut timer = self.metrics.as_ref().map(RequestTimer::start);
        let tracer = self.tracer.as_deref();
        let parent = tracer.map(|tracer| trace.read_trace_parent(tracer));
        let response = trace_decision(tracer, span_name, parent, work).await;
        if let Some(timer) = &mut timer {
            timer.waited = Duration::from_micros(waited_us.load(Ordering::Relaxed));
            timer.result = Some(response.request_result());
        }
        response
    }

    /// Logs a call of the rate limit service without descriptors, at most once a minute.
    pub fn log_request_without_descriptors(&self) {
        self.service.log_request_without_descriptors();
    }

    /// Counts a request that the listener rejected before it called [`handle`](Self::handle).
    pub fn count_rejected(&self, result: RequestResult) {
        if let Some(metrics) = &self.metrics {
            metrics.count_result(result);
        }
    }
}

/// Stores a duration in microseconds.
fn store_duration(micros: &AtomicU64, duration: Duration) {
    let duration = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    micros.store(duration, Ordering::Relaxed);
}

impl TraceHeaders<'_> {
    fn read_trace_parent(self, tracer: &DecisionTracer) -> TraceParent {
        match self {
            Self::Direct(headers) => TraceParent::trusted(headers),
            Self::Forwarded(headers) if tracer.trusts_forwarded() => TraceParent::trusted(headers),
            Self::Forwarded(headers) => TraceParent::untrusted(headers),
        }
    }
}

impl<'d> RequestTimer<'d> {
    fn start(metrics: &'d ListenerMetrics) -> Self {
        Self { metrics, started: Instant::now(), waited: Duration::ZERO, result: None }
    }
}

impl Drop for RequestTimer<'_> {
    fn drop(&mut self) {
        let elapsed = self.started.elapsed().saturating_sub(self.waited);
        self.metrics.record_request(elapsed, self.result);
    }
}
