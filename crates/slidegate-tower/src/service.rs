//! The service: asks, then lets pass or answers.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use slidegate::Ruling;
use tower_service::Service;

use crate::decide::{Charge, Decide, Decided};
use crate::extract::Head;
use crate::future::{ResponseFuture, Waiting};
use crate::layer::Terms;
use crate::respond::{Denial, ProblemJson, Respond};
use crate::settle::{OnDrop, Unsettled};
use crate::tell::{Told, retry_after};

/// A service whose requests are asked about first: see [`RateLimitLayer`](crate::RateLimitLayer).
pub struct RateLimit<I, D, R = ProblemJson> {
    inner: I,
    terms: Arc<Terms<D, R>>,
}

/// A request that may pass: what its answer will say, and what may be settled then.
pub struct Passed<D: Decide> {
    pub told: Told,
    pub unsettled: Option<Unsettled<D>>,
}

impl<I, D, R> RateLimit<I, D, R> {
    pub(crate) fn new(inner: I, terms: Arc<Terms<D, R>>) -> Self {
        Self { inner, terms }
    }
}

impl<D: Decide, R> Terms<D, R> {
    /// Whether a request may pass; otherwise its answer. Rulings are large, and are moved only where one is kept.
    #[inline(always)]
    pub(crate) fn pass<C>(
        &self,
        decided: &mut Decided,
        head: Head<'_>,
    ) -> Result<Passed<D>, Response<C>>
    where
        R: Respond<C>,
    {
        let told = match &*decided {
            Decided::Uncounted => Told::default(),
            Decided::Malformed(detail) => {
                return Err(self.respond.respond(&Denial::malformed(head, detail)));
            }
            Decided::Ruled(ruling, _) => {
                if let Some(see) = &self.inspect {
                    see(head, ruling);
                }
                if !ruling.decision().is_allowed() {
                    return Err(self.deny(ruling, head));
                }
                self.tell.told(ruling)
            }
        };
        let is_settled = self.settle.is_some() || self.on_drop != OnDrop::Keep;
        let unsettled = if is_settled { self.unsettled(decided) } else { None };
        Ok(Passed { told, unsettled })
    }

    fn deny<C>(&self, ruling: &Ruling, head: Head<'_>) -> Response<C>
    where
        R: Respond<C>,
    {
        let lengthening = self.tell.draw();
        let denial = Denial::ruled(head, ruling, retry_after(ruling, lengthening));
        let mut response = self.respond.respond(&denial);
        self.tell.deny(ruling, lengthening, response.headers_mut());
        response
    }

    fn unsettled(&self, decided: &mut Decided) -> Option<Unsettled<D>> {
        let Decided::Ruled(ruling, kept) = mem::replace(decided, Decided::Uncounted) else {
            return None;
        };
        let charge = Charge { ruling, kept };
        Some(Unsettled::new(self.decider.clone(), self.question.clone(), charge, self.on_drop))
    }

    /// What is told is added to an answer. What is then to be done, is to be waited for.
    pub(crate) fn finish<C>(
        &self,
        passed: &mut Passed<D>,
        response: &mut Response<C>,
    ) -> Option<D::Settling> {
        let settling = match (&self.settle, passed.unsettled.take()) {
            (Some(settle), Some(unsettled)) => unsettled.settle(settle(&(&*response).into())),
            (None, Some(unsettled)) => unsettled.settle(crate::Settle::Keep),
            (_, None) => None,
        };
        self.tell.add(&mut passed.told, response.headers_mut());
        settling
    }
}

impl<I, D, R, B, C> Service<Request<B>> for RateLimit<I, D, R>
where
    I: Service<Request<B>, Response = Response<C>> + Clone,
    D: Decide,
    R: Respond<C>,
{
    type Response = Response<C>;
    type Error = I::Error;
    type Future = ResponseFuture<I, B, C, D, R>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let terms = self.terms.clone();
        let head = Head::from(&request);
        let mut decided = terms.decider.decide_now(&terms.question, head);
        let Some(decided) = &mut decided else {
            return self.wait(request, terms);
        };
        match terms.pass(decided, head) {
            Ok(passed) => ResponseFuture::serving(self.inner.call(request), passed, terms),
            Err(response) => ResponseFuture::answered(response, terms),
        }
    }
}

impl<I, D, R> RateLimit<I, D, R> {
    fn wait<B, C>(
        &mut self,
        request: Request<B>,
        terms: Arc<Terms<D, R>>,
    ) -> ResponseFuture<I, B, C, D, R>
    where
        I: Service<Request<B>, Response = Response<C>> + Clone,
        D: Decide,
        R: Respond<C>,
    {
        // The service that was polled ready. Its clone may not be.
        let fresh = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, fresh);
        let (parts, body) = request.into_parts();
        match terms.decider.decide(terms.question.clone(), parts) {
            Err(deciding) => ResponseFuture::deciding(deciding, Waiting { body, inner }, terms),
            Ok((parts, mut decided)) => match terms.pass(&mut decided, Head::from(&parts)) {
                Ok(passed) => {
                    let serving = inner.call(Request::from_parts(parts, body));
                    ResponseFuture::serving(serving, passed, terms)
                }
                Err(response) => ResponseFuture::answered(response, terms),
            },
        }
    }
}

impl<I: fmt::Debug, D, R> fmt::Debug for RateLimit<I, D, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<I: Clone, D, R> Clone for RateLimit<I, D, R> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), terms: self.terms.clone() }
    }
}
