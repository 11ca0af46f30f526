//! Minimal services with different rate limits.

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

/// The number of clients, high enough that the distribution over shards hardly matters.
const CLIENTS: usize = 512;

/// The number of requests before the counted ones: two of each client.
const WARM_UP: usize = 2 * CLIENTS;

/// The limit of each client per hour, which is never reached.
const MAX: u32 = 1_000_000;

/// A service with or without a rate limit.
pub struct Case {
    pub name: &'static str,
    pub title: &'static str,
    build: fn() -> Router,
    /// The headers that the limit adds to an allowed response.
    pub headers: &'static [&'static str],
    /// The target, if any.
    pub target: Option<&'static BenchTarget>,
}

/// All cases. The first has no layer, the second has the layer of tower_governor.
pub const CASES: &[Case] = &[
    Case { name: "bare", title: "no layer", build: base_service, headers: &[], target: None },
    Case {
        name: "tower_governor",
        title: "tower_governor, per peer address",
        build: tower_governor,
        headers: &["x-ratelimit-limit", "x-ratelimit-remaining"],
        target: None,
    },
    Case {
        name: "limiter",
        title: "slidegate, a limiter per peer address",
        build: limiter,
        headers: &["ratelimit-policy", "ratelimit"],
        target: Some(&crate::LIMITER_INSTRUCTIONS),
    },
    Case {
        name: "gate",
        title: "slidegate, a gate with one rule per peer address",
        build: gate,
        headers: &["ratelimit-policy", "ratelimit"],
        target: Some(&crate::GATE_INSTRUCTIONS),
    },
    Case {
        name: "nothing",
        title: "a layer without effect",
        build: noop_layer,
        headers: &[],
        target: None,
    },
];

fn base_service() -> Router {
    Router::new().route("/", get(async || "Hello, World!"))
}

/// Returns a service with a layer without effect, which shows axum's cost of a layer.
fn noop_layer() -> Router {
    base_service().layer(Identity::new())
}

fn tower_governor() -> Router {
    let mut config = GovernorConfigBuilder::default();
    config.period(Duration::from_secs(3600) / MAX).burst_size(MAX);
    match config.use_headers().finish() {
        Some(config) => base_service().layer(GovernorLayer::new(config)),
        None => unreachable!("neither the period nor the burst is zero"),
    }
}

fn limiter() -> Router {
    match Limiter::new([format!("{MAX}/h").as_str()]) {
        Ok(limiter) => {
            base_service().layer(RateLimitLayer::keyed_by(limiter, peer(), WhenMissing::Skip))
        }
        Err(error) => unreachable!("{error}"),
    }
}

fn gate() -> Router {
    let policy = format!("rules: [{{ name: limiter, per: [ip], limits: [{MAX}/h] }}]");
    match Policy::from_yaml(&policy) {
        Ok(policy) => {
            let gate = Gate::new(policy, MemoryStore::new());
            base_service().layer(RateLimitLayer::new(gate, Attributes::new().with("ip", peer())))
        }
        Err(error) => unreachable!("{error}"),
    }
}

fn peer() -> impl Extract {
    extract::client_ip(TrustedProxies::none())
}

impl Case {
    /// Warms up, and then sends the counted requests.
    pub fn run(&self, requests: usize) -> Result<(), String> {
        let router = (self.build)();
        self.check_response(&send_request(&router, 0))?;
        (0..WARM_UP).for_each(|nth| drop(send_request(&router, nth)));
        match run_counted_requests(&router, requests) {
            0 => self.check_response(&send_request(&router, 0)),
            failed => Err(format!("{}: {failed} requests were not allowed", self.name)),
        }
    }

    /// Checks that a response is allowed and has the headers.
    fn check_response(&self, response: &Response<Body>) -> Result<(), String> {
        let missing = self.headers.iter().find(|name| !response.headers().contains_key(**name));
        match missing {
            _ if !response.status().is_success() => Err(format!("{}: {response:?}", self.name)),
            Some(name) => Err(format!("{}: no `{name}` in {response:?}", self.name)),
            None => Ok(()),
        }
    }
}

/// Sends the counted requests and returns the number of requests that were not allowed. Callgrind finds this function
/// by its name, so the warm-up is not counted.
#[inline(never)]
fn run_counted_requests(router: &Router, requests: usize) -> usize {
    (0..requests).filter(|&nth| !send_request(router, nth).status().is_success()).count()
}

/// Calls the service with a request of a client, without sockets and without a runtime, since the service never waits.
fn send_request(router: &Router, nth: usize) -> Response<Body> {
    let mut response = pin!(router.clone().oneshot(request(nth)));
    match response.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(response)) => response,
        Poll::Pending => unreachable!("the service does not wait"),
    }
}

/// Returns the `nth` request, which is the same for all cases.
fn request(nth: usize) -> Request<Body> {
    let client = Ipv4Addr::from_bits(0xcb00_7100 + (nth % CLIENTS) as u32);
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(ConnectInfo(SocketAddr::new(IpAddr::V4(client), 40_000)));
    request
}
