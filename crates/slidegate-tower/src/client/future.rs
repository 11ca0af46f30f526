//! The future of a request and its retries. It calls the service. Before each retry, it sleeps, and polls the service
//! until it is ready.

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
        step: RetryState<S::Future>,
        // The data for retries; `None` for a request that must not be repeated.
        retries: Option<RetryContext<S, B>>,
    }
}

pin_project! {
    #[project = RetryStateProjection]
    enum RetryState<F> {
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
        Self { step: RetryState::Calling { response }, retries: None }
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
        Self {
            step: RetryState::Calling { response: retries.send_attempt() },
            retries: Some(retries),
        }
    }
}

impl<S, B> RetryContext<S, B>
where
    S: Service<Request<B>>,
    B: Clone,
{
    fn send_attempt(&mut self) -> S::Future {
        self.attempts += 1;
        self.service.call(self.request.clone())
    }

    /// Returns the wait before the next attempt; `None` if the response is final.
    fn compute_wait_before_retry<R>(&self, response: &Response<R>) -> Option<Duration> {
        self.config.schedule.compute_wait_before_retry(
            response,
            self.attempts,
            self.started.elapsed(),
        )
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
                RetryStateProjection::Calling { response } => {
                    let response = ready!(response.poll(cx))?;
                    let retries = this.retries.as_ref();
                    match retries.and_then(|retries| retries.compute_wait_before_retry(&response)) {
                        None => return Poll::Ready(Ok(response)),
                        Some(wait) => RetryState::Sleeping { sleep: tokio::time::sleep(wait) },
                    }
                }
                RetryStateProjection::Sleeping { sleep } => {
                    ready!(sleep.poll(cx));
                    RetryState::PollingReady
                }
                RetryStateProjection::PollingReady => {
                    let Some(retries) = this.retries else {
                        unreachable!("only requests with retries sleep")
                    };
                    ready!(retries.service.poll_ready(cx))?;
                    RetryState::Calling { response: retries.send_attempt() }
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
