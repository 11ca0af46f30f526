//! Tests of request costs that a header or a function provides.

use serde_json::json;
use slidegate::Store;
use slidegate_tower::extract::RequestHead;
use slidegate_tower::{Attributes, RateLimitLayer, WhenMissing, extract};

use crate::layer::fixture::{MINUTE, StoreFixture, TestClient, TestResponse, hello_router, serve};

/// Starts two servers, one over a limiter and one over a gate, and returns a client of each. Each server allows ten
/// units per minute in total. The header `x-cost` contains the cost of a request.
async fn start_servers_with_cost_header(fixture: &StoreFixture<impl Store>) -> [TestClient; 2] {
    let limiter = fixture.limiter(10, MINUTE).named("all");
    let limiter = RateLimitLayer::keyed_by(limiter, extract::value("all"), WhenMissing::Deny);
    let gate = fixture.gate("rules: [{ name: all, limits: [10/min], algorithm: sliding_log }]");
    let gate = RateLimitLayer::new(gate, Attributes::new());
    [
        serve(hello_router().layer(limiter.cost_header("x-cost").unwrap())).await,
        serve(hello_router().layer(gate.cost_header("x-cost").unwrap())).await,
    ]
}

fn remaining_units(response: &TestResponse) -> &str {
    let ratelimit = response.header("ratelimit").unwrap();
    ratelimit.split(';').find_map(|part| part.strip_prefix("r=")).unwrap()
}

#[tokio::test]
async fn cost_header_sets_cost_and_defaults_to_one() {
    with_both_stores!(|fixture| {
        for http in start_servers_with_cost_header(&fixture).await {
            assert_eq!(
                remaining_units(&http.get_with_header("x-cost", "3").await),
                "7",
                "{fixture:?}"
            );
            assert_eq!(remaining_units(&http.get("/").await), "6");
            assert_eq!(remaining_units(&http.get_with_header("x-cost", "0").await), "6");
            assert_eq!(remaining_units(&http.get_with_header("x-cost", " 6 ").await), "0");
            let denied = http.get_with_header("x-cost", "2").await;
            assert_eq!((denied.status, denied.retry_after()), (429, Some(60)));
        }
    });
}

#[tokio::test]
async fn malformed_cost_is_rejected_without_charge() {
    with_both_stores!(|fixture| {
        for http in start_servers_with_cost_header(&fixture).await {
            for malformed in ["", "many", "1.5", "-1", "+1", "1 2", "0x10", "1e3", "٣"] {
                let response = http.get_with_header("x-cost", malformed).await;
                assert_eq!(response.status, 400, "`{malformed}` {fixture:?}");
                assert_eq!(response.header("content-type"), Some("application/problem+json"));
                assert_eq!(response.header("ratelimit"), None);
                let detail = format!(
                    "header x-cost: `{malformed}` is not a cost; send a whole number of units"
                );
                assert_eq!(
                    response.json(),
                    json!({
                        "type": "about:blank",
                        "title": "Bad Request",
                        "status": 400,
                        "detail": detail,
                    })
                );
            }
            assert_eq!(remaining_units(&http.get("/").await), "9");
        }
    });
}

#[tokio::test]
async fn denial_of_cost_above_limit_has_no_retry_after() {
    with_both_stores!(|fixture| {
        for http in start_servers_with_cost_header(&fixture).await {
            for cost in
                ["11", "18446744073709551615", "18446744073709551616", "99999999999999999999"]
            {
                let denied = http.get_with_header("x-cost", cost).await;
                assert_eq!(
                    (denied.status, denied.retry_after()),
                    (429, None),
                    "{cost} {fixture:?}"
                );
                assert_eq!(denied.header("ratelimit"), Some("\"all\";r=10"));
                assert_eq!(denied.json()["violated-policies"], json!(["all"]));
            }
        }
    });
}

#[tokio::test]
async fn cost_function_sets_cost() {
    fn cost(head: RequestHead<'_>) -> u64 {
        if head.uri.query().is_some() { 4 } else { 1 }
    }
    with_both_stores!(|fixture| {
        let limiter = fixture.limiter(10, MINUTE).named("all");
        let layer = RateLimitLayer::keyed_by(limiter, extract::value("all"), WhenMissing::Deny);
        let http = serve(hello_router().layer(layer.cost(cost))).await;
        for (path, expected) in [("/", "9"), ("/?search", "5"), ("/", "4"), ("/?search", "0")] {
            assert_eq!(remaining_units(&http.get(path).await), expected, "{fixture:?}");
        }
    });
}

#[test]
fn invalid_cost_header_name_is_error() {
    let limiter = slidegate::Limiter::new(["1/s"]).unwrap();
    let layer = RateLimitLayer::keyed_by(limiter, extract::api_key(), WhenMissing::Skip);
    assert!(layer.cost_header("x cost").is_err());
}
