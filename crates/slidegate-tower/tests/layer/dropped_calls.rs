//! Tests of calls that end without a response, because the client disconnects, the handler panics, or the service
//! fails.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use axum::routing::get;
use slidegate::store::{Adjustment, Asynchronous, ChargeResult, Edit, Hit, Outcomes, Receipt};
use slidegate::{Check, Limiter, MemoryStore, Store, StoreError, SyncStore};
use slidegate_tower::{OnDrop, RateLimitLayer, Settlement, WhenMissing, extract};
use tokio::sync::{mpsc, oneshot};
use tower::{Layer, ServiceExt, service_fn};

use crate::layer::fixture::{MINUTE, StoreFixture, TestClient, serve};

const LIMITER_KEY: &str = "ann";

/// A limiter of three requests per minute, and the fixture that created it.
struct ThreePerMinuteLimiter<S> {
    fixture: StoreFixture<S>,
    limiter: Arc<Limiter<S>>,
}

impl<S: Store> ThreePerMinuteLimiter<S> {
    fn new(fixture: StoreFixture<S>) -> Self {
        Self { limiter: Arc::new(fixture.limiter(3, MINUTE)), fixture }
    }

    fn layer(&self) -> RateLimitLayer {
        RateLimitLayer::keyed_by(
            self.limiter.clone(),
            extract::value(LIMITER_KEY),
            WhenMissing::Deny,
        )
    }

    async fn remaining(&self) -> u64 {
        self.limiter.peek_async(Check::new(LIMITER_KEY).cost(0)).await.remaining()
    }

    /// Waits until other tasks have changed the remaining quota to the expected value. Panics if they do not.
    async fn wait_for_remaining_units(&self, expected: u64) {
        for _ in 0..1000 {
            if self.remaining().await == expected {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("{} remaining, expected {expected}: {:?}", self.remaining().await, self.fixture);
    }
}

/// A value that sends a signal when it is dropped.
struct DropSignal(Option<oneshot::Sender<()>>);

impl Drop for DropSignal {
    fn drop(&mut self) {
        let _ = self.0.take().map(|sender| sender.send(()));
    }
}

/// Returns a router whose handler never responds, and a channel. For each call, the channel delivers a receiver, which
/// is notified when the handler of this call is dropped.
fn never_responding_router() -> (Router, mpsc::UnboundedReceiver<oneshot::Receiver<()>>) {
    let (started, calls) = mpsc::unbounded_channel();
    let handler = move || {
        let (sender, is_dropped) = oneshot::channel();
        started.send(is_dropped).unwrap();
        async move {
            let _signal = DropSignal(Some(sender));
            std::future::pending::<()>().await;
        }
    };
    (Router::new().route("/", get(handler)), calls)
}

/// Sends a request, disconnects when the handler has begun, and waits until the handler is dropped.
async fn disconnect_during_call(
    http: &TestClient,
    calls: &mut mpsc::UnboundedReceiver<oneshot::Receiver<()>>,
) {
    let client = http.clone();
    let request = tokio::spawn(async move { client.get("/").await });
    let is_dropped = calls.recv().await.unwrap();
    request.abort();
    is_dropped.await.unwrap();
}

#[tokio::test]
async fn dropped_call_keeps_charge() {
    with_both_stores!(|fixture| {
        let limited = ThreePerMinuteLimiter::new(fixture);
        // A settle function alone does not revert dropped calls.
        for layer in [limited.layer(), limited.layer().settle(|_| Settlement::Revert)] {
            let before = limited.remaining().await;
            let (app, mut calls) = never_responding_router();
            let http = serve(app.layer(layer)).await;
            disconnect_during_call(&http, &mut calls).await;
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert_eq!(limited.remaining().await, before - 1, "{:?}", limited.fixture);
        }
    });
}

#[tokio::test]
async fn charge_of_dropped_call_is_reverted_if_configured() {
    with_both_stores!(|fixture| {
        let limited = ThreePerMinuteLimiter::new(fixture);
        let (app, mut calls) = never_responding_router();
        let http = serve(app.layer(limited.layer().on_drop(OnDrop::Revert))).await;
        for _ in 0..5 {
            disconnect_during_call(&http, &mut calls).await;
            limited.wait_for_remaining_units(3).await;
        }
    });
}

#[tokio::test]
async fn sync_store_reverts_charge_of_dropped_call_immediately() {
    let limited = ThreePerMinuteLimiter::new(StoreFixture::with_sync_store());
    let layer = limited.layer().on_drop(OnDrop::Revert);
    let pending = layer.layer(service_fn(|_: Request<Body>| {
        std::future::pending::<Result<Response<Body>, Infallible>>()
    }));
    let mut call = Box::pin(pending.oneshot(Request::new(Body::empty())));
    assert!(poll_once(call.as_mut()).is_pending());
    assert_eq!(limited.remaining().await, 2);
    drop(call);
    assert_eq!(limited.remaining().await, 3);
}

fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> std::task::Poll<F::Output> {
    future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
}

#[tokio::test]
async fn completed_call_keeps_charge() {
    with_both_stores!(|fixture| {
        let limited = ThreePerMinuteLimiter::new(fixture);
        let app = Router::new().route("/", get(async || "hello"));
        let http = serve(app.layer(limited.layer().on_drop(OnDrop::Revert))).await;
        for status in [200, 200, 200, 429] {
            assert_eq!(http.get("/").await.status, status, "{:?}", limited.fixture);
        }
    });
}

async fn panicking_handler() -> &'static str {
    panic!("expected failure")
}

#[tokio::test]
async fn panicking_handler_keeps_charge() {
    with_both_stores!(|fixture| {
        let limited = ThreePerMinuteLimiter::new(fixture);
        for (layer, remaining) in [
            (limited.layer().settle(|_| Settlement::Revert), 2),
            (limited.layer(), 1),
            (limited.layer().on_drop(OnDrop::Revert), 1),
        ] {
            let app = Router::new().route("/", get(panicking_handler));
            let http = serve(app.layer(layer)).await;
            assert!(http.try_send(http.request("/")).await.is_none());
            limited.wait_for_remaining_units(remaining).await;
        }
    });
}

#[tokio::test]
async fn failing_service_keeps_charge() {
    with_both_stores!(|fixture| {
        let limited = ThreePerMinuteLimiter::new(fixture);
        for (layer, remaining) in [
            (limited.layer().settle(|_| Settlement::Revert), 2),
            (limited.layer().on_drop(OnDrop::Revert), 1),
        ] {
            let failing = layer.layer(service_fn(async |_: Request<Body>| {
                Err::<Response<Body>, _>(io::Error::other("expected failure"))
            }));
            let error = failing.oneshot(Request::new(Body::empty())).await.unwrap_err();
            assert_eq!(error.to_string(), "expected failure");
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert_eq!(limited.remaining().await, remaining, "{:?}", limited.fixture);
        }
    });
}

/// A store that charges immediately, but returns the result only when the test permits it.
struct StoreWithDelayedResults {
    store: MemoryStore,
    charged: mpsc::UnboundedSender<oneshot::Sender<()>>,
}

impl Store for StoreWithDelayedResults {
    type Kind = Asynchronous;

