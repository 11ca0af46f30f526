//! The rate-limited service. It decides each request, and then calls the inner service or responds with a denial.
//!
//! With a synchronous store, `call` makes the decision. With an asynchronous store, [`ResponseFuture`] awaits the
//! decision before the inner service is called.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::CACHE_CONTROL;
use http::{HeaderValue, Request, Response};
use slidegate::Decision;
use slidegate::headers::CACHE_CONTROL_NO_STORE;
use tower_service::Service;

use crate::backend::{BackendDecision, BoxFuture, PendingCharge};
use crate::config::{LayerConfig, SettleTime};
use crate::extract::RequestHead;
use crate::future::{PendingCall, ResponseFuture, ResponseFutureState};
use crate::header_writer::{HeaderValues, retry_after};
use crate::permit::HeldPermit;
use crate::reservation::RequestReservation;
use crate::respond::{Denial, MissingExtension, ProblemJson, Respond};
use crate::settle_guard::SettleGuard;
use crate::settlement::{OnDrop, Settlement};

/// A service behind a rate limit, created by a [`RateLimitLayer`](crate::RateLimitLayer).
pub struct RateLimit<I, R = ProblemJson> {
    inner: I,
    config: Arc<LayerConfig<R>>,
}

/// The state of an allowed request until its response: the values of the response's rate-limit headers, a guard of the
/// request's charge if the charge may be settled or reverted, and its permit.
#[derive(Default)]
pub struct Admission {
    pub header_values: HeaderValues,
    pub settle_guard: Option<Box<SettleGuard>>,
    /// The permit of the request, which is released when it is dropped.
    pub permit: Option<HeldPermit>,
}

impl<I, R> RateLimit<I, R> {
    pub(crate) fn new(inner: I, config: Arc<LayerConfig<R>>) -> Self {
        Self { inner, config }
    }
}

impl<R> LayerConfig<R> {
    /// Sets the empty `admission` of an allowed request, or returns the response to a denied or malformed request as
    /// `Err`. The decision and the admission are passed by reference, because they are large. If the charge may be
    /// settled or reverted, the decision moves into the settle guard, and `decision` becomes `Uncounted`.
    pub(crate) fn admit_request<ResBody>(
        &self,
        decision: &mut BackendDecision<'_>,
        head: RequestHead<'_>,
        admission: &mut Admission,
    ) -> Result<(), Response<ResBody>>
    where
        R: Respond<ResBody>,
    {
        match decision {
            BackendDecision::Uncounted => {}
            BackendDecision::Malformed(detail) => {
                let denial = Denial::from_malformed_request(head, detail);
                return Err(self.respond_without_caching(&denial));
            }
            BackendDecision::Counted(decision, _) => {
                if let Some(inspect) = &self.inspect {
                    inspect(head, decision);
                }
                if !decision.is_allowed() {
                    return Err(self.new_denial_response(decision, head));
                }
                self.header_writer.set_header_values(decision, &mut admission.header_values);
                if let Some(permit) = decision.take_permit() {
                    admission.permit = Some(HeldPermit::new(self.backend.clone(), permit));
                }
            }
        }
        if self.settle.is_set() || self.on_drop != OnDrop::Keep {
            admission.settle_guard = self.new_settle_guard(decision);
        }
        Ok(())
    }

    /// Moves the guard of the charge into the extensions of the request, if the layer has reservations.
    pub(crate) fn add_reservation<ReqBody>(
        &self,
        admission: &mut Admission,
        request: &mut Request<ReqBody>,
    ) {
        if matches!(self.settle, SettleTime::EndOfBody)
            && let Some(guard) = admission.settle_guard.take()
        {
            request.extensions_mut().insert(RequestReservation::new(*guard));
        }
    }

    fn new_denial_response<ResBody>(
        &self,
        decision: &Decision<'_>,
        head: RequestHead<'_>,
    ) -> Response<ResBody>
    where
        R: Respond<ResBody>,
    {
        let jitter = self.header_writer.draw_jitter();
        // The decision in a `Denial` must not borrow from the limiter, because responders get a `Decision<'static>`.
        let decision = decision.clone().into_owned();
        let missing = self.backend.missing_extension(&decision, head);
        let missing =
            missing.map(|name| MissingExtension { name, status: self.missing_extension_status });
        let retry_after = retry_after(&decision, jitter);
        let denial = Denial::from_decision(head, &decision, retry_after, missing);
        let mut response = self.respond_without_caching(&denial);
        if denial.is_server_error() {
            return response;
        }
        self.header_writer.write_denial(&decision, jitter, response.headers_mut());
        response
    }

