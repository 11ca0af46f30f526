//! Tests of decisions while the store is unavailable.

use std::num::NonZeroU32;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use serde_json::json;
use slidegate::OnStoreError;
use slidegate::store::LocalCountsOptions;
use slidegate::testkit::faulty::{Faults, FaultyStore};
use slidegate_tower::{Attributes, RateLimitLayer, Settlement, WhenMissing, extract};

use crate::layer::fixture::{StoreFixture, TestClient, TestResponse, hello_router, serve};

/// A window so long that it does not end during a test.
const DAY: Duration = Duration::from_secs(86_400);

pub const UNREACHABLE: Faults = Faults { unavailable: 100, lost_before: 0, lost_after: 0 };
const ALL_REQUESTS_LOST: Faults = Faults { unavailable: 0, lost_before: 100, lost_after: 0 };
const ALL_RESPONSES_LOST: Faults = Faults { unavailable: 0, lost_before: 0, lost_after: 100 };
const NO_FAULTS: Faults = Faults { unavailable: 0, lost_before: 0, lost_after: 0 };

/// Returns three fixtures with failing stores: the store is unreachable, its requests are lost, or its responses are
/// lost.
fn fixtures_with_outage() -> [StoreFixture<FaultyStore>; 3] {
    [UNREACHABLE, ALL_REQUESTS_LOST, ALL_RESPONSES_LOST].map(|faults| {
        let fixture = StoreFixture::with_async_store();
        fixture.set_faults(faults);
        fixture
    })
}

/// Starts a server that allows two requests per day for all clients together.
async fn serve_with_two_requests_per_day(
    fixture: &StoreFixture<FaultyStore>,
    on_store_error: OnStoreError,
) -> TestClient {
    let limiter = fixture.limiter(2, DAY).named("all").on_store_error(on_store_error);
    let layer = RateLimitLayer::keyed_by(limiter, extract::value("all"), WhenMissing::Deny);
    serve(hello_router().layer(layer)).await
}

