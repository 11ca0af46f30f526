//! Tests of the responses that the layer creates or changes: headers in every style, problem details, custom responses,
//! and jitter.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Response};
use serde_json::json;
use slidegate::clock::{Clock, WallClock};
use slidegate::headers::{self, Style};
use slidegate::wait::JitterSample;
use slidegate::{Jitter, Store};
use slidegate_tower::{Attributes, Denial, RateLimitLayer, WhenMissing, extract};

use crate::layer::fixture::{MINUTE, StoreFixture, TICK, TestClient, hello_router, serve};

/// Starts a server that allows two requests per minute for each `x-api-key`.
async fn serve_with_two_requests_per_minute(
    fixture: &StoreFixture<impl Store>,
    style: Style,
) -> TestClient {
    let limiter = fixture.limiter(2, MINUTE).named("per-key");
    let layer =
        RateLimitLayer::keyed_by(limiter, extract::api_key(), WhenMissing::Deny).headers(style);
    serve(hello_router().layer(layer)).await
}

#[tokio::test]
async fn ietf_headers_report_limits() {
    with_both_stores!(|fixture| {
        let http = serve_with_two_requests_per_minute(&fixture, Style::Ietf).await;
        for (status, expected) in
            [(200, "\"per-key\";r=1;t=60"), (200, "\"per-key\";r=0"), (429, "\"per-key\";r=0;t=60")]
        {
            let response = http.get_with_header("x-api-key", "k1").await;
            assert_eq!(response.status, status, "{fixture:?}");
            assert_eq!(response.header("ratelimit-policy"), Some("\"per-key\";q=2;w=60"));
            assert_eq!(response.header("ratelimit"), Some(expected), "{fixture:?}");
            assert_eq!(response.retry_after(), (status == 429).then_some(60));
        }
    });
}

#[tokio::test]
async fn draft_03_headers_report_limits() {
    with_both_stores!(|fixture| {
        let http = serve_with_two_requests_per_minute(&fixture, Style::Draft03).await;
        for (status, remaining) in [(200, "1"), (200, "0"), (429, "0")] {
            let response = http.get_with_header("x-api-key", "k1").await;
            assert_eq!(response.status, status);
            assert_eq!(response.header("ratelimit-limit"), Some("2, 2;w=60"));
            assert_eq!(response.header("ratelimit-remaining"), Some(remaining));
            assert_eq!(response.header("ratelimit-reset"), Some("60"));
            assert_eq!(response.retry_after(), (status == 429).then_some(60));
        }
    });
}

#[tokio::test]
async fn x_ratelimit_headers_report_reset_time() {
    with_both_stores!(|fixture| {
        let http = serve_with_two_requests_per_minute(&fixture, Style::X).await;
        for (status, remaining) in [(200, "1"), (200, "0"), (429, "0")] {
            let before = unix_seconds_after_wait(MINUTE);
            let response = http.get_with_header("x-api-key", "k1").await;
            assert_eq!(response.status, status);
            assert_eq!(response.header("x-ratelimit-limit"), Some("2"));
            assert_eq!(response.header("x-ratelimit-remaining"), Some(remaining));
            let reset: u64 = response.header("x-ratelimit-reset").unwrap().parse().unwrap();
            assert!((before..=unix_seconds_after_wait(MINUTE)).contains(&reset), "{reset}");
            assert_eq!(response.retry_after(), (status == 429).then_some(60));
        }
    });
}

/// Returns the time at which a wait that begins now ends, in seconds since the Unix epoch, rounded up.
fn unix_seconds_after_wait(wait: Duration) -> u64 {
    WallClock.now().after(wait).as_micros().div_ceil(1_000_000)
}

#[tokio::test]
async fn header_style_none_writes_only_retry_after() {
    with_both_stores!(|fixture| {
        let http = serve_with_two_requests_per_minute(&fixture, Style::None).await;
        let count_headers = |headers: &HeaderMap| {
            headers.keys().filter(|name| name.as_str().contains("ratelimit")).count()
        };
        for status in [200, 200, 429] {
            let response = http.get_with_header("x-api-key", "k1").await;
            assert_eq!((response.status, count_headers(&response.headers)), (status, 0));
            assert_eq!(response.retry_after(), (status == 429).then_some(60));
        }
    });
}

