//! Charges that are settled when the answer is there.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::Request;
use axum::http::{Extensions, StatusCode};
use axum::response::{Extension, IntoResponse};
use axum::routing::{get, post};
use slidegate::Store;
use slidegate_tower::{ResponseHead, Attributes, Backend, RateLimitLayer, Settlement, WhenMissing, extract};

use crate::rig::{Http, MINUTE, Rig, TICK, serve};

/// What a handler says that its answer has cost.
#[derive(Clone, Copy)]
struct Units(u64);

fn units(extensions: &Extensions) -> Settlement {
    extensions.get().map_or(Settlement::Keep, |&Units(units)| Settlement::Cost(units))
}

/// Ten units a minute for each `x-user`, over a limiter and over a gate, of a service that says in its answer what
/// it has cost: as many as `/{units}`.
async fn costing(rig: &Rig<impl Store>, expected: u64) -> [Http; 2] {
    let limiter = rig.limiter(10, MINUTE).named("tokens");
    let limiter = RateLimitLayer::keyed_by(limiter, extract::header("x-user"), WhenMissing::Deny);
    let gate = rig
        .gate("rules: [{ name: tokens, per: [user], limits: [10/min], algorithm: sliding_log }]");
    let attributes = Attributes::new().with("user", extract::header("x-user"));
    let gate = RateLimitLayer::new(gate, attributes);
    [serve_costing(limiter, expected).await, serve_costing(gate, expected).await]
}

async fn serve_costing(layer: RateLimitLayer<impl Backend>, expected: u64) -> Http {
    let layer = layer.cost(move |_| expected).settle(|answer| units(answer.extensions));
    let handler = async |request: Request| {
        let units = request.uri().path().trim_start_matches('/').parse().unwrap();
        (Extension(Units(units)), "done")
    };
    serve(Router::new().route("/{units}", get(handler)).layer(layer)).await
}

/// The status, and how much is left, of a request of `ann` that costs so much in the end.
async fn ask(http: &Http, units: u64) -> (u16, String) {
    let answer = http.send(http.request(&format!("/{units}")).header("x-user", "ann")).await;
    let stands = answer.header("ratelimit").unwrap();
    let left = stands.split(';').find_map(|part| part.strip_prefix("r=")).unwrap();
    (answer.status, left.to_owned())
}

#[tokio::test]
async fn what_was_charged_too_much_is_given_back() {
    with_both!(|rig| {
        for http in costing(&rig, 5).await {
            assert_eq!(ask(&http, 2).await, (200, "5".to_owned()), "{rig:?}");
            assert_eq!(ask(&http, 0).await, (200, "3".to_owned()), "{rig:?}");
            assert_eq!(ask(&http, 5).await, (200, "3".to_owned()), "{rig:?}");
            assert_eq!(ask(&http, 5).await, (429, "3".to_owned()), "{rig:?}");
        }
    });
}

#[tokio::test]
async fn the_true_cost_is_charged_even_beyond_max_and_denies_until_it_has_left() {
    with_both!(|rig| {
        for http in costing(&rig, 1).await {
            assert_eq!(ask(&http, 25).await, (200, "9".to_owned()), "{rig:?}");
            assert_eq!(ask(&http, 1).await, (429, "0".to_owned()), "{rig:?}");
            rig.clock.advance(MINUTE - TICK);
            assert_eq!(ask(&http, 1).await, (429, "0".to_owned()), "{rig:?}");
            rig.clock.advance(TICK);
            assert_eq!(ask(&http, 1).await, (200, "9".to_owned()), "{rig:?}");
        }
    });
}

#[tokio::test]
async fn each_is_settled_for_who_has_asked() {
    with_both!(|rig| {
        for http in costing(&rig, 1).await {
            ask(&http, 25).await;
            let other = http.send(http.request("/1").header("x-user", "bob")).await;
            assert_eq!(other.header("ratelimit"), Some("\"tokens\";r=9;t=60"), "{rig:?}");
        }
    });
}

fn failed_alone(answer: &ResponseHead<'_>) -> Settlement {
    match answer.status {
        StatusCode::UNAUTHORIZED => Settlement::Keep,
        _ => Settlement::Revert,
    }
}

async fn log_in(request: Request) -> StatusCode {
    match request.headers().get("x-password").map(|password| password.as_bytes()) {
        Some(b"right") => StatusCode::OK,
        _ => StatusCode::UNAUTHORIZED,
    }
}

#[tokio::test]
async fn only_failed_logins_are_counted() {
    with_both!(|rig| {
        let limiter = rig.limiter(3, MINUTE).named("login");
        let layer = RateLimitLayer::keyed_by(limiter, extract::header("x-user"), WhenMissing::Deny)
            .settle(failed_alone);
        let http = serve(Router::new().route("/", get(log_in)).layer(layer)).await;
        let log_in = async |password: &str| {
            let request = http.request("/").header("x-user", "ann").header("x-password", password);
            http.send(request).await.status
        };
        for _ in 0..10 {
            assert_eq!(log_in("right").await, 200, "{rig:?}");
        }
        for password in ["1234", "letmein", "qwerty"] {
            assert_eq!(log_in("right").await, 200, "{rig:?}");
            assert_eq!(log_in(password).await, 401, "{rig:?}");
        }
        assert_eq!(log_in("right").await, 429, "{rig:?}");
        rig.clock.advance(MINUTE);
        assert_eq!(log_in("right").await, 200, "{rig:?}");
    });
}

