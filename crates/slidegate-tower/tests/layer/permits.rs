//! Tests of limits on requests in flight: a permit is held until the response body has ended, or the client has
//! disconnected.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Request, StatusCode};
use axum::routing::get;
use http_body::{Body as HttpBody, Frame};
use slidegate::{Gate, Store};
use slidegate_tower::{Attributes, RateLimitLayer, Settlement, extract};
use tokio::sync::{Notify, mpsc};
use tokio::time::sleep;
use tower::{Layer, Service, ServiceExt};

use crate::layer::fixture::{StoreFixture, TestClient, serve};

const POLICY: &str = "
rules:
  - name: streams
    per: [user]
    limits: [1000/min, { name: in-flight, concurrent: 1, permit_ttl: 1s }]
";

/// A response body whose frames a test sends.
struct ChannelBody(mpsc::Receiver<Bytes>);

impl HttpBody for ChannelBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|data| data.map(|data| Ok(Frame::data(data))))
    }
}

fn layer<S: Store>(gate: Arc<Gate<S>>) -> RateLimitLayer {
    RateLimitLayer::new(gate, Attributes::new().with("user", extract::header("x-user")))
}

/// Starts a server whose path `/stream` responds with the frames that the returned sender receives.
async fn start_server<S: Store>(
    gate: Arc<Gate<S>>,
) -> (TestClient, mpsc::Receiver<mpsc::Sender<Bytes>>) {
    let (streams, started) = mpsc::channel(10);
    let stream = move || {
        let streams = streams.clone();
        async move {
            let (frames, body) = mpsc::channel(10);
            streams.send(frames).await.unwrap();
            Body::new(ChannelBody(body))
        }
    };
    let router = Router::new().route("/stream", get(stream)).route("/", get(async || "hello"));
    (serve(router.layer(layer(gate).hold_permits())).await, started)
}

async fn status(http: &TestClient, path: &str) -> u16 {
    http.send(http.request(path).header("x-user", "ann")).await.status
}