/// A policy with overrides for plans, a rule for one path, and a rule that enforces its limit for half of the keys and
/// observes the others.
const PLANS_AND_OBSERVED_KEYS_POLICY: &str = "
rules:
  - name: key
    per: [api_key]
    limits: [2/s, 9/min]
    algorithm: sliding_log
    overrides:
      - { name: pro, when: { plan: pro }, limits: [8/s, 90/min] }
      - { name: free-for-all, when: { plan: internal }, limits: unlimited }
  - { name: nowhere, when: { path: /nowhere }, limits: [1/min], algorithm: sliding_log }
  - { name: half, per: [api_key], limits: [50/min], mode: { enforce: 50% } }
";

#[tokio::test]
async fn response_headers_match_decision_of_request() {
    with_both_stores!(|fixture| {
        for style in Style::ALL {
            let gate = fixture.gate(PLANS_AND_OBSERVED_KEYS_POLICY);
            let attributes = Attributes::new()
                .with("api_key", extract::api_key())
                .with("plan", extract::header("x-plan"))
                .with("path", extract::path());
            let expected = Arc::new(Mutex::new(Vec::new()));
            let writer = expected.clone();
            let layer =
                RateLimitLayer::new(gate, attributes).headers(style).inspect(move |_, decision| {
                    let now = WallClock.now();
                    *writer.lock().unwrap() =
                        headers::write(style, decision, now, JitterSample::NONE);
                });
            let http = serve(hello_router().layer(layer)).await;
            for nth in 0..60 {
                let key = format!("k{}", nth % 7);
                let plan = ["free", "pro", "internal"][nth % 3];
                let path = ["/", "/nowhere"][nth % 2];
                let request = http.request(path).header("x-api-key", key).header("x-plan", plan);
                let response = http.send(request).await;
                let expected = expected.lock().unwrap().clone();
                for name in style.header_names().iter().filter(|name| **name != "x-ratelimit-reset")
                {
                    let value = expected.iter().find(|(expected, _)| expected == name);
                    let value = value.map(|(_, value)| &**value);
                    assert_eq!(response.header(name), value, "{nth}: {style} {fixture:?}");
                }
                fixture.clock.advance(Duration::from_millis(40));
            }
        }
    });
}

#[tokio::test]
async fn denial_body_lists_violated_limits() {
    with_both_stores!(|fixture| {
        let gate = fixture.gate(
            "rules:
              - { name: per-key, per: [api_key], limits: [1/s, 1/min] }
              - { name: all, limits: [10/s] }",
        );
        let attributes = Attributes::new().with("api_key", extract::api_key());
        let http = serve(hello_router().layer(RateLimitLayer::new(gate, attributes))).await;
        assert_eq!(http.get_with_header("x-api-key", "k1").await.body, "hello");
        let denied = http.get_with_header("x-api-key", "k1").await;
        assert_eq!(denied.status, 429);
        assert_eq!(denied.header("content-type"), Some("application/problem+json"));
        assert_eq!(
            denied.json(),
            json!({
                "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "title": "Quota exceeded",
                "status": 429,
                "reason": "limit_exceeded",
                "violated-policies": ["per-key.1s", "per-key.1m"],
            })
        );
    });
}

/// A cache may store a 404 without permission.
#[tokio::test]
async fn denial_forbids_caching() {
    with_both_stores!(|fixture| {
        let gate = fixture
            .gate("rules: [{ name: one, per: [api_key], limits: [1/min], deny_status: 404 }]");
        let attributes = Attributes::new().with("api_key", extract::api_key());
        let http = serve(hello_router().layer(RateLimitLayer::new(gate, attributes))).await;
        let allowed = http.get_with_header("x-api-key", "k1").await;
        assert_eq!((allowed.status, allowed.header("cache-control")), (200, None));
        let denied = http.get_with_header("x-api-key", "k1").await;
        assert_eq!((denied.status, denied.header("cache-control")), (404, Some("no-store")));
    });
}