#[tokio::test]
async fn a_failure_of_the_service_can_be_given_back_and_all_else_be_kept() {
    with_both!(|rig| {
        let limiter = rig.limiter(3, MINUTE).named("all");
        let layer = RateLimitLayer::keyed_by(limiter, extract::value("all"), WhenMissing::Deny)
            .settle(|answer| match answer.status.is_server_error() {
                true => Settlement::Revert,
                false => Settlement::Keep,
            });
        let app = Router::new()
            .route("/", post(async || "done"))
            .route("/broken", get(async || StatusCode::INTERNAL_SERVER_ERROR.into_response()));
        let http = serve(app.layer(layer)).await;
        for _ in 0..5 {
            assert_eq!(http.get("/broken").await.status, 500, "{rig:?}");
        }
        // 405, 404: what the client has done wrong is counted.
        for (path, status) in [("/", 405), ("/nowhere", 404), ("/", 405), ("/broken", 429)] {
            assert_eq!(http.get(path).await.status, status, "{path} {rig:?}");
        }
    });
}

#[tokio::test]
async fn what_was_denied_or_not_counted_is_not_settled() {
    with_both!(|rig| {
        let settled = Arc::new(AtomicUsize::new(0));
        let count = settled.clone();
        let layer =
            RateLimitLayer::keyed_by(rig.limiter(1, MINUTE), extract::api_key(), WhenMissing::Skip)
                .cost_header("x-cost")
                .unwrap()
                .settle(move |_| {
                    count.fetch_add(1, Ordering::Relaxed);
                    Settlement::Revert
                });
        let http = serve(Router::new().route("/", get(async || "hello")).layer(layer)).await;
        assert_eq!(http.get("/").await.status, 200);
        let beyond = http.request("/").header("x-api-key", "k1").header("x-cost", "2");
        assert_eq!(http.send(beyond).await.status, 429);
        let malformed = http.request("/").header("x-api-key", "k1").header("x-cost", "?");
        assert_eq!(http.send(malformed).await.status, 400);
        assert_eq!(settled.load(Ordering::Relaxed), 0, "{rig:?}");
        assert_eq!(http.get_with("x-api-key", "k1").await.status, 200);
        assert_eq!(settled.load(Ordering::Relaxed), 1, "{rig:?}");
    });
}

/// A policy with a limit on requests and a budget of tokens, whose use the response tells.
async fn reporting(rig: &Rig<impl Store>) -> Http {
    let gate = rig.gate(
        "
rules:
  - { name: requests, per: [user], limits: [5/min], cost: 1, algorithm: sliding_log }
  - { name: tokens, per: [user], limits: [100/min], cost: tokens, algorithm: sliding_log }
",
    );
    let attributes = Attributes::new().with("user", extract::header("x-user"));
    let layer = RateLimitLayer::new(gate, attributes)
        .named_cost("tokens", |head| head.headers.get("x-tokens")?.to_str().ok()?.parse().ok())
        .settle(|answer| {
            let used = answer.extensions.get();
            used.map_or(Settlement::Keep, |&Units(units)| Settlement::Report { cost: "tokens", units })
        });
    let handler = async |request: Request| {
        let units = request.uri().path().trim_start_matches('/').parse().unwrap();
        (Extension(Units(units)), "done")
    };
    serve(Router::new().route("/{units}", get(handler)).layer(layer)).await
}

#[tokio::test]
async fn reported_tokens_deny_later_requests_and_count_no_request() {
    with_both!(|rig| {
        let http = reporting(&rig).await;
        let ask = async |units: u64, tokens: Option<&str>| {
            let request = http.request(&format!("/{units}")).header("x-user", "ann");
            let request =
                tokens.iter().fold(request, |all, tokens| all.header("x-tokens", *tokens));
            http.send(request).await
        };
        assert_eq!(ask(40, None).await.status, 200);
        // 50 in advance, and 30 more when the response is there.
        assert_eq!(ask(30, Some("50")).await.status, 200, "{rig:?}");
        let denied = ask(0, None).await;
        assert_eq!(denied.json()["violated-policies"], serde_json::json!(["tokens"]), "{rig:?}");
        assert_eq!(denied.retry_after(), Some(60));
        rig.clock.advance(MINUTE);
        for _ in 0..5 {
            assert_eq!(ask(0, None).await.status, 200, "{rig:?}");
        }
        let denied = ask(0, None).await;
        assert_eq!(denied.json()["violated-policies"], serde_json::json!(["requests"]), "{rig:?}");
    });
}