fn assert_store_unavailable_response(response: &TestResponse) {
    assert_eq!((response.status, response.retry_after()), (503, None));
    assert_eq!(response.header("content-type"), Some("application/problem+json"));
    // The limits were not checked, so their state is unknown.
    assert_eq!((response.header("ratelimit"), response.header("ratelimit-policy")), (None, None));
    assert_eq!(
        response.json(),
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
async fn limiter_allows_during_outage_if_configured() {
    for fixture in fixtures_with_outage() {
        let http = serve_with_two_requests_per_day(&fixture, OnStoreError::Allow).await;
        for _ in 0..4 {
            let response = http.get("/").await;
            assert_eq!((response.status, response.header("ratelimit")), (200, None));
        }
    }
}

#[tokio::test]
async fn limiter_denies_during_outage_if_configured() {
    for fixture in fixtures_with_outage() {
        let http = serve_with_two_requests_per_day(&fixture, OnStoreError::Deny).await;
        assert_store_unavailable_response(&http.get("/").await);
    }
    let fixture = StoreFixture::with_async_store();
    let http = serve_with_two_requests_per_day(&fixture, OnStoreError::Deny).await;
    assert_eq!(http.get("/").await.status, 200);
    fixture.set_faults(UNREACHABLE);
    assert_store_unavailable_response(&http.get("/").await);
    fixture.set_faults(NO_FAULTS);
    // The denied request was not charged.
    assert_eq!(http.get("/").await.header("ratelimit"), Some("\"all\";r=0"));
}

#[tokio::test]
async fn limiter_counts_in_memory_during_outage() {
    for fixture in fixtures_with_outage() {
        let limiter = fixture.limiter(2, DAY).named("all");
        let layer = RateLimitLayer::keyed_by(limiter, extract::value("all"), WhenMissing::Deny)
            .inspect(|_, decision| assert!(decision.is_degraded()));
        let http = serve(hello_router().layer(layer)).await;
        for (status, start) in
            [(200, "\"all\";r=1;t="), (200, "\"all\";r=0"), (429, "\"all\";r=0;t=")]
        {
            let response = http.get("/").await;
            assert_eq!(response.status, status);
            let ratelimit = response.header("ratelimit").unwrap();
            assert!(ratelimit.starts_with(start), "{ratelimit}");
            assert_eq!(response.retry_after().is_some(), status == 429);
        }
    }
}

/// Checks that one of four instances enforces a quarter of the limit while the store is unavailable, and reports this
/// share in the headers.
#[tokio::test]
async fn limiter_enforces_instance_share_during_outage() {
    let instances = NonZeroU32::new(4).unwrap();
    for fixture in fixtures_with_outage() {
        let limiter = fixture
            .limiter(8, DAY)
            .named("all")
            .with_local_counts(LocalCountsOptions { instances, ..LocalCountsOptions::default() });
        let layer = RateLimitLayer::keyed_by(limiter, extract::value("all"), WhenMissing::Deny);
        let http = serve(hello_router().layer(layer)).await;
        for status in [200, 200, 429] {
            let response = http.get("/").await;
            assert_eq!(response.status, status);
            assert_eq!(response.header("ratelimit-policy"), Some("\"all\";q=2;w=86400"));
        }
    }
}

#[tokio::test]
async fn on_store_error_option_selects_decision_during_outage() {
    for fixture in fixtures_with_outage() {
        let gate = fixture.gate(
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
            assert_store_unavailable_response(&http.get("/deny").await);
            assert_eq!(http.get("/local").await.status, status);
        }
    }
}

#[tokio::test]
async fn rate_limit_headers_recover_after_outage() {
    let fixture = StoreFixture::with_async_store();
    let gate = |on_store_error: &str| {
        let limits =
            format!("limits: [5/d], on_store_error: {on_store_error}, algorithm: sliding_log");
        let gate = fixture.gate(&format!("rules: [{{ name: {on_store_error}, {limits} }}]"));
        hello_router().layer(RateLimitLayer::new(gate, Attributes::new()))
    };
    let [allow, deny, local] = ["allow", "deny", "local"].map(gate).map(serve);
    let (allow, deny, local) = (allow.await, deny.await, local.await);
    for remaining in [4, 3] {
        fixture.set_faults(NO_FAULTS);
        for (name, http) in [("allow", &allow), ("deny", &deny), ("local", &local)] {
            let response = http.get("/").await;
            let policy = format!("\"{name}\";q=5;w=86400");
            assert_eq!(response.header("ratelimit-policy"), Some(&*policy));
            let expected = format!("\"{name}\";r={remaining};t=86400");
            assert_eq!(response.header("ratelimit"), Some(&*expected));
        }
        fixture.set_faults(UNREACHABLE);
        assert_store_unavailable_response(&deny.get("/").await);
        let allowed = allow.get("/").await;
        assert_eq!((allowed.status, allowed.header("ratelimit-policy")), (200, None));
        let policy = Some("\"local\";q=5;w=86400");
        assert_eq!(local.get("/").await.header("ratelimit-policy"), policy);
    }
}

#[tokio::test]
async fn charge_during_outage_is_settled_in_memory() {
    for fixture in fixtures_with_outage() {
        let gate = fixture.gate("rules: [{ name: all, limits: [2/d] }]");
        let gate = RateLimitLayer::new(gate, Attributes::new()).settle(|_| Settlement::Revert);
        let limiter = fixture.limiter(2, DAY);
        let limiter = RateLimitLayer::keyed_by(limiter, extract::value("all"), WhenMissing::Deny)
            .settle(|_| Settlement::Revert);
        for app in [hello_router().layer(gate), hello_router().layer(limiter)] {
            let http = serve(app).await;
            for _ in 0..5 {
                assert_eq!(http.get("/").await.status, 200);
            }
        }
    }
}

#[tokio::test]
async fn failed_settlement_keeps_charge_and_sends_response() {
    let fixture = StoreFixture::with_async_store();
    let gate = fixture.gate("rules: [{ name: all, limits: [2/d], algorithm: sliding_log }]");
    let faulty = fixture.clone();
    let layer = RateLimitLayer::new(gate, Attributes::new()).settle(|_| Settlement::Revert);
    let handler = async move || {
        faulty.set_faults(UNREACHABLE);
        "hello"
    };
    let http = serve(Router::new().route("/", get(handler)).layer(layer)).await;
    for expected in ["\"all\";r=1;t=86400", "\"all\";r=0"] {
        let response = http.get("/").await;
        assert_eq!((&*response.body, response.header("ratelimit")), ("hello", Some(expected)));
        fixture.set_faults(NO_FAULTS);
    }
    assert_eq!(http.get("/").await.status, 429);
}
