//! `poll_ready` and the service that was polled ready.

use std::convert::Infallible;
use std::future::{Ready, poll_fn, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use slidegate::Store;
use slidegate_tower::{Backend, RateLimitLayer, WhenMissing, extract};
use tower::{Layer, Service, ServiceExt};

use crate::rig::{MINUTE, Rig};

/// A service that reserves a place for one call when it says that it is ready, as one with a bound on its calls
/// does. To call it without is a mistake. A clone has nothing reserved.
#[derive(Debug, Default)]
struct Reserving {
    is_busy: Arc<AtomicBool>,
    has_place: bool,
}

impl Clone for Reserving {
    fn clone(&self) -> Self {
        Self { is_busy: self.is_busy.clone(), has_place: false }
    }
}

impl Service<Request<Body>> for Reserving {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if self.is_busy.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        self.has_place = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        assert!(std::mem::take(&mut self.has_place), "called without having been polled ready");
        ready(Ok(Response::new(Body::empty())))
    }
}

fn two_a_minute(rig: &Rig<impl Store>) -> RateLimitLayer<impl Backend> {
    RateLimitLayer::keyed_by(rig.limiter(2, MINUTE), extract::value("all"), WhenMissing::Deny)
}

fn request() -> Request<Body> {
    Request::new(Body::empty())
}

#[tokio::test]
async fn a_service_that_is_not_ready_makes_the_layer_wait() {
    with_both!(|rig| {
        let inner = Reserving::default();
        let is_busy = inner.is_busy.clone();
        let mut service = two_a_minute(&rig).layer(inner);
        let mut context = Context::from_waker(Waker::noop());
        is_busy.store(true, Ordering::Relaxed);
        assert!(service.poll_ready(&mut context).is_pending(), "{rig:?}");
        is_busy.store(false, Ordering::Relaxed);
        assert!(service.poll_ready(&mut context).is_ready(), "{rig:?}");
        let answer = service.call(request()).await.unwrap();
        // To be asked whether one is ready costs nothing.
        assert_eq!(answer.headers()["ratelimit"], "\"limiter\";r=1;t=60", "{rig:?}");
    });
}

#[tokio::test]
async fn the_service_that_was_ready_is_the_one_that_is_called() {
    with_both!(|rig| {
        let mut service = two_a_minute(&rig).layer(Reserving::default());
        for status in [200, 200, 429, 429] {
            let answer = service.ready().await.unwrap().call(request()).await.unwrap();
            assert_eq!(answer.status(), status, "{rig:?}");
        }
        rig.clock.advance(MINUTE);
        assert_eq!(service.oneshot(request()).await.unwrap().status(), StatusCode::OK);
    });
}

#[tokio::test]
async fn calls_at_once_and_clones_each_have_a_place_of_their_own() {
    with_both!(|rig| {
        let mut service = two_a_minute(&rig).layer(Reserving::default());
        let mut clone = service.clone();
        poll_fn(|context| service.poll_ready(context)).await.unwrap();
        poll_fn(|context| clone.poll_ready(context)).await.unwrap();
        let (first, second) = (service.call(request()), clone.call(request()));
        poll_fn(|context| service.poll_ready(context)).await.unwrap();
        let third = service.call(request());
        let (third, second, first) = tokio::join!(third, second, first);
        let statuses = [first, second, third].map(|answer| answer.unwrap().status().as_u16());
        let denied = statuses.iter().filter(|status| **status == 429).count();
        assert_eq!(denied, 1, "{statuses:?} {rig:?}");
    });
}
