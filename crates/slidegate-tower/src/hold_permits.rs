//! A layer that holds the permit of each request until its response body has ended.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::layer::RateLimitLayer;
use crate::permit::HeldPermit;
use crate::respond::ProblemJson;
use crate::service::RateLimit;

/// A [`RateLimitLayer`] that holds the permit of each request until its response body has ended, or the client has
/// disconnected. Created by [`RateLimitLayer::hold_permits`].
pub struct HoldPermitsLayer<R = ProblemJson> {
    layer: RateLimitLayer<R>,
}

/// A service that moves the permit of each request into the body of its response.
#[derive(Clone, Debug)]
pub struct HoldPermits<S> {
    inner: S,
}

pin_project! {
    /// The future of a response with a [`PermitBody`].
    #[derive(Debug)]
    pub struct HoldPermitsFuture<F> {
        #[pin]
        future: F,
    }
}

pin_project! {
    /// The body of a response. It holds the permit of the request until it has ended, failed, or is dropped.
    #[derive(Debug)]
    pub struct PermitBody<B> {
        #[pin]
        body: B,
        permit: Option<HeldPermit>,
    }
}

impl<R> HoldPermitsLayer<R> {
    pub(crate) fn new(layer: RateLimitLayer<R>) -> Self {
        Self { layer }
    }
}

impl<I, R> Layer<I> for HoldPermitsLayer<R> {
    type Service = HoldPermits<RateLimit<I, R>>;

    fn layer(&self, inner: I) -> Self::Service {
        HoldPermits { inner: self.layer.layer(inner) }
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for HoldPermits<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    ResBody: Body,
{
    type Response = Response<PermitBody<ResBody>>;
    type Error = S::Error;
    type Future = HoldPermitsFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        HoldPermitsFuture { future: self.inner.call(request) }
    }
}

impl<F, ResBody, E> Future for HoldPermitsFuture<F>
where
    F: Future<Output = Result<Response<ResBody>, E>>,
    ResBody: Body,
{
    type Output = Result<Response<PermitBody<ResBody>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut response = ready!(self.project().future.poll(context))?;
        let permit = response.extensions_mut().remove::<HeldPermit>();
        Poll::Ready(Ok(response.map(|body| PermitBody {
            // A server does not poll a body that has ended already, so its permit is released now.
            permit: permit.filter(|_| !body.is_end_stream()),
            body,
        })))
    }
}

impl<B: Body> Body for PermitBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let frame = ready!(this.body.as_mut().poll_frame(context));
        // A server does not always poll a body again after its last frame, so the permit is released with that frame.
        if !matches!(frame, Some(Ok(_))) || this.body.is_end_stream() {
            *this.permit = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<R> fmt::Debug for HoldPermitsLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldPermitsLayer").finish_non_exhaustive()
    }
}

impl<R> Clone for HoldPermitsLayer<R> {
    fn clone(&self) -> Self {
        Self { layer: self.layer.clone() }
    }
}
