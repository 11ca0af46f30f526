//! Defines the compared cases: minimal axum services with different rate limits.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, Response};
use axum::routing::get;
use lab::targets::BenchTarget;
use slidegate::{Gate, Limiter, MemoryStore, Policy};
use slidegate_tower::extract::{self, Extract};
use slidegate_tower::{Attributes, RateLimitLayer, TrustedProxies, WhenMissing};
use tower::ServiceExt;
use tower::layer::util::Identity;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

/// The number of clients, which send requests in turn. It is so high that the instruction counts hardly depend on the
/// distribution of the clients over the shards of a store.
const CLIENT_COUNT: usize = 512;

/// The number of requests before the counted requests: two requests of each client.
const WARM_UP_REQUESTS: usize = 2 * CLIENT_COUNT;

/// The number of requests that each client may send per hour. No client reaches this limit.
const REQUESTS_ALLOWED_PER_HOUR: u32 = 1_000_000;

/// A compared case: an axum service with or without a rate limit.
pub struct Case {
    pub name: &'static str,
    pub title: &'static str,
    build: fn() -> Router,
    /// The names of the headers that the rate limit adds to the response of an allowed request.
    pub headers: &'static [&'static str],
    /// The target for the number of added instructions; `None` if the case has no target.
    pub target: Option<&'static BenchTarget>,
}

/// All cases. The first case has no layer, and the second case has the layer of tower_governor. The other cases are
/// compared with these two.
pub const CASES: &[Case] = &[
    Case {
        name: "bare",
        title: "no layer",
        build: service_without_layers,
        headers: &[],
        target: None,
    },
    Case {
        name: "tower_governor",
        title: "tower_governor, per peer address",
        build: service_with_tower_governor,
        headers: &["x-ratelimit-limit", "x-ratelimit-remaining"],
        target: None,
    },
    Case {
        name: "limiter",
        title: "slidegate, a limiter per peer address",
        build: service_with_limiter,
        headers: &["ratelimit-policy", "ratelimit"],
        target: Some(&crate::MAX_LIMITER_INSTRUCTIONS_RELATIVE_TO_TOWER_GOVERNOR),
    },
    Case {
        name: "gate",
        title: "slidegate, a gate with one rule per peer address",
        build: service_with_gate,
        headers: &["ratelimit-policy", "ratelimit"],
        target: Some(&crate::MAX_GATE_INSTRUCTIONS_RELATIVE_TO_TOWER_GOVERNOR),
    },
    Case {
        name: "nothing",
        title: "a layer without effect",
        build: service_with_noop_layer,
        headers: &[],
        target: None,
    },
];

fn service_without_layers() -> Router {
    Router::new().route("/", get(async || "Hello, World!"))
}

/// Returns a service with a layer that does nothing. It shows the minimum cost of a layer in axum.
fn service_with_noop_layer() -> Router {
    service_without_layers().layer(Identity::new())
}

fn service_with_tower_governor() -> Router {
    let mut config = GovernorConfigBuilder::default();
    config
        .period(Duration::from_secs(3600) / REQUESTS_ALLOWED_PER_HOUR)
        .burst_size(REQUESTS_ALLOWED_PER_HOUR);
    match config.use_headers().finish() {
        Some(config) => service_without_layers().layer(GovernorLayer::new(config)),
        None => unreachable!("neither the period nor the burst is zero"),
    }
}

fn service_with_limiter() -> Router {
    match Limiter::new([format!("{REQUESTS_ALLOWED_PER_HOUR}/h").as_str()]) {
        Ok(limiter) => service_without_layers().layer(RateLimitLayer::keyed_by(
            limiter,
            new_peer_address_extractor(),
            WhenMissing::Skip,
        )),
        Err(error) => unreachable!("{error}"),
    }
}

fn service_with_gate() -> Router {
    let policy =
        format!("rules: [{{ name: limiter, per: [ip], limits: [{REQUESTS_ALLOWED_PER_HOUR}/h] }}]");
    match Policy::from_yaml(&policy) {
        Ok(policy) => {
            let gate = Gate::new(policy, MemoryStore::new());
            service_without_layers().layer(RateLimitLayer::new(
                gate,
                Attributes::new().with("ip", new_peer_address_extractor()),
            ))
        }
        Err(error) => unreachable!("{error}"),
    }
}

fn new_peer_address_extractor() -> impl Extract {
    extract::client_ip(TrustedProxies::none())
}

impl Case {
    /// Sends the requests of the warm-up, and then the counted requests.
    ///
    /// # Errors
    /// If a counted request is not allowed, or if a response lacks a header of the case.
    pub fn run(&self, requests: usize) -> Result<(), String> {
        let router = (self.build)();
        self.check_status_and_headers(&send_request(&router, 0))?;
        (0..WARM_UP_REQUESTS).for_each(|nth| drop(send_request(&router, nth)));
        match run_counted_requests(&router, requests) {
            0 => self.check_status_and_headers(&send_request(&router, 0)),
            failed => Err(format!("{}: {failed} requests were not allowed", self.name)),
        }
    }

    /// Returns an error if a response is not successful or lacks a header of the case.
    fn check_status_and_headers(&self, response: &Response<Body>) -> Result<(), String> {
        let missing = self.headers.iter().find(|name| !response.headers().contains_key(**name));
        match missing {
            _ if !response.status().is_success() => Err(format!("{}: {response:?}", self.name)),
            Some(name) => Err(format!("{}: no `{name}` in {response:?}", self.name)),
            None => Ok(()),
        }
    }
}

/// Sends the counted requests and returns the number of requests that were not allowed. Callgrind finds this function
/// by its name and counts only the instructions within it, so the warm-up is not counted.
#[inline(never)]
fn run_counted_requests(router: &Router, requests: usize) -> usize {
    (0..requests).filter(|&nth| !send_request(router, nth).status().is_success()).count()
}

/// Calls the service with the request with the number `nth`, and returns the response. No socket and no runtime are
/// needed, because the service never waits.
fn send_request(router: &Router, nth: usize) -> Response<Body> {
    let mut response = pin!(router.clone().oneshot(new_request(nth)));
    match response.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(response)) => response,
        Poll::Pending => unreachable!("the service does not wait"),
    }
}

/// Returns the request with the number `nth`, which has the address of a client. The request is the same for all cases.
fn new_request(nth: usize) -> Request<Body> {
    let client = Ipv4Addr::from_bits(0xcb00_7100 + (nth % CLIENT_COUNT) as u32);
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(ConnectInfo(SocketAddr::new(IpAddr::V4(client), 40_000)));
    request
}
