//! Tests of the retrying client over reqwest, with servers on sockets. Time is paused: only the waits of the client
//! advance it, because neither the server nor reqwest uses a timer here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use slidegate::Jitter;
use slidegate_tower::client::RetryLayer;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt, service_fn};

use crate::client::retry_spike::SimulatedServer;
use crate::client::test_util::seconds;

/// Starts a server on a socket, and returns its URL.
async fn start_server(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
    format!("http://{address}/")
}

type ReqwestClient = BoxCloneSyncService<Request<Bytes>, Response<reqwest::Body>, reqwest::Error>;

/// Returns a reqwest client that retries requests as the layer specifies.
fn reqwest_client(layer: RetryLayer) -> ReqwestClient {
    // An idle timeout of the pool would start a timer.
    let http = reqwest::Client::builder().pool_idle_timeout(None).no_proxy().build().unwrap();
    let http = service_fn(move |request: Request<Bytes>| {
        let response = reqwest::Request::try_from(request).map(|request| http.execute(request));
        async move { Ok(Response::from(response?.await?)) }
    });
    BoxCloneSyncService::new(layer.layer(http))
}

async fn read_body_text(response: Response<reqwest::Body>) -> String {
    reqwest::Response::from(response).text().await.unwrap()
}

/// Denies the first two requests, each with a long body. Responds to later requests with a description of the received
/// body.
async fn deny_first_two_requests(
    State(calls): State<Arc<AtomicU64>>,
    body: Bytes,
) -> Response<Body> {
    let response = match calls.fetch_add(1, Ordering::Relaxed) {
        0 => Response::builder().status(429).header("retry-after", 3),
        1 => Response::builder().status(503).header("ratelimit", r#""all";r=0;t=4"#),
        _ => return Response::new(format!("{} of {:?}", body.len(), body.first()).into()),
    };
    response.body(vec![b'.'; 300_000].into()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn retry_over_socket_resends_complete_body() {
    let calls = Arc::new(AtomicU64::new(0));
    let url = start_server(
        Router::new().fallback(deny_first_two_requests).with_state(Arc::clone(&calls)),
    )
    .await;
    let started = Instant::now();
    let body = Bytes::from(vec![42; 1_000_000]);
    let client = reqwest_client(RetryLayer::new().jitter(Jitter::NONE));
    let response =
        client.clone().oneshot(Request::put(&url).body(body.clone()).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(read_body_text(response).await, "1000000 of Some(42)");
    assert_eq!((started.elapsed(), calls.load(Ordering::Relaxed)), (seconds(7), 3));

    // A POST is not repeated: the denial is returned with its body.
    calls.store(0, Ordering::Relaxed);
    let response = client.oneshot(Request::post(&url).body(body).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(read_body_text(response).await.len(), 300_000);
    assert_eq!((started.elapsed(), calls.load(Ordering::Relaxed)), (seconds(7), 1));
}

#[tokio::test(start_paused = true)]
async fn retries_over_socket_wait_as_response_states() {
    let server = Arc::new(SimulatedServer::new("3/10s", Jitter::NONE));
    let state = Arc::clone(&server);
    let app = Router::new().fallback(async move || state.respond().map(|()| Body::empty()));
    let url = start_server(app).await;
    let client = reqwest_client(RetryLayer::new().jitter(Jitter::NONE));
    let started = Instant::now();
    for _ in 0..10 {
        let request = Request::get(&url).body(Bytes::new()).unwrap();
        assert_eq!(client.clone().oneshot(request).await.unwrap().status(), 200);
    }
    let late = started.elapsed() - seconds(30);
    assert!(late < Duration::from_millis(10), "{late:?}");
    // One denial for each wait: no request was sent too early.
    assert_eq!(server.arrivals().len(), 13);
}

#[tokio::test(start_paused = true)]
async fn request_to_unreachable_server_fails_immediately() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let started = Instant::now();
    let request = Request::get(&url).body(Bytes::new()).unwrap();
    let error = reqwest_client(RetryLayer::new()).oneshot(request).await.unwrap_err();
    assert!(error.is_connect(), "{error}");
    assert_eq!(started.elapsed(), Duration::ZERO);
}
