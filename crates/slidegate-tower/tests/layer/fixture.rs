//! A clock, a store, a server on a socket and its client.

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

/// The least by which a clock moves.
pub const TICK: Duration = Duration::from_micros(1);

/// Stores on a clock that stands still.
#[derive(Clone)]
pub struct Rig<S> {
    pub clock: ManualClock,
    /// Which stores they are: said by what fails.
    name: &'static str,
    store: Arc<dyn Fn() -> S + Send + Sync>,
}

/// Does the same with stores that answer at once, and with one that has to be waited for.
macro_rules! with_both {
    (|$rig:ident| $body:block) => {{
        let $rig = $crate::rig::Rig::at_once();
        $body
        let $rig = $crate::rig::Rig::awaited();
        $body
    }};
}

fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_secs(1_750_000_000))
}

impl Rig<MemoryStore<ManualClock>> {
    /// A store of its own for each limiter and gate.
    pub fn at_once() -> Self {
        let clock = clock();
        let of_store = clock.clone();
        let store = Arc::new(move || MemoryStore::with_clock(of_store.clone(), 10_000));
        Self { clock, name: "a store that answers at once", store }
    }
}

impl Rig<FaultyStore> {
    /// One store for all.
    pub fn awaited() -> Self {
        let clock = clock();
        let store = FaultyStore::new(&clock, 3, Faults::default(), 1);
        Self { clock, name: "a store that is awaited", store: Arc::new(move || store.clone()) }
    }

    /// From now on the store fails so.
    pub fn set_faults(&self, faults: Faults) {
        (self.store)().set_faults(faults);
    }
}

impl<S: Store> Rig<S> {
    pub fn gate(&self, policy: &str) -> Arc<Gate<S>> {
        Arc::new(Gate::new(Policy::from_yaml(policy).unwrap(), (self.store)()))
    }

    /// A limiter that counts exactly.
    pub fn limiter(&self, max: u64, window: Duration) -> Limiter<S> {
        let quota = Quota::new(max, window).unwrap();
        let limit = Limit::new(quota, Algorithm::SlidingLog).unwrap();
        Limiter::with_store([limit], (self.store)()).unwrap()
    }
}

impl<S> fmt::Debug for Rig<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A service that answers `/` with `hello`.
pub fn hello() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

/// A server on a socket, told who its peers are, and a client.
pub async fn serve(app: Router) -> Http {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    Http::of(address)
}

/// The same, but nobody tells the service who its peers are.
pub async fn serve_without_peers(app: Router) -> Http {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    Http::of(address)
}

/// A client of one server.
#[derive(Clone)]
pub struct Http {
    pub address: SocketAddr,
    client: Client<HttpConnector, Body>,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

impl Http {
    fn of(address: SocketAddr) -> Self {
        Self { address, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    /// A request to this path of the server.
    pub fn request(&self, path: &str) -> Builder {
        Request::get(format!("http://{}{path}", self.address))
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request(path)).await
    }

    /// Asks for `/` with one header.
    pub async fn get_with(&self, name: &str, value: &str) -> Answer {
        self.send(self.request("/").header(name, value)).await
    }

    pub async fn send(&self, request: Builder) -> Answer {
        self.try_send(request).await.unwrap()
    }

    /// None if the server hangs up.
    pub async fn try_send(&self, request: Builder) -> Option<Answer> {
        let response = self.client.request(request.body(Body::empty()).unwrap()).await.ok()?;
        let (parts, body) = response.into_parts();
        let body = body::to_bytes(Body::new(body), usize::MAX).await.ok()?;
        Some(Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: String::from_utf8(body.into()).unwrap(),
        })
    }
}

impl Answer {
    /// A header that is there once.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.get_all(name).iter();
        let value = values.next()?;
        assert!(values.next().is_none(), "{name} twice: {:?}", self.headers);
        Some(value.to_str().unwrap())
    }

    /// All headers of one name.
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// Seconds of `Retry-After`.
    pub fn retry_after(&self) -> Option<u64> {
        self.header("retry-after").map(|seconds| seconds.parse().unwrap())
    }
}