/// Waits until a request is allowed, for at most five seconds. A release over an asynchronous store takes a moment.
async fn assert_becomes_free(http: &TestClient) {
    for _ in 0..500 {
        if status(http, "/").await == 200 {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("the permit was not released");
}

#[tokio::test]
async fn permit_is_held_until_body_has_ended() {
    with_both_stores!(|fixture| {
        let (http, mut started) = start_server(fixture.gate(POLICY)).await;
        for _ in 0..3 {
            assert_eq!(status(&http, "/").await, 200, "{fixture:?}: a complete response");
        }
        let client = http.clone();
        let stream = tokio::spawn(async move { status(&client, "/stream").await });
        let frames = started.recv().await.unwrap();
        for _ in 0..3 {
            frames.send(Bytes::from_static(b"part")).await.unwrap();
            let denied = http.send(http.request("/").header("x-user", "ann")).await;
            assert_eq!((denied.status, denied.retry_after()), (429, None), "{fixture:?}");
            assert_eq!(denied.json()["reason"], "concurrency_exceeded");
        }
        drop(frames);
        assert_eq!(stream.await.unwrap(), 200);
        assert_becomes_free(&http).await;
    });
}

#[tokio::test]
async fn permit_is_released_if_client_disconnects() {
    with_both_stores!(|fixture| {
        let (http, mut started) = start_server(fixture.gate(POLICY)).await;
        let client = http.clone();
        let stream = tokio::spawn(async move { status(&client, "/stream").await });
        let frames = started.recv().await.unwrap();
        assert_eq!(status(&http, "/").await, 429, "{fixture:?}");
        stream.abort();
        // The server notices the disconnect when it sends the next frames.
        while frames.send(Bytes::from_static(b"part")).await.is_ok() {
            sleep(Duration::from_millis(1)).await;
        }
        assert_becomes_free(&http).await;
    });
}

#[tokio::test]
async fn permit_is_renewed_while_request_takes_longer_than_time_to_live() {
    with_both_stores!(|fixture| {
        let (http, mut started) = start_server(fixture.gate(POLICY)).await;
        let client = http.clone();
        let stream = tokio::spawn(async move { status(&client, "/stream").await });
        let frames = started.recv().await.unwrap();
        for _ in 0..4 {
            // The clock of the store follows the time of the renewals, at most half a time to live behind.
            sleep(Duration::from_millis(500)).await;
            fixture.clock.advance(Duration::from_millis(500));
            assert_eq!(status(&http, "/").await, 429, "{fixture:?}");
        }
        drop(frames);
        assert_eq!(stream.await.unwrap(), 200);
        assert_becomes_free(&http).await;
    });
}

#[tokio::test]
async fn permit_of_dropped_call_is_released() {
    with_both_stores!(|fixture| {
        let gate = fixture.gate(POLICY);
        let entered = Arc::new(Notify::new());
        let inner = tower::service_fn({
            let entered = entered.clone();
            move |_: Request<Body>| {
                let entered = entered.clone();
                async move {
                    entered.notify_one();
                    std::future::pending::<Result<axum::response::Response, std::convert::Infallible>>().await
                }
            }
        });
        let mut service = layer(gate.clone()).hold_permits().layer(inner);
        let request = || Request::builder().header("x-user", "ann").body(Body::empty()).unwrap();
        let call = tokio::spawn(service.ready().await.unwrap().call(request()));
        entered.notified().await;
        call.abort();
        let answer = tower::service_fn(async |_: Request<Body>| {
            Ok::<_, std::convert::Infallible>(axum::response::Response::new(Body::empty()))
        });
        let service = layer(gate).hold_permits().layer(answer);
        for attempt in 0.. {
            let response = service.clone().oneshot(request()).await.unwrap();
            if response.status() == StatusCode::OK {
                break;
            }
            assert!(attempt < 500, "{fixture:?}: the permit was not released");
            sleep(Duration::from_millis(10)).await;
        }
    });
}

/// A settlement follows the head of the response, and the permit its body.
#[tokio::test]
async fn permit_outlives_reverted_charge() {
    let policy =
        "rules: [{ name: a, per: [user], limits: [1/h, { concurrent: 1, permit_ttl: 1h }] }]";
    let user = || Attributes::new().with("user", extract::header("x-user"));
    let request = || Request::builder().header("x-user", "ann").body(Body::empty()).unwrap();
    with_both_stores!(|fixture| {
        let layer = RateLimitLayer::new(fixture.gate(policy), user());
        let layer = layer.settle(|_| Settlement::Revert).hold_permits();
        let service = layer.layer(tower::service_fn(async |_: Request<Body>| {
            Ok::<_, std::convert::Infallible>(axum::response::Response::new(Body::from("part")))
        }));
        let first = service.clone().oneshot(request()).await.unwrap();
        let second = service.clone().oneshot(request()).await.unwrap();
        assert_eq!((first.status().as_u16(), second.status().as_u16()), (200, 429), "{fixture:?}");
        assert_eq!(second.headers().get("retry-after"), None, "only the permit is missing");
    });
}

/// Without `hold_permits`, the permit ends with the head of the response.
#[tokio::test]
async fn permit_ends_with_response_head_by_default() {
    let fixture = StoreFixture::with_sync_store();
    let gate = fixture.gate(POLICY);
    let service = layer(gate).layer(tower::service_fn(async |_: Request<Body>| {
        Ok::<_, std::convert::Infallible>(axum::response::Response::new(Body::empty()))
    }));
    let request = || Request::builder().header("x-user", "ann").body(Body::empty()).unwrap();
    let first = service.clone().oneshot(request()).await.unwrap();
    assert_eq!(service.clone().oneshot(request()).await.unwrap().status(), 429);
    drop(first);
    assert_eq!(service.oneshot(request()).await.unwrap().status(), 200);
}
