//! The service, which decides whether a request may be repeated at all.

use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use super::future::RetryFuture;
use super::layer::Terms;
use crate::extract::Head;

/// A service under a [`RetryLayer`](super::RetryLayer).
#[derive(Clone, Debug)]
pub struct Retry<S> {
    inner: S,
    terms: Arc<Terms>,
}

impl<S> Retry<S> {
    pub(super) fn new(inner: S, terms: Arc<Terms>) -> Self {
        Self { inner, terms }
    }
}

impl<S, B, R> Service<Request<B>> for Retry<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    B: Clone,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = RetryFuture<S, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> RetryFuture<S, B> {
        let may_repeat =
            self.terms.waits.attempts > 1 && self.terms.repeatable.allows(Head::from(&request));
        if !may_repeat {
            return RetryFuture::once(self.inner.call(request));
        }
        // The one that was polled ready is the one that is called; its clone may not be ready.
        let clone = self.inner.clone();
        let ready = mem::replace(&mut self.inner, clone);
        RetryFuture::repeated(ready, request, Arc::clone(&self.terms))
    }
}
