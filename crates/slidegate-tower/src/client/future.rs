//! The future of a request and its retries: it calls the service, sleeps, polls the service ready, and calls again.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response};
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep};
use tower_service::Service;

use super::layer::RetryConfig;

pin_project! {
    /// The future of the final response of a [`Retry`](super::Retry) service.
    pub struct RetryFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        step: RetryStep<S::Future>,
        // `None` for a request that must not be repeated.
        retries: Option<RetryContext<S, B>>,
    }
}

pin_project! {
    #[project = RetryStepProjection]
    enum RetryStep<F> {
        Calling { #[pin] response: F },
        Sleeping { #[pin] sleep: Sleep },
        PollingReady,
    }
}

/// The service, the request and the settings that are needed to send the request again.
struct RetryContext<S, B> {
    service: S,
    request: Request<B>,
    config: Arc<RetryConfig>,
    started: Instant,
    attempts: u32,
}

impl<S, B> RetryFuture<S, B>
where
    S: Service<Request<B>>,
{
    /// Creates the future of a request that must not be repeated.
    pub(super) fn without_retries(response: S::Future) -> Self {
        Self { step: RetryStep::Calling { response }, retries: None }
    }
}

impl<S, B> RetryFuture<S, B>
where
    S: Service<Request<B>>,
    B: Clone,
{
    /// Creates the future of a request that may be repeated, and sends the first attempt. The service must have been
    /// polled ready.
    pub(super) fn with_retries(service: S, request: Request<B>, config: Arc<RetryConfig>) -> Self {
        let started = Instant::now();
        let mut retries = RetryContext { service, request, config, started, attempts: 0 };
        Self { step: RetryStep::Calling { response: retries.send() }, retries: Some(retries) }
    }
}

impl<S, B> RetryContext<S, B>
where
    S: Service<Request<B>>,
    B: Clone,
{
    fn send(&mut self) -> S::Future {
        self.attempts += 1;
        self.service.call(self.request.clone())
    }

    fn retry_wait_after<R>(&self, response: &Response<R>) -> Option<Duration> {
        self.config.schedule.retry_wait_after(response, self.attempts, self.started.elapsed())
    }
}

impl<S, B, R> Future for RetryFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
    B: Clone,
{
    type Output = Result<Response<R>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.step.as_mut().project() {
                RetryStepProjection::Calling { response } => {
                    let response = ready!(response.poll(cx))?;
                    let retries = this.retries.as_ref();
                    match retries.and_then(|retries| retries.retry_wait_after(&response)) {
                        None => return Poll::Ready(Ok(response)),
                        Some(wait) => RetryStep::Sleeping { sleep: tokio::time::sleep(wait) },
                    }
                }
                RetryStepProjection::Sleeping { sleep } => {
                    ready!(sleep.poll(cx));
                    RetryStep::PollingReady
                }
                RetryStepProjection::PollingReady => {
                    let Some(retries) = this.retries else {
                        unreachable!("only requests with retries sleep")
                    };
                    ready!(retries.service.poll_ready(cx))?;
                    RetryStep::Calling { response: retries.send() }
                }
            };
            this.step.set(next);
        }
    }
}

impl<S, B> fmt::Debug for RetryFuture<S, B>
where
    S: Service<Request<B>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attempts = self.retries.as_ref().map(|retries| retries.attempts);
        f.debug_struct("RetryFuture").field("attempts", &attempts).finish_non_exhaustive()
    }
}
