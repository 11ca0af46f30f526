//! The client service, which decides for each request whether the request may be repeated.

use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use super::future::RetryFuture;
use super::layer::RetryConfig;
use crate::extract::RequestHead;

/// A service that retries denied requests, created by a [`RetryLayer`](super::RetryLayer).
#[derive(Clone, Debug)]
pub struct Retry<S> {
    inner: S,
    config: Arc<RetryConfig>,
}

impl<S> Retry<S> {
    pub(super) fn new(inner: S, config: Arc<RetryConfig>) -> Self {
        Self { inner, config }
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
        let can_repeat = self.config.schedule.max_attempts > 1
            && self.config.repeat_policy.allows_repeat(RequestHead::from(&request));
        if !can_repeat {
            return RetryFuture::without_retries(self.inner.call(request));
        }
        // Uses the service that was polled ready for this request, and its clone for the next: a clone may not be
        // ready.
        let clone = self.inner.clone();
        let ready = mem::replace(&mut self.inner, clone);
        RetryFuture::with_retries(ready, request, Arc::clone(&self.config))
    }
}
