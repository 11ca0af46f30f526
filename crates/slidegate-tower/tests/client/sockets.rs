//! Against servers on sockets, by reqwest. Time is paused: nothing but the client's waits lets it go on,
//! since neither the server nor reqwest has a timer here.

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

use crate::scripted::seconds;
use crate::spike::Server;

/// Serves at the address that it returns.
async fn serve(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
    format!("http://{address}/")
}

type Client = BoxCloneSyncService<Request<Bytes>, Response<reqwest::Body>, reqwest::Error>;

/// reqwest behind the layer.
fn client(layer: RetryLayer) -> Client {
    // Its pool would look after idle connections by a timer.
    let http = reqwest::Client::builder().pool_idle_timeout(None).no_proxy().build().unwrap();
    let http = service_fn(move |request: Request<Bytes>| {
        let answer = reqwest::Request::try_from(request).map(|request| http.execute(request));
        async move { Ok(Response::from(answer?.await?)) }
    });
    BoxCloneSyncService::new(layer.layer(http))
}

async fn text(answer: Response<reqwest::Body>) -> String {
    reqwest::Response::from(answer).text().await.unwrap()
}

/// Denies twice, a long body each time; then tells what it got.
async fn third_time(State(asked): State<Arc<AtomicU64>>, body: Bytes) -> Response<Body> {
    let answer = match asked.fetch_add(1, Ordering::Relaxed) {
        0 => Response::builder().status(429).header("retry-after", 3),
        1 => Response::builder().status(503).header("ratelimit", r#""all";r=0;t=4"#),
        _ => return Response::new(format!("{} of {:?}", body.len(), body.first()).into()),
    };
    answer.body(vec![b'.'; 300_000].into()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn on_a_socket_it_waits_and_sends_the_body_again_whole() {
    let asked = Arc::new(AtomicU64::new(0));
    let url = serve(Router::new().fallback(third_time).with_state(Arc::clone(&asked))).await;
    let began = Instant::now();
    let body = Bytes::from(vec![42; 1_000_000]);
    let client = client(RetryLayer::new().jitter(Jitter::NONE));
    let answer =
        client.clone().oneshot(Request::put(&url).body(body.clone()).unwrap()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(text(answer).await, "1000000 of Some(42)");
    assert_eq!((began.elapsed(), asked.load(Ordering::Relaxed)), (seconds(7), 3));

    // A POST gets what there is, with its body.
    asked.store(0, Ordering::Relaxed);
    let answer = client.oneshot(Request::post(&url).body(body).unwrap()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(text(answer).await.len(), 300_000);
    assert_eq!((began.elapsed(), asked.load(Ordering::Relaxed)), (seconds(7), 1));
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_three_in_ten_seconds_serves_ten_requests_in_thirty() {
    let server = Arc::new(Server::new("3/10s", Jitter::NONE));
    let state = Arc::clone(&server);
    let app = Router::new().fallback(async move || state.answer().map(|()| Body::empty()));
    let url = serve(app).await;
    let client = client(RetryLayer::new().jitter(Jitter::NONE));
    let began = Instant::now();
    for _ in 0..10 {
        let request = Request::get(&url).body(Bytes::new()).unwrap();
        assert_eq!(client.clone().oneshot(request).await.unwrap().status(), 200);
    }
    let late = began.elapsed() - seconds(30);
    assert!(late < Duration::from_millis(10), "{late:?}");
    // One denial for each wait: nobody asked before it was told to.
    assert_eq!(server.arrivals().len(), 13);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_gone_is_an_error_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let began = Instant::now();
    let request = Request::get(&url).body(Bytes::new()).unwrap();
    let error = client(RetryLayer::new()).oneshot(request).await.unwrap_err();
    assert!(error.is_connect(), "{error}");
    assert_eq!(began.elapsed(), Duration::ZERO);
}
