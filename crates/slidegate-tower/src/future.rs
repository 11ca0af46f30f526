//! The answer to come.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::decide::{Decide, Decides, Deciding};
use crate::extract::Head;
use crate::layer::Terms;
use crate::respond::Respond;
use crate::service::Passed;

pin_project! {
    /// The answer of the service, or that the request may not pass.
    pub struct ResponseFuture<I, B, C, D, R>
    where
        I: Service<Request<B>>,
        D: Decide,
    {
        terms: Arc<Terms<D, R>>,
        #[pin]
        state: State<I, B, C, D>,
    }
}

pin_project! {
    #[project = Now]
    enum State<I, B, C, D>
    where
        I: Service<Request<B>>,
        D: Decide,
    {
        /// The store is asked.
        Deciding {
            #[pin]
            deciding: Deciding<D>,
            waiting: Option<Waiting<I, B>>,
        },
        /// The service works.
        Serving {
            #[pin]
            serving: I::Future,
            passed: Passed<D>,
        },
        /// The store is told what it has cost.
        Settling {
            #[pin]
            settling: <D as Decides>::Settling,
            response: Option<Response<C>>,
        },
        /// There is nothing to wait for.
        Answered { response: Option<Response<C>> },
    }
}

/// What waits for a decision.
pub struct Waiting<I, B> {
    pub body: B,
    pub inner: I,
}

impl<I, B, C, D, R> ResponseFuture<I, B, C, D, R>
where
    I: Service<Request<B>>,
    D: Decide,
{
    pub(crate) fn deciding(
        deciding: D::Deciding,
        waiting: Waiting<I, B>,
        terms: Arc<Terms<D, R>>,
    ) -> Self {
        let deciding = Deciding::new(deciding, &terms.decider, &terms.question, terms.on_drop);
        Self { terms, state: State::Deciding { deciding, waiting: Some(waiting) } }
    }

    pub(crate) fn serving(serving: I::Future, passed: Passed<D>, terms: Arc<Terms<D, R>>) -> Self {
        Self { terms, state: State::Serving { serving, passed } }
    }

    pub(crate) fn answered(response: Response<C>, terms: Arc<Terms<D, R>>) -> Self {
        Self { terms, state: State::Answered { response: Some(response) } }
    }
}

impl<I, B, C, D, R> Future for ResponseFuture<I, B, C, D, R>
where
    I: Service<Request<B>, Response = Response<C>>,
    D: Decide,
    R: Respond<C>,
{
    type Output = Result<Response<C>, I::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                Now::Deciding { deciding, waiting } => {
                    let (parts, mut decided) = ready!(deciding.poll(context));
                    let Some(Waiting { body, mut inner }) = waiting.take() else {
                        return Poll::Pending;
                    };
                    match this.terms.pass(&mut decided, Head::from(&parts)) {
                        Ok(passed) => {
                            let serving = inner.call(Request::from_parts(parts, body));
                            State::Serving { serving, passed }
                        }
                        Err(response) => State::Answered { response: Some(response) },
                    }
                }
                Now::Serving { serving, passed } => {
                    let mut response = match ready!(serving.poll(context)) {
                        Ok(response) => response,
                        Err(error) => {
                            // Its charge stays.
                            let unsettled = passed.unsettled.take();
                            unsettled.and_then(|charge| charge.settle(crate::Settle::Keep));
                            return Poll::Ready(Err(error));
                        }
                    };
                    match this.terms.finish(passed, &mut response) {
                        Some(settling) => State::Settling { settling, response: Some(response) },
                        None => return Poll::Ready(Ok(response)),
                    }
                }
                Now::Settling { settling, response } => {
                    ready!(settling.poll(context));
                    State::Answered { response: response.take() }
                }
                Now::Answered { response } => match response.take() {
                    Some(response) => return Poll::Ready(Ok(response)),
                    None => return Poll::Pending,
                },
            };
            this.state.set(next);
        }
    }
}
