//! Tests that the layer calls only a service that has been polled ready.

use std::convert::Infallible;
use std::future::{Ready, poll_fn, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use slidegate::Store;
use slidegate_tower::{RateLimitLayer, WhenMissing, extract};
use tower::{Layer, Service, ServiceExt};

use crate::layer::fixture::{MINUTE, StoreFixture};

/// A service that reserves capacity for one call when it is polled ready, like a service with bounded concurrency. It
/// panics if it is called without a reservation. A clone has no reservation.
#[derive(Debug, Default)]
struct CapacityReservingService {
    is_busy: Arc<AtomicBool>,
    has_reservation: bool,
}

impl Clone for CapacityReservingService {
    fn clone(&self) -> Self {
        Self { is_busy: self.is_busy.clone(), has_reservation: false }
    }
}

impl Service<Request<Body>> for CapacityReservingService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if self.is_busy.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        self.has_reservation = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        assert!(std::mem::take(&mut self.has_reservation), "called without being polled ready");
        ready(Ok(Response::new(Body::empty())))
    }
}

fn layer_with_two_requests_per_minute(fixture: &StoreFixture<impl Store>) -> RateLimitLayer {
    RateLimitLayer::keyed_by(fixture.limiter(2, MINUTE), extract::value("all"), WhenMissing::Deny)
}

fn empty_request() -> Request<Body> {
    Request::new(Body::empty())
}

#[tokio::test]
async fn layer_waits_until_inner_service_is_ready() {
    with_both_stores!(|fixture| {
        let inner = CapacityReservingService::default();
        let is_busy = inner.is_busy.clone();
        let mut service = layer_with_two_requests_per_minute(&fixture).layer(inner);
        let mut context = Context::from_waker(Waker::noop());
        is_busy.store(true, Ordering::Relaxed);
        assert!(service.poll_ready(&mut context).is_pending(), "{fixture:?}");
        is_busy.store(false, Ordering::Relaxed);
        assert!(service.poll_ready(&mut context).is_ready(), "{fixture:?}");
        let response = service.call(empty_request()).await.unwrap();
        // Polling for readiness charges nothing.
        assert_eq!(response.headers()["ratelimit"], "\"limiter\";r=1;t=60", "{fixture:?}");
    });
}

#[tokio::test]
async fn layer_calls_same_service_that_was_polled_ready() {
    with_both_stores!(|fixture| {
        let mut service =
            layer_with_two_requests_per_minute(&fixture).layer(CapacityReservingService::default());
        for status in [200, 200, 429, 429] {
            let response = service.ready().await.unwrap().call(empty_request()).await.unwrap();
            assert_eq!(response.status(), status, "{fixture:?}");
        }
        fixture.clock.advance(MINUTE);
        assert_eq!(service.oneshot(empty_request()).await.unwrap().status(), StatusCode::OK);
    });
}

#[tokio::test]
async fn concurrent_calls_reserve_separate_service_capacity() {
    with_both_stores!(|fixture| {
        let mut service =
            layer_with_two_requests_per_minute(&fixture).layer(CapacityReservingService::default());
        let mut clone = service.clone();
        poll_fn(|context| service.poll_ready(context)).await.unwrap();
        poll_fn(|context| clone.poll_ready(context)).await.unwrap();
        let (first, second) = (service.call(empty_request()), clone.call(empty_request()));
        poll_fn(|context| service.poll_ready(context)).await.unwrap();
        let third = service.call(empty_request());
        let (third, second, first) = tokio::join!(third, second, first);
        let statuses = [first, second, third].map(|response| response.unwrap().status().as_u16());
        let denied = statuses.iter().filter(|status| **status == 429).count();
        assert_eq!(denied, 1, "{statuses:?} {fixture:?}");
    });
}
