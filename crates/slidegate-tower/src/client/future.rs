//! Ask, wait until told, be ready, ask again.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response};
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep};
use tower_service::Service;

use super::layer::Terms;

pin_project! {
    /// The answer in the end, of a [`Retry`](super::Retry).
    pub struct RetryFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        step: Step<S::Future>,
        // None for a request that is not repeated.
        again: Option<Again<S, B>>,
    }
}

pin_project! {
    #[project = StepProjection]
    enum Step<F> {
        Asking { #[pin] answer: F },
        Waiting { #[pin] sleep: Sleep },
        Readying,
    }
}

/// What it takes to ask again.
struct Again<S, B> {
    service: S,
    request: Request<B>,
    terms: Arc<Terms>,
    began: Instant,
    asked: u32,
}

impl<S, B> RetryFuture<S, B>
where
    S: Service<Request<B>>,
{
    /// Whatever is answered is the answer.
    pub(super) fn once(answer: S::Future) -> Self {
        Self { step: Step::Asking { answer }, again: None }
    }
}

impl<S, B> RetryFuture<S, B>
where
    S: Service<Request<B>>,
    B: Clone,
{
    /// Asks a service that is ready, for the first time of several.
    pub(super) fn repeated(service: S, request: Request<B>, terms: Arc<Terms>) -> Self {
        let began = Instant::now();
        let mut again = Again { service, request, terms, began, asked: 0 };
        Self { step: Step::Asking { answer: again.ask() }, again: Some(again) }
    }
}

impl<S, B> Again<S, B>
where
    S: Service<Request<B>>,
    B: Clone,
{
    fn ask(&mut self) -> S::Future {
        self.asked += 1;
        self.service.call(self.request.clone())
    }

    fn wait_after<R>(&self, answer: &Response<R>) -> Option<Duration> {
        self.terms.waits.after(answer, self.asked, self.began.elapsed())
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
                StepProjection::Asking { answer } => {
                    let answer = ready!(answer.poll(cx))?;
                    let again = this.again.as_ref();
                    match again.and_then(|again| again.wait_after(&answer)) {
                        None => return Poll::Ready(Ok(answer)),
                        Some(wait) => Step::Waiting { sleep: tokio::time::sleep(wait) },
                    }
                }
                StepProjection::Waiting { sleep } => {
                    ready!(sleep.poll(cx));
                    Step::Readying
                }
                StepProjection::Readying => {
                    let Some(again) = this.again else {
                        unreachable!("nobody waits who may not ask again")
                    };
                    ready!(again.service.poll_ready(cx))?;
                    Step::Asking { answer: again.ask() }
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
        let asked = self.again.as_ref().map(|again| again.asked);
        f.debug_struct("RetryFuture").field("asked", &asked).finish_non_exhaustive()
    }
}