    async fn charge_async(&self, call: &[Hit<'_>]) -> Result<ChargeResult, StoreError> {
        let result = self.store.charge(call);
        let (permit, is_permitted) = oneshot::channel();
        self.charged.send(permit).unwrap();
        is_permitted.await.unwrap();
        Ok(result)
    }

    async fn charge_many_async(
        &self,
        calls: &[&[Hit<'_>]],
    ) -> Result<Vec<ChargeResult>, StoreError> {
        self.store.charge_many_async(calls).await
    }

    async fn peek_async(&self, call: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        self.store.peek_async(call).await
    }

    async fn adjust_async(
        &self,
        receipt: &Receipt,
        adjustment: Adjustment,
    ) -> Result<(), StoreError> {
        self.store.adjust_async(receipt, adjustment).await
    }

    async fn edit_async(&self, hits: &[Hit<'_>], edit: Edit) -> Result<Outcomes, StoreError> {
        self.store.edit_async(hits, edit).await
    }
}

#[tokio::test]
async fn charge_of_call_dropped_during_decision_is_reverted() {
    let (charged, mut charges) = mpsc::unbounded_channel();
    let store = StoreWithDelayedResults { store: MemoryStore::new(), charged };
    let limiter = Arc::new(Limiter::with_store("limiter", ["3/min"], store).unwrap());
    let layer =
        RateLimitLayer::keyed_by(limiter.clone(), extract::value(LIMITER_KEY), WhenMissing::Deny)
            .on_drop(OnDrop::Revert);
    let service = layer.layer(service_fn(async |_: Request<Body>| {
        Ok::<_, Infallible>(Response::new(Body::empty()))
    }));
    let remaining = async || limiter.peek_async(Check::new(LIMITER_KEY).cost(0)).await.remaining();
    for is_dropped_first in [true, false] {
        let call = tokio::spawn(service.clone().oneshot(Request::new(Body::empty())));
        let permit = charges.recv().await.unwrap();
        assert_eq!(remaining().await, 2);
        if !is_dropped_first {
            // The store has responded, and the call has not polled the response yet.
            permit.send(()).unwrap();
            call.abort();
        } else {
            call.abort();
            assert!(call.await.unwrap_err().is_cancelled());
            permit.send(()).unwrap();
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(remaining().await, 3, "dropped first: {is_dropped_first}");
    }
    let call = tokio::spawn(service.oneshot(Request::new(Body::empty())));
    charges.recv().await.unwrap().send(()).unwrap();
    assert_eq!(call.await.unwrap().unwrap().status(), 200);
    assert_eq!(remaining().await, 2);
}
