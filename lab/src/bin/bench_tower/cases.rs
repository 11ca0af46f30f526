//! Services that say hello, each with another rate limit before it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, Response};
use axum::routing::get;
use lab::targets::Aim;
use slidegate::{Gate, Limiter, MemoryStore, Policy};
use slidegate_tower::extract::{self, Extract};
use slidegate_tower::{Attributes, RateLimitLayer, TrustedProxies, WhenMissing};
use tower::ServiceExt;
use tower::layer::util::Identity;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

/// Whoever is counted for has this many neighbours, so that it hardly matters which of them meet in a shard.
const CLIENTS: usize = 512;

/// Requests before those that are counted: each client has then been there twice.
const WARM_UP: usize = 2 * CLIENTS;

/// What each client may do in an hour; never less than it does.
const MAX: u32 = 1_000_000;

/// A service with or without a rate limit.
pub struct Case {
    pub name: &'static str,
    pub title: &'static str,
    build: fn() -> Router,
    /// The headers that the limit adds to an allowed answer.
    pub headers: &'static [&'static str],
    /// What is aimed at.
    pub aim: Option<&'static Aim>,
}

/// Every case: first that without a layer, and second that with tower_governor's.
pub const ALL: &[Case] = &[
    Case { name: "bare", title: "no layer", build: hello, headers: &[], aim: None },
    Case {
        name: "tower_governor",
        title: "tower_governor, per peer's address",
        build: tower_governor,
        headers: &["x-ratelimit-limit", "x-ratelimit-remaining"],
        aim: None,
    },
    Case {
        name: "limiter",
        title: "slidegate, a limiter per peer's address",
        build: limiter,
        headers: &["ratelimit-policy", "ratelimit"],
        aim: Some(&crate::ADDED),
    },
    Case {
        name: "gate",
        title: "slidegate, a gate with one rule per peer's address",
        build: gate,
        headers: &["ratelimit-policy", "ratelimit"],
        aim: Some(&crate::ADDED_BY_A_GATE),
    },
    Case {
        name: "nothing",
        title: "a layer that does nothing",
        build: nothing,
        headers: &[],
        aim: None,
    },
];

fn hello() -> Router {
    Router::new().route("/", get(async || "Hello, World!"))
}

/// What axum takes for any layer at all.
fn nothing() -> Router {
    hello().layer(Identity::new())
}

fn tower_governor() -> Router {
    let mut config = GovernorConfigBuilder::default();
    config.period(Duration::from_secs(3600) / MAX).burst_size(MAX);
    match config.use_headers().finish() {
        Some(config) => hello().layer(GovernorLayer::new(config)),
        None => unreachable!("neither the period nor the burst is zero"),
    }
}

fn limiter() -> Router {
    match Limiter::new([format!("{MAX}/h").as_str()]) {
        Ok(limiter) => hello().layer(RateLimitLayer::keyed_by(limiter, peer(), WhenMissing::Skip)),
        Err(error) => unreachable!("{error}"),
    }
}

fn gate() -> Router {
    let policy = format!("rules: [{{ name: limiter, per: [ip], limits: [{MAX}/h] }}]");
    match Policy::from_yaml(&policy) {
        Ok(policy) => {
            let gate = Gate::new(policy, MemoryStore::new());
            hello().layer(RateLimitLayer::new(gate, Attributes::new().with("ip", peer())))
        }
        Err(error) => unreachable!("{error}"),
    }
}

fn peer() -> impl Extract {
    extract::client_ip(TrustedProxies::none())
}

impl Case {
    /// Warms up, and then makes the requests that are counted.
    pub fn run(&self, requests: usize) -> Result<(), String> {
        let router = (self.build)();
        self.look_at(&answer(&router, 0))?;
        (0..WARM_UP).for_each(|nth| drop(answer(&router, nth)));
        match count_instructions(&router, requests) {
            0 => self.look_at(&answer(&router, 0)),
            failed => Err(format!("{}: {failed} requests were not allowed", self.name)),
        }
    }

    /// Whether an answer is an allowed one that has the headers.
    fn look_at(&self, answer: &Response<Body>) -> Result<(), String> {
        let missing = self.headers.iter().find(|name| !answer.headers().contains_key(**name));
        match missing {
            _ if !answer.status().is_success() => Err(format!("{}: {answer:?}", self.name)),
            Some(name) => Err(format!("{}: no `{name}` in {answer:?}", self.name)),
            None => Ok(()),
        }
    }
}

/// Makes the requests that are counted; how many were not allowed. Callgrind knows this function by its
/// name, so that what is done once is not counted.
#[inline(never)]
fn count_instructions(router: &Router, requests: usize) -> usize {
    (0..requests).filter(|&nth| !answer(router, nth).status().is_success()).count()
}

/// What the service answers to a client's request, without sockets and without a runtime: nothing here waits.
fn answer(router: &Router, nth: usize) -> Response<Body> {
    let mut answer = pin!(router.clone().oneshot(request(nth)));
    match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(answer)) => answer,
        Poll::Pending => unreachable!("the service does not wait"),
    }
}

/// The same for every case.
fn request(nth: usize) -> Request<Body> {
    let client = Ipv4Addr::from_bits(0xcb00_7100 + (nth % CLIENTS) as u32);
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(ConnectInfo(SocketAddr::new(IpAddr::V4(client), 40_000)));
    request
}
