//! While the store does not answer.

use std::num::NonZeroU32;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use serde_json::json;
use slidegate::testkit::faulty::{Faults, FaultyStore};
use slidegate_tower::{Attributes, OnStoreError, RateLimitLayer, Settle, WhenMissing, extract};

use crate::rig::{Answer, Http, Rig, hello, serve};

/// No test takes so long.
const DAY: Duration = Duration::from_secs(86_400);

pub const UNREACHABLE: Faults = Faults { unavailable: 100, lost_before: 0, lost_after: 0 };
const SILENT: Faults = Faults { unavailable: 0, lost_before: 100, lost_after: 0 };
const LATE: Faults = Faults { unavailable: 0, lost_before: 0, lost_after: 100 };
const NONE: Faults = Faults { unavailable: 0, lost_before: 0, lost_after: 0 };

/// A store that does not answer, in each of three ways.
fn outages() -> [Rig<FaultyStore>; 3] {
    [UNREACHABLE, SILENT, LATE].map(|faults| {
        let rig = Rig::awaited();
        rig.set_faults(faults);
        rig
    })
}

/// Two a day for all.
async fn two_a_day(rig: &Rig<FaultyStore>, on_store_error: OnStoreError) -> Http {
    let limiter = rig.limiter(2, DAY).named("all");
    let layer = RateLimitLayer::keyed_by(limiter, extract::value("all"), WhenMissing::Deny)
        .on_store_error(on_store_error);
    serve(hello().layer(layer)).await
}

fn is_reduced_capacity(answer: &Answer) {
    assert_eq!((answer.status, answer.retry_after()), (503, None));
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    // Of limits that were not asked nothing is known.
    assert_eq!((answer.header("ratelimit"), answer.header("ratelimit-policy")), (None, None));
    assert_eq!(
        answer.json(),
        json!({
            "type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            "title": "Temporary reduced capacity",
            "status": 503,
            "reason": "store_unavailable",
            "violated-policies": [],
        })
    );
}

#[tokio::test]
async fn a_limiter_lets_pass_what_it_cannot_count_where_that_is_the_choice() {
    for rig in outages() {
        let http = two_a_day(&rig, OnStoreError::Allow).await;
        for _ in 0..4 {
            let answer = http.get("/").await;
            assert_eq!((answer.status, answer.header("ratelimit")), (200, None));
        }
    }
}

#[tokio::test]
async fn a_limiter_denies_what_it_cannot_count_where_that_is_the_choice() {
    for rig in outages() {
        let http = two_a_day(&rig, OnStoreError::Deny).await;
        is_reduced_capacity(&http.get("/").await);
    }
    let rig = Rig::awaited();
    let http = two_a_day(&rig, OnStoreError::Deny).await;
    assert_eq!(http.get("/").await.status, 200);
    rig.set_faults(UNREACHABLE);
    is_reduced_capacity(&http.get("/").await);
    rig.set_faults(NONE);
    // Nothing was charged for what was denied.
    assert_eq!(http.get("/").await.header("ratelimit"), Some("\"all\";r=0;t=86400"));
}

#[tokio::test]
async fn a_limiter_counts_in_memory_meanwhile_if_nothing_else_is_said() {
    for rig in outages() {
        let limiter = rig.limiter(2, DAY).named("all");
        let layer = RateLimitLayer::keyed_by(limiter, extract::value("all"), WhenMissing::Deny)
            .inspect(|_, ruling| assert!(ruling.decision().is_degraded()));
        let http = serve(hello().layer(layer)).await;
        for (status, left) in [(200, 1), (200, 0), (429, 0)] {
            let answer = http.get("/").await;
            assert_eq!(answer.status, status);
            let stands = answer.header("ratelimit").unwrap();
            assert!(stands.starts_with(&format!("\"all\";r={left};t=")), "{stands}");
            assert_eq!(answer.retry_after().is_some(), status == 429);
        }
    }
}

/// Each instance enforces its share, as with a gate, and reports it in the headers.
#[tokio::test]
async fn a_limiter_enforces_its_share_in_memory() {
    let four = NonZeroU32::new(4).unwrap();
    for rig in outages() {
        let limiter = rig.limiter(8, DAY).named("all").with_instances(four);
        let layer = RateLimitLayer::keyed_by(limiter, extract::value("all"), WhenMissing::Deny);
        let http = serve(hello().layer(layer)).await;
        for status in [200, 200, 429] {
            let answer = http.get("/").await;
            assert_eq!(answer.status, status);
            assert_eq!(answer.header("ratelimit-policy"), Some("\"all\";q=2;w=86400"));
        }
    }
}