#[tokio::test]
async fn responder_decides_about_caching() {
    with_both_stores!(|fixture| {
        let limiter = fixture.limiter(1, MINUTE).named("per-key");
        let layer = RateLimitLayer::keyed_by(limiter, extract::api_key(), WhenMissing::Deny)
            .respond_with(|_: &Denial<'_>| {
                let mut response = Response::new(Body::empty());
                response.headers_mut().insert("cache-control", "private".parse().unwrap());
                response
            });
        let http = serve(hello_router().layer(layer)).await;
        http.get_with_header("x-api-key", "k1").await;
        let denied = http.get_with_header("x-api-key", "k1").await;
        assert_eq!(denied.header("cache-control"), Some("private"));
    });
}

#[tokio::test]
async fn retry_after_header_states_exact_wait() {
    with_both_stores!(|fixture| {
        let http = serve_with_two_requests_per_minute(&fixture, Style::Ietf).await;
        http.get_with_header("x-api-key", "k1").await;
        fixture.clock.advance(Duration::from_secs(20));
        http.get_with_header("x-api-key", "k1").await;
        let denied = http.get_with_header("x-api-key", "k1").await;
        let wait = Duration::from_secs(denied.retry_after().unwrap());
        assert_eq!(wait, Duration::from_secs(40));
        fixture.clock.advance(wait - TICK);
        assert_eq!(http.get_with_header("x-api-key", "k1").await.status, 429, "{fixture:?}");
        fixture.clock.advance(TICK);
        assert_eq!(http.get_with_header("x-api-key", "k1").await.status, 200, "{fixture:?}");
    });
}

#[tokio::test]
async fn retry_jitter_lengthens_wait_in_all_headers() {
    with_both_stores!(|fixture| {
        let limiter = fixture.limiter(1, MINUTE).named("per-key");
        let layer = RateLimitLayer::keyed_by(limiter, extract::api_key(), WhenMissing::Deny)
            .retry_jitter(Jitter::up_to_percent(100))
            .respond_with(|denial: &Denial<'_>| {
                let mut response = Response::new(Body::empty());
                *response.status_mut() = denial.status();
                let wait = denial.retry_after().unwrap().as_secs_f64().ceil();
                response.headers_mut().insert("x-custom-wait", (wait as u64).into());
                response
            });
        let http = serve(hello_router().layer(layer)).await;
        // An allowed response has no jitter.
        assert_eq!(
            http.get_with_header("x-api-key", "k1").await.header("ratelimit"),
            Some("\"per-key\";r=0")
        );
        let mut waits = Vec::new();
        for _ in 0..50 {
            let denied = http.get_with_header("x-api-key", "k1").await;
            let wait = denied.retry_after().unwrap();
            assert!((60..=120).contains(&wait), "{wait}");
            assert_eq!(denied.header("ratelimit"), Some(&*format!("\"per-key\";r=0;t={wait}")));
            assert_eq!(denied.header("x-custom-wait"), Some(&*wait.to_string()));
            waits.push(wait);
        }
        waits.sort_unstable();
        waits.dedup();
        assert!(waits.len() > 10, "{waits:?}");
    });
}

#[tokio::test]
async fn custom_denial_response_keeps_content_and_adds_headers() {
    with_both_stores!(|fixture| {
        let limiter = fixture.limiter(1, MINUTE).named("per-key");
        let layer = RateLimitLayer::keyed_by(limiter, extract::api_key(), WhenMissing::Deny)
            .respond_with(|denial: &Denial<'_>| {
                let body = format!("{} is over", denial.head().uri.path());
                let response = Response::builder().status(420).header("retry-after", "7");
                response.body(Body::from(body)).unwrap()
            });
        let http = serve(hello_router().layer(layer)).await;
        http.get_with_header("x-api-key", "k1").await;
        let denied = http.get_with_header("x-api-key", "k1").await;
        assert_eq!((denied.status, &*denied.body), (420, "/ is over"));
        assert_eq!(denied.header("ratelimit"), Some("\"per-key\";r=0;t=60"));
        assert_eq!(denied.retry_after(), Some(7), "{fixture:?}");
    });
}
