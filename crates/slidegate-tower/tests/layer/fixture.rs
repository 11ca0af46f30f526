//! Test fixtures: stores on a manual clock, servers on sockets, and their clients.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{self, Body};
use axum::http::request::Builder;
use axum::http::{HeaderMap, Request};
use axum::routing::get;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use slidegate::testkit::faulty::{Faults, FaultyStore};
use slidegate::{
    Algorithm, Gate, Limit, Limiter, ManualClock, MemoryStore, Policy, Quota, Store, Timestamp,
};
use tokio::net::TcpListener;

pub const MINUTE: Duration = Duration::from_secs(60);

/// The smallest step of a clock: one microsecond.
pub const TICK: Duration = Duration::from_micros(1);

/// A source of stores that share a manual clock.
#[derive(Clone)]
pub struct StoreFixture<S> {
    pub clock: ManualClock,
    /// The kind of store, for assertion messages.
    name: &'static str,
    store: Arc<dyn Fn() -> S + Send + Sync>,
}

/// Runs a test body twice: with synchronous stores, and with an asynchronous store.
macro_rules! with_both_stores {
    (|$fixture:ident| $body:block) => {{
        let $fixture = $crate::layer::fixture::StoreFixture::with_sync_store();
        $body
        let $fixture = $crate::layer::fixture::StoreFixture::with_async_store();
        $body
    }};
}

fn new_manual_clock() -> ManualClock {
    ManualClock::at(Timestamp::from_secs(1_750_000_000))
}

impl StoreFixture<MemoryStore<ManualClock>> {
    /// Creates a fixture with a separate memory store for each limiter and gate.
    pub fn with_sync_store() -> Self {
        let clock = new_manual_clock();
        let store_clock = clock.clone();
        let store = Arc::new(move || MemoryStore::with_clock(store_clock.clone(), 10_000));
        Self { clock, name: "synchronous store", store }
    }
}

impl StoreFixture<FaultyStore> {
    /// Creates a fixture with one asynchronous store for all limiters and gates.
    pub fn with_async_store() -> Self {
        let clock = new_manual_clock();
        let store = FaultyStore::new(&clock, 3, Faults::default(), 1);
        Self { clock, name: "asynchronous store", store: Arc::new(move || store.clone()) }
    }

    /// Sets the faults that the store injects into all later calls.
    pub fn set_faults(&self, faults: Faults) {
        (self.store)().set_faults(faults);
    }
}

impl<S: Store> StoreFixture<S> {
    pub fn gate(&self, policy: &str) -> Arc<Gate<S>> {
        Arc::new(Gate::new(Policy::from_yaml(policy).unwrap(), (self.store)()))
    }

    /// Returns a limiter with the exact algorithm `sliding_log`.
    pub fn limiter(&self, max: u64, window: Duration) -> Limiter<S> {
        let quota = Quota::new(max, window).unwrap();
        let limit = Limit::new(quota, Algorithm::SlidingLog).unwrap();
        Limiter::with_store("limiter", [limit], (self.store)()).unwrap()
    }
}

impl<S> fmt::Debug for StoreFixture<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Returns a router that responds to `/` with `hello`.
pub fn hello_router() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

/// Starts a server that adds the peer address to each request, and returns a client of the server.
pub async fn serve(app: Router) -> TestClient {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    TestClient::new(address)
}

/// Starts a server that does not add peer addresses to requests, and returns a client of the server.
pub async fn serve_without_peers(app: Router) -> TestClient {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    TestClient::new(address)
}

/// An HTTP client of one server.
#[derive(Clone)]
pub struct TestClient {
    pub address: SocketAddr,
    client: Client<HttpConnector, Body>,
}

/// A response that the test client received.
#[derive(Debug)]
pub struct TestResponse {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

impl TestClient {
    fn new(address: SocketAddr) -> Self {
        Self { address, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    /// Returns a GET request for a path of the server.
    pub fn request(&self, path: &str) -> Builder {
        Request::get(format!("http://{}{path}", self.address))
    }

    pub async fn get(&self, path: &str) -> TestResponse {
        self.send(self.request(path)).await
    }

    /// Sends a GET request for `/` with one header.
    pub async fn get_with_header(&self, name: &str, value: &str) -> TestResponse {
        self.send(self.request("/").header(name, value)).await
    }

    pub async fn send(&self, request: Builder) -> TestResponse {
        self.try_send(request).await.unwrap()
    }

    /// Sends a request. Returns `None` if the server closes the connection.
    pub async fn try_send(&self, request: Builder) -> Option<TestResponse> {
        let response = self.client.request(request.body(Body::empty()).unwrap()).await.ok()?;
        let (parts, body) = response.into_parts();
        let body = body::to_bytes(Body::new(body), usize::MAX).await.ok()?;
        Some(TestResponse {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: String::from_utf8(body.into()).unwrap(),
        })
    }
}

impl TestResponse {
    /// Returns the value of a header, or `None` if it is missing. Panics if the header is repeated.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.get_all(name).iter();
        let value = values.next()?;
        assert!(values.next().is_none(), "{name} is repeated: {:?}", self.headers);
        Some(value.to_str().unwrap())
    }

    /// Returns the values of all headers with this name.
    pub fn header_values(&self, name: &str) -> Vec<&str> {
        self.headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// Returns the value of `Retry-After` in seconds, or `None` if the header is missing.
    pub fn retry_after(&self) -> Option<u64> {
        self.header("retry-after").map(|seconds| seconds.parse().unwrap())
    }
}
