//! Calls that end without an answer: the client hangs up, the handler panics, the service fails.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use axum::routing::get;
use slidegate::store::Outcomes;
use slidegate::{
    Asynchronous, ChargeResult, Hit, Limiter, MemoryStore, Receipt, Store, StoreError, SyncStore,
};
use slidegate_tower::{Backend, OnDrop, RateLimitLayer, Settlement, WhenMissing, extract};
use tokio::sync::{mpsc, oneshot};
use tower::{Layer, ServiceExt, service_fn};

use crate::rig::{Http, MINUTE, Rig, serve};

const KEY: &str = "ann";

/// Three a minute.
struct Three<S> {
    rig: Rig<S>,
    limiter: Arc<Limiter<S>>,
}

impl<S: Store> Three<S> {
    fn of(rig: Rig<S>) -> Self {
        Self { limiter: Arc::new(rig.limiter(3, MINUTE)), rig }
    }

    fn layer(&self) -> RateLimitLayer<impl Backend> {
        RateLimitLayer::keyed_by(self.limiter.clone(), extract::value(KEY), WhenMissing::Deny)
    }

    async fn left(&self) -> u64 {
        self.limiter.try_peek(KEY, 0).await.unwrap().decision().remaining()
    }

    /// Waits until others have done what leaves so many.
    async fn has_left(&self, expected: u64) {
        for _ in 0..1000 {
            if self.left().await == expected {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("{} left and not {expected}: {:?}", self.left().await, self.rig);
    }
}

/// Says that it is dropped.
struct Dropped(Option<oneshot::Sender<()>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.take().map(|dropped| dropped.send(()));
    }
}

/// A service that never answers; tells of each call when it begins, and by what to see that it has been dropped.
fn silent() -> (Router, mpsc::UnboundedReceiver<oneshot::Receiver<()>>) {
    let (begun, calls) = mpsc::unbounded_channel();
    let handler = move || {
        let (dropped, is_dropped) = oneshot::channel();
        begun.send(is_dropped).unwrap();
        async move {
            let _dropped = Dropped(Some(dropped));
            std::future::pending::<()>().await;
        }
    };
    (Router::new().route("/", get(handler)), calls)
}

/// A client that hangs up once the service is at work.
async fn hang_up(http: &Http, calls: &mut mpsc::UnboundedReceiver<oneshot::Receiver<()>>) {
    let own = http.clone();
    let request = tokio::spawn(async move { own.get("/").await });
    let is_dropped = calls.recv().await.unwrap();
    request.abort();
    is_dropped.await.unwrap();
}

#[tokio::test]
async fn who_hangs_up_has_been_charged() {
    with_both!(|rig| {
        let three = Three::of(rig);
        // To settle alone gives no back door.
        for layer in [three.layer(), three.layer().settle(|_| Settlement::Revert)] {
            let before = three.left().await;
            let (app, mut calls) = silent();
            let http = serve(app.layer(layer)).await;
            hang_up(&http, &mut calls).await;
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert_eq!(three.left().await, before - 1, "{:?}", three.rig);
        }
    });
}

#[tokio::test]
async fn who_hangs_up_gets_it_back_where_that_is_the_choice() {
    with_both!(|rig| {
        let three = Three::of(rig);
        let (app, mut calls) = silent();
        let http = serve(app.layer(three.layer().on_drop(OnDrop::Revert))).await;
        for _ in 0..5 {
            hang_up(&http, &mut calls).await;
            three.has_left(3).await;
        }
    });
}

#[tokio::test]
async fn a_call_is_given_back_at_once_where_the_store_does_not_wait() {
    let three = Three::of(Rig::at_once());
    let layer = three.layer().on_drop(OnDrop::Revert);
    let pending = layer.layer(service_fn(|_: Request<Body>| {
        std::future::pending::<Result<Response<Body>, Infallible>>()
    }));
    let mut call = Box::pin(pending.oneshot(Request::new(Body::empty())));
    assert!(poll_once(call.as_mut()).is_pending());
    assert_eq!(three.left().await, 2);
    drop(call);
    assert_eq!(three.left().await, 3);
}

fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> std::task::Poll<F::Output> {
    future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
}

#[tokio::test]
async fn an_answer_that_was_given_is_no_dropped_call() {
    with_both!(|rig| {
        let three = Three::of(rig);
        let app = Router::new().route("/", get(async || "hello"));
        let http = serve(app.layer(three.layer().on_drop(OnDrop::Revert))).await;
        for status in [200, 200, 200, 429] {
            assert_eq!(http.get("/").await.status, status, "{:?}", three.rig);
        }
    });
}

async fn panicking() -> &'static str {
    panic!("as arranged")
}

