//! What requests cost.

use serde_json::json;
use slidegate::Store;
use slidegate_tower::extract::RequestHead;
use slidegate_tower::{Attributes, RateLimitLayer, WhenMissing, extract};

use crate::rig::{Answer, Http, MINUTE, Rig, hello, serve};

/// Ten units a minute for everybody, over a limiter and over a gate, at a cost that `x-cost` says.
async fn by_header(rig: &Rig<impl Store>) -> [Http; 2] {
    let limiter = rig.limiter(10, MINUTE).named("all");
    let limiter = RateLimitLayer::keyed_by(limiter, extract::value("all"), WhenMissing::Deny);
    let gate = rig.gate("rules: [{ name: all, limits: [10/min], algorithm: sliding_log }]");
    let gate = RateLimitLayer::new(gate, Attributes::new());
    [
        serve(hello().layer(limiter.cost_header("x-cost").unwrap())).await,
        serve(hello().layer(gate.cost_header("x-cost").unwrap())).await,
    ]
}

fn left(answer: &Answer) -> &str {
    let stands = answer.header("ratelimit").unwrap();
    stands.split(';').find_map(|part| part.strip_prefix("r=")).unwrap()
}

#[tokio::test]
async fn a_header_says_what_a_request_costs_and_without_it_it_is_one() {
    with_both!(|rig| {
        for http in by_header(&rig).await {
            assert_eq!(left(&http.get_with("x-cost", "3").await), "7", "{rig:?}");
            assert_eq!(left(&http.get("/").await), "6");
            assert_eq!(left(&http.get_with("x-cost", "0").await), "6");
            assert_eq!(left(&http.get_with("x-cost", " 6 ").await), "0");
            let denied = http.get_with("x-cost", "2").await;
            assert_eq!((denied.status, denied.retry_after()), (429, Some(60)));
        }
    });
}

#[tokio::test]
async fn a_cost_that_is_no_whole_number_is_a_clear_mistake_of_the_request_and_counts_nothing() {
    with_both!(|rig| {
        for http in by_header(&rig).await {
            for wrong in ["", "many", "1.5", "-1", "+1", "1 2", "0x10", "1e3", "٣"] {
                let answer = http.get_with("x-cost", wrong).await;
                assert_eq!(answer.status, 400, "`{wrong}` {rig:?}");
                assert_eq!(answer.header("content-type"), Some("application/problem+json"));
                assert_eq!(answer.header("ratelimit"), None);
                let detail =
                    format!("the header x-cost is `{wrong}`: a cost is a whole number of units");
                assert_eq!(
                    answer.json(),
                    json!({
                        "type": "about:blank",
                        "title": "Bad Request",
                        "status": 400,
                        "detail": detail,
                    })
                );
            }
            assert_eq!(left(&http.get("/").await), "9");
        }
    });
}

#[tokio::test]
async fn a_cost_that_never_fits_is_denied_without_a_time_to_come_back() {
    with_both!(|rig| {
        for http in by_header(&rig).await {
            for cost in
                ["11", "18446744073709551615", "18446744073709551616", "99999999999999999999"]
            {
                let denied = http.get_with("x-cost", cost).await;
                assert_eq!((denied.status, denied.retry_after()), (429, None), "{cost} {rig:?}");
                assert_eq!(denied.header("ratelimit"), Some("\"all\";r=10"));
                assert_eq!(denied.json()["violated-policies"], json!(["all"]));
            }
        }
    });
}

#[tokio::test]
async fn a_function_says_what_a_request_costs() {
    fn cost(head: RequestHead<'_>) -> u64 {
        if head.uri.query().is_some() { 4 } else { 1 }
    }
    with_both!(|rig| {
        let limiter = rig.limiter(10, MINUTE).named("all");
        let layer = RateLimitLayer::keyed_by(limiter, extract::value("all"), WhenMissing::Deny);
        let http = serve(hello().layer(layer.cost(cost))).await;
        for (path, expected) in [("/", "9"), ("/?search", "5"), ("/", "4"), ("/?search", "0")] {
            assert_eq!(left(&http.get(path).await), expected, "{rig:?}");
        }
    });
}

#[test]
fn a_header_that_cannot_be_is_an_error() {
    let limiter = slidegate::Limiter::new(["1/s"]).unwrap();
    let layer = RateLimitLayer::keyed_by(limiter, extract::api_key(), WhenMissing::Skip);
    assert!(layer.cost_header("x cost").is_err());
}
