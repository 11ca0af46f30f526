//! The future of a response. It awaits the decision, then the inner service, then the settlement. A step that is
//! already complete is skipped.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::request::Parts;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::backend::{BackendDecision, BoxFuture, DecisionFuture};
use crate::config::LayerConfig;
use crate::extract::RequestHead;
use crate::respond::Respond;
use crate::service::Admission;
use crate::settlement::Settlement;

pin_project! {
    /// The future of a response: the response of the inner service, or a denial.
    pub struct ResponseFuture<I, ReqBody, ResBody, R>
    where
        I: Service<Request<ReqBody>>,
    {
        pub(crate) config: Arc<LayerConfig<R>>,
        #[pin]
        pub(crate) state: ResponseFutureState<I, ReqBody, ResBody>,
    }
}

pin_project! {
    /// The step that a response future awaits.
    #[project = ResponseFutureStateProjection]
    pub(crate) enum ResponseFutureState<I, ReqBody, ResBody>
    where
        I: Service<Request<ReqBody>>,
    {
        /// The store has not yet decided the request.
        Deciding {
            #[pin]
            future: DecisionFuture,
            pending_call: Option<PendingCall<I, ReqBody>>,
        },
        /// The request is allowed, and the inner service has not yet responded.
        Calling {
            #[pin]
            call: I::Future,
            admission: Admission,
        },
        /// The inner service has responded, and the store has not yet settled the charge.
        Settling {
            #[pin]
            future: BoxFuture<()>,
            response: Option<Response<ResBody>>,
        },
        /// The response is ready to be returned; `None` once it has been returned.
        Ready { response: Option<Response<ResBody>> },
    }
}

/// The request body and the inner service of a call, kept until the request is decided.
pub struct PendingCall<I, ReqBody> {
    pub body: ReqBody,
    pub inner: I,
}

impl<I, ReqBody, ResBody, R> ResponseFuture<I, ReqBody, ResBody, R>
where
    I: Service<Request<ReqBody>>,
{
    pub(crate) fn awaiting_decision(
        future: BoxFuture<(Parts, BackendDecision<'static>)>,
        pending_call: PendingCall<I, ReqBody>,
        config: Arc<LayerConfig<R>>,
    ) -> Self {
        let future = DecisionFuture::new(future, &config.backend, config.on_drop);
        Self {
            config,
            state: ResponseFutureState::Deciding { future, pending_call: Some(pending_call) },
        }
    }

    pub(crate) fn with_ready_response(
        response: Response<ResBody>,
        config: Arc<LayerConfig<R>>,
    ) -> Self {
        Self { config, state: ResponseFutureState::Ready { response: Some(response) } }
    }
}

impl<I, ReqBody, ResBody, R> Future for ResponseFuture<I, ReqBody, ResBody, R>
where
    I: Service<Request<ReqBody>, Response = Response<ResBody>>,
    R: Respond<ResBody>,
{
    type Output = Result<Response<ResBody>, I::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                ResponseFutureStateProjection::Deciding { future, pending_call } => {
                    let (parts, mut decision) = ready!(future.poll(context));
                    let Some(PendingCall { body, mut inner }) = pending_call.take() else {
                        return Poll::Pending;
                    };
                    let mut admission = Admission::default();
                    let head = RequestHead::from(&parts);
                    match this.config.admit_request(&mut decision, head, &mut admission) {
                        Ok(()) => {
                            let mut request = Request::from_parts(parts, body);
                            this.config.add_reservation(&mut admission, &mut request);
                            let call = inner.call(request);
                            ResponseFutureState::Calling { call, admission }
                        }
                        Err(response) => ResponseFutureState::Ready { response: Some(response) },
                    }
                }
                ResponseFutureStateProjection::Calling { call, admission } => {
                    let mut response = match ready!(call.poll(context)) {
                        Ok(response) => response,
                        Err(error) => {
                            // After an error of the service, the charge stays. If the guard were only dropped, it could
                            // revert the charge.
                            let guard = admission.settle_guard.take();
                            guard.and_then(|guard| guard.settle(Settlement::Keep));
                            return Poll::Ready(Err(error));
                        }
                    };
                    match this.config.finish_response(admission, &mut response) {
                        Some(future) => {
                            ResponseFutureState::Settling { future, response: Some(response) }
                        }
                        None => return Poll::Ready(Ok(response)),
                    }
                }
                ResponseFutureStateProjection::Settling { future, response } => {
                    ready!(future.poll(context));
                    ResponseFutureState::Ready { response: response.take() }
                }
                ResponseFutureStateProjection::Ready { response } => match response.take() {
                    Some(response) => return Poll::Ready(Ok(response)),
                    None => return Poll::Pending,
                },
            };
            this.state.set(next);
        }
    }
}