#[tokio::test]
async fn a_handler_that_panics_has_been_charged() {
    with_both!(|rig| {
        let three = Three::of(rig);
        for (layer, left) in [
            (three.layer().settle(|_| Settlement::Revert), 2),
            (three.layer(), 1),
            (three.layer().on_drop(OnDrop::Revert), 1),
        ] {
            let app = Router::new().route("/", get(panicking));
            let http = serve(app.layer(layer)).await;
            assert!(http.try_send(http.request("/")).await.is_none());
            three.has_left(left).await;
        }
    });
}

#[tokio::test]
async fn a_service_that_fails_without_an_answer_has_been_charged() {
    with_both!(|rig| {
        let three = Three::of(rig);
        for (layer, left) in [
            (three.layer().settle(|_| Settlement::Revert), 2),
            (three.layer().on_drop(OnDrop::Revert), 1),
        ] {
            let failing = layer.layer(service_fn(async |_: Request<Body>| {
                Err::<Response<Body>, _>(io::Error::other("as arranged"))
            }));
            let error = failing.oneshot(Request::new(Body::empty())).await.unwrap_err();
            assert_eq!(error.to_string(), "as arranged");
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert_eq!(three.left().await, left, "{:?}", three.rig);
        }
    });
}

/// A store that charges at once, and answers when the test allows it.
struct Late {
    store: MemoryStore,
    charged: mpsc::UnboundedSender<oneshot::Sender<()>>,
}

impl Store for Late {
    type Kind = Asynchronous;

    async fn take(&self, hits: &[Hit<'_>]) -> Result<ChargeResult, StoreError> {
        let taken = self.store.take_now(hits);
        let (answer, is_told_to) = oneshot::channel();
        self.charged.send(answer).unwrap();
        is_told_to.await.unwrap();
        Ok(taken)
    }

    async fn take_many(&self, asks: &[&[Hit<'_>]]) -> Result<Vec<ChargeResult>, StoreError> {
        self.store.take_many(asks).await
    }

    async fn peek(&self, hits: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        self.store.peek(hits).await
    }

    async fn revert(&self, receipt: &Receipt) -> Result<(), StoreError> {
        self.store.revert(receipt).await
    }

    async fn refund(&self, hits: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        self.store.refund(hits).await
    }

    async fn reset(&self, hits: &[Hit<'_>]) -> Result<(), StoreError> {
        self.store.reset(hits).await
    }
}

#[tokio::test]
async fn who_hangs_up_while_the_store_is_asked_gets_it_back_where_that_is_the_choice() {
    let (charged, mut charges) = mpsc::unbounded_channel();
    let late = Late { store: MemoryStore::new(), charged };
    let limiter = Arc::new(Limiter::with_store(["3/min"], late).unwrap());
    let layer = RateLimitLayer::keyed_by(limiter.clone(), extract::value(KEY), WhenMissing::Deny)
        .on_drop(OnDrop::Revert);
    let service = layer.layer(service_fn(async |_: Request<Body>| {
        Ok::<_, Infallible>(Response::new(Body::empty()))
    }));
    let left = async || limiter.try_peek(KEY, 0).await.unwrap().decision().remaining();
    for hangs_up_first in [true, false] {
        let call = tokio::spawn(service.clone().oneshot(Request::new(Body::empty())));
        let answer = charges.recv().await.unwrap();
        assert_eq!(left().await, 2);
        if !hangs_up_first {
            // The store has answered, and the call has not seen it yet.
            answer.send(()).unwrap();
            call.abort();
        } else {
            call.abort();
            assert!(call.await.unwrap_err().is_cancelled());
            answer.send(()).unwrap();
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(left().await, 3, "hangs up first: {hangs_up_first}");
    }
    let call = tokio::spawn(service.oneshot(Request::new(Body::empty())));
    charges.recv().await.unwrap().send(()).unwrap();
    assert_eq!(call.await.unwrap().unwrap().status(), 200);
    assert_eq!(left().await, 2);
}