#[tokio::test]
async fn a_gate_does_what_its_rules_say() {
    for rig in outages() {
        let gate = rig.gate(
            "rules:
              - { name: a, when: { path: /allow }, limits: [2/d], on_store_error: allow }
              - { name: b, when: { path: /deny }, limits: [2/d], on_store_error: deny }
              - { name: c, when: { path: /local }, limits: [2/d], on_store_error: local }",
        );
        let layer = RateLimitLayer::new(gate, Attributes::new().with("path", extract::path()));
        let app = Router::new().route("/{any}", get(async || "hello")).layer(layer);
        let http = serve(app).await;
        for status in [200, 200, 429] {
            assert_eq!(http.get("/allow").await.status, 200);
            is_reduced_capacity(&http.get("/deny").await);
            assert_eq!(http.get("/local").await.status, status);
        }
    }
}

#[tokio::test]
async fn an_outage_leaves_nothing_in_the_headers_that_no_longer_holds() {
    let rig = Rig::awaited();
    let gate = |on_store_error: &str| {
        let limits =
            format!("limits: [5/d], on_store_error: {on_store_error}, algorithm: sliding_log");
        let gate = rig.gate(&format!("rules: [{{ name: {on_store_error}, {limits} }}]"));
        hello().layer(RateLimitLayer::new(gate, Attributes::new()))
    };
    let [allow, deny, local] = ["allow", "deny", "local"].map(gate).map(serve);
    let (allow, deny, local) = (allow.await, deny.await, local.await);
    for left in [4, 3] {
        rig.set_faults(NONE);
        for (name, http) in [("allow", &allow), ("deny", &deny), ("local", &local)] {
            let answer = http.get("/").await;
            let policy = format!("\"{name}\";q=5;w=86400");
            assert_eq!(answer.header("ratelimit-policy"), Some(&*policy));
            let stands = format!("\"{name}\";r={left};t=86400");
            assert_eq!(answer.header("ratelimit"), Some(&*stands));
        }
        rig.set_faults(UNREACHABLE);
        is_reduced_capacity(&deny.get("/").await);
        let allowed = allow.get("/").await;
        assert_eq!((allowed.status, allowed.header("ratelimit-policy")), (200, None));
        let policy = Some("\"local\";q=5;w=86400");
        assert_eq!(local.get("/").await.header("ratelimit-policy"), policy);
    }
}

#[tokio::test]
async fn what_was_counted_in_memory_is_settled_there() {
    for rig in outages() {
        let gate = rig.gate("rules: [{ name: all, limits: [2/d] }]");
        let gate = RateLimitLayer::new(gate, Attributes::new()).settle(|_| Settle::Revert);
        let limiter = rig.limiter(2, DAY);
        let limiter = RateLimitLayer::keyed_by(limiter, extract::value("all"), WhenMissing::Deny)
            .settle(|_| Settle::Revert);
        for app in [hello().layer(gate), hello().layer(limiter)] {
            let http = serve(app).await;
            for _ in 0..5 {
                assert_eq!(http.get("/").await.status, 200);
            }
        }
    }
}

#[tokio::test]
async fn a_charge_that_the_store_does_not_settle_stays_and_the_answer_comes_all_the_same() {
    let rig = Rig::awaited();
    let gate = rig.gate("rules: [{ name: all, limits: [2/d], algorithm: sliding_log }]");
    let fails_meanwhile = rig.clone();
    let layer = RateLimitLayer::new(gate, Attributes::new()).settle(|_| Settle::Revert);
    let handler = async move || {
        fails_meanwhile.set_faults(UNREACHABLE);
        "hello"
    };
    let http = serve(Router::new().route("/", get(handler)).layer(layer)).await;
    for left in [1, 0] {
        let answer = http.get("/").await;
        let stands = format!("\"all\";r={left};t=86400");
        assert_eq!((&*answer.body, answer.header("ratelimit")), ("hello", Some(&*stands)));
        rig.set_faults(NONE);
    }
    assert_eq!(http.get("/").await.status, 429);
}