    /// Returns the response to a denial, which caches must not store unless the responder has decided otherwise.
    fn respond_without_caching<ResBody>(&self, denial: &Denial<'_>) -> Response<ResBody>
    where
        R: Respond<ResBody>,
    {
        let mut response = self.respond.respond(denial);
        let cache_control = response.headers_mut().entry(CACHE_CONTROL);
        cache_control.or_insert(HeaderValue::from_static(CACHE_CONTROL_NO_STORE.1));
        response
    }

    fn new_settle_guard(&self, decision: &mut BackendDecision<'_>) -> Option<Box<SettleGuard>> {
        let decided = mem::replace(decision, BackendDecision::Uncounted);
        let BackendDecision::Counted(decision, context) = decided else {
            return None;
        };
        let charge = PendingCharge { decision: decision.into_owned(), context };
        Some(Box::new(SettleGuard::new(self.backend.clone(), charge, self.on_drop)))
    }

    /// Adds the rate-limit headers to a response and settles the charge of the request. Returns a future if the
    /// settlement must wait for an asynchronous store, otherwise `None`.
    pub(crate) fn finish_response<ResBody>(
        &self,
        admission: &mut Admission,
        response: &mut Response<ResBody>,
    ) -> Option<BoxFuture<()>> {
        let future = match (&self.settle, admission.settle_guard.take()) {
            (SettleTime::Response(settle), Some(guard)) => {
                guard.settle(settle(&(&*response).into()))
            }
            (_, Some(guard)) => guard.settle(Settlement::Keep),
            (_, None) => None,
        };
        self.header_writer.write(&mut admission.header_values, response.headers_mut());
        if let Some(permit) = admission.permit.take() {
            response.extensions_mut().insert(permit);
        }
        future
    }
}

impl<I, R, ReqBody, ResBody> Service<Request<ReqBody>> for RateLimit<I, R>
where
    I: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
    R: Respond<ResBody>,
{
    type Response = Response<ResBody>;
    type Error = I::Error;
    type Future = ResponseFuture<I, ReqBody, ResBody, R>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<ReqBody>) -> Self::Future {
        let config = self.config.clone();
        let head = RequestHead::from(&request);
        let mut decision = config.backend.decide(&config.options, head);
        let mut admission = Admission::default();
        let result =
            decision.as_mut().map(|decision| config.admit_request(decision, head, &mut admission));
        // The decision borrows from the configuration, which then moves into the response future.
        drop(decision);
        match result {
            // This branch is not a function of its own, because the call would copy the large request and admission
            // once more.
            Some(Ok(())) => {
                config.add_reservation(&mut admission, &mut request);
                let call = self.inner.call(request);
                ResponseFuture { state: ResponseFutureState::Calling { call, admission }, config }
            }
            Some(Err(response)) => ResponseFuture::with_ready_response(response, config),
            None => self.call_with_async_store(request, config),
        }
    }
}

impl<I, R> RateLimit<I, R> {
    fn call_with_async_store<ReqBody, ResBody>(
        &mut self,
        request: Request<ReqBody>,
        config: Arc<LayerConfig<R>>,
    ) -> ResponseFuture<I, ReqBody, ResBody, R>
    where
        I: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
        R: Respond<ResBody>,
    {
        // Uses the service that was polled ready for this request, and its clone for the next: a clone may not be
        // ready.
        let clone = self.inner.clone();
        let inner = mem::replace(&mut self.inner, clone);
        let (parts, body) = request.into_parts();
        let future = config.backend.clone().decide_async(config.options.clone(), parts);
        ResponseFuture::awaiting_decision(future, PendingCall { body, inner }, config)
    }
}

impl<I: fmt::Debug, R> fmt::Debug for RateLimit<I, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<I: Clone, R> Clone for RateLimit<I, R> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), config: self.config.clone() }
    }
}
