//! Tests of settlement. The response of the service determines whether the charge of the request is corrected or
//! reverted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::Request;
use axum::http::{Extensions, StatusCode};
use axum::response::{Extension, IntoResponse};
use axum::routing::{get, post};
use slidegate::Store;
use slidegate_tower::{Attributes, RateLimitLayer, ResponseHead, Settlement, WhenMissing, extract};

use crate::layer::fixture::{MINUTE, StoreFixture, TICK, TestClient, serve};

/// The actual cost of a request in units, which the handler adds to the response.
#[derive(Clone, Copy)]
struct ActualUnits(u64);

fn settlement_for_actual_units(extensions: &Extensions) -> Settlement {
    extensions.get().map_or(Settlement::Keep, |&ActualUnits(units)| Settlement::Cost(units))
}

/// Starts two servers, one over a limiter and one over a gate, and returns a client of each. Each user in `x-user` has
/// ten units per minute. A request is charged `expected` units in advance. Then the handler reports the number in the
/// path `/{units}` as the actual cost.
async fn start_servers_with_expected_cost(
    fixture: &StoreFixture<impl Store>,
    expected: u64,
) -> [TestClient; 2] {
    let limiter = fixture.limiter(10, MINUTE).named("tokens");
    let limiter = RateLimitLayer::keyed_by(limiter, extract::header("x-user"), WhenMissing::Deny);
    let gate = fixture
        .gate("rules: [{ name: tokens, per: [user], limits: [10/min], algorithm: sliding_log }]");
    let attributes = Attributes::new().with("user", extract::header("x-user"));
    let gate = RateLimitLayer::new(gate, attributes);
    [
        serve_with_expected_cost(limiter, expected).await,
        serve_with_expected_cost(gate, expected).await,
    ]
}

async fn serve_with_expected_cost(layer: RateLimitLayer, expected: u64) -> TestClient {
    let layer = layer
        .cost(move |_| expected)
        .settle(|response| settlement_for_actual_units(response.extensions));
    let handler = async |request: Request| {
        let units = request.uri().path().trim_start_matches('/').parse().unwrap();
        (Extension(ActualUnits(units)), "done")
    };
    serve(Router::new().route("/{units}", get(handler)).layer(layer)).await
}

/// Sends a request of the user `ann` with this actual cost. Returns the status and the remaining units.
async fn send_request_with_actual_cost(http: &TestClient, units: u64) -> (u16, String) {
    let response = http.send(http.request(&format!("/{units}")).header("x-user", "ann")).await;
    let ratelimit = response.header("ratelimit").unwrap();
    let remaining = ratelimit.split(';').find_map(|part| part.strip_prefix("r=")).unwrap();
    (response.status, remaining.to_owned())
}

#[tokio::test]
async fn charge_above_actual_cost_is_refunded() {
    with_both_stores!(|fixture| {
        for http in start_servers_with_expected_cost(&fixture, 5).await {
            assert_eq!(
                send_request_with_actual_cost(&http, 2).await,
                (200, "5".to_owned()),
                "{fixture:?}"
            );
            assert_eq!(
                send_request_with_actual_cost(&http, 0).await,
                (200, "3".to_owned()),
                "{fixture:?}"
            );
            assert_eq!(
                send_request_with_actual_cost(&http, 5).await,
                (200, "3".to_owned()),
                "{fixture:?}"
            );
            assert_eq!(
                send_request_with_actual_cost(&http, 5).await,
                (429, "3".to_owned()),
                "{fixture:?}"
            );
        }
    });
}

#[tokio::test]
async fn actual_cost_above_limit_is_charged() {
    with_both_stores!(|fixture| {
        for http in start_servers_with_expected_cost(&fixture, 1).await {
            assert_eq!(
                send_request_with_actual_cost(&http, 25).await,
                (200, "9".to_owned()),
                "{fixture:?}"
            );
            assert_eq!(
                send_request_with_actual_cost(&http, 1).await,
                (429, "0".to_owned()),
                "{fixture:?}"
            );
            fixture.clock.advance(MINUTE - TICK);
            assert_eq!(
                send_request_with_actual_cost(&http, 1).await,
                (429, "0".to_owned()),
                "{fixture:?}"
            );
            fixture.clock.advance(TICK);
            assert_eq!(
                send_request_with_actual_cost(&http, 1).await,
                (200, "9".to_owned()),
                "{fixture:?}"
            );
        }
    });
}

#[tokio::test]
async fn settlement_charges_only_key_of_request() {
    with_both_stores!(|fixture| {
        for http in start_servers_with_expected_cost(&fixture, 1).await {
            send_request_with_actual_cost(&http, 25).await;
            let other = http.send(http.request("/1").header("x-user", "bob")).await;
            assert_eq!(other.header("ratelimit"), Some("\"tokens\";r=9;t=60"), "{fixture:?}");
        }
    });
}

fn keep_charge_of_failed_logins(response: &ResponseHead<'_>) -> Settlement {
    match response.status {
        StatusCode::UNAUTHORIZED => Settlement::Keep,
        _ => Settlement::Revert,
    }
}

async fn check_password_of_login(request: Request) -> StatusCode {
    match request.headers().get("x-password").map(|password| password.as_bytes()) {
        Some(b"right") => StatusCode::OK,
        _ => StatusCode::UNAUTHORIZED,
    }
}

#[tokio::test]
async fn only_failed_logins_are_counted() {
    with_both_stores!(|fixture| {
        let limiter = fixture.limiter(3, MINUTE).named("login");
        let layer = RateLimitLayer::keyed_by(limiter, extract::header("x-user"), WhenMissing::Deny)
            .settle(keep_charge_of_failed_logins);
        let http = serve(Router::new().route("/", get(check_password_of_login)).layer(layer)).await;
        let log_in = async |password: &str| {
            let request = http.request("/").header("x-user", "ann").header("x-password", password);
            http.send(request).await.status
        };
        for _ in 0..10 {
            assert_eq!(log_in("right").await, 200, "{fixture:?}");
        }
        for password in ["1234", "letmein", "qwerty"] {
            assert_eq!(log_in("right").await, 200, "{fixture:?}");
            assert_eq!(log_in(password).await, 401, "{fixture:?}");
        }
        assert_eq!(log_in("right").await, 429, "{fixture:?}");
        fixture.clock.advance(MINUTE);
        assert_eq!(log_in("right").await, 200, "{fixture:?}");
    });
}

#[tokio::test]
async fn settlement_reverts_only_server_errors() {
    with_both_stores!(|fixture| {
        let limiter = fixture.limiter(3, MINUTE).named("all");
        let layer = RateLimitLayer::keyed_by(limiter, extract::value("all"), WhenMissing::Deny)
            .settle(|response| {
                if response.status.is_server_error() {
                    Settlement::Revert
                } else {
                    Settlement::Keep
                }
            });
        let app = Router::new()
            .route("/", post(async || "done"))
            .route("/broken", get(async || StatusCode::INTERNAL_SERVER_ERROR.into_response()));
        let http = serve(app.layer(layer)).await;
        for _ in 0..5 {
            assert_eq!(http.get("/broken").await.status, 500, "{fixture:?}");
        }
        // 405 and 404: errors of the client are counted.
        for (path, status) in [("/", 405), ("/nowhere", 404), ("/", 405), ("/broken", 429)] {
            assert_eq!(http.get(path).await.status, status, "{path} {fixture:?}");
        }
    });
}

#[tokio::test]
async fn request_without_charge_is_not_settled() {
    with_both_stores!(|fixture| {
        let settled = Arc::new(AtomicUsize::new(0));
        let count = settled.clone();
        let layer = RateLimitLayer::keyed_by(
            fixture.limiter(1, MINUTE),
            extract::api_key(),
            WhenMissing::Skip,
        )
        .cost_header("x-cost")
        .unwrap()
        .settle(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            Settlement::Revert
        });
        let http = serve(Router::new().route("/", get(async || "hello")).layer(layer)).await;
        assert_eq!(http.get("/").await.status, 200);
        let above_max = http.request("/").header("x-api-key", "k1").header("x-cost", "2");
        assert_eq!(http.send(above_max).await.status, 429);
        let malformed = http.request("/").header("x-api-key", "k1").header("x-cost", "?");
        assert_eq!(http.send(malformed).await.status, 400);
        assert_eq!(settled.load(Ordering::Relaxed), 0, "{fixture:?}");
        assert_eq!(http.get_with_header("x-api-key", "k1").await.status, 200);
        assert_eq!(settled.load(Ordering::Relaxed), 1, "{fixture:?}");
    });
}

/// Starts a server with a limit on requests and a limit on tokens for each user. The handler reports the number of used
/// tokens in the response.
async fn serve_handler_that_reports_used_tokens(fixture: &StoreFixture<impl Store>) -> TestClient {
    let gate = fixture.gate(
        "
rules:
  - { name: requests, per: [user], limits: [5/min], cost: 1, algorithm: sliding_log }
  - { name: tokens, per: [user], limits: [100/min], cost: tokens, algorithm: sliding_log }
",
    );
    let attributes = Attributes::new()
        .with("user", extract::header("x-user"))
        .named_cost("tokens", |head| head.headers.get("x-tokens")?.to_str().ok()?.parse().ok());
    let layer = RateLimitLayer::new(gate, attributes).settle(|response| {
        let used = response.extensions.get();
        used.map_or(Settlement::Keep, |&ActualUnits(units)| Settlement::Report {
            cost: "tokens",
            units,
        })
    });
    let handler = async |request: Request| {
        let units = request.uri().path().trim_start_matches('/').parse().unwrap();
        (Extension(ActualUnits(units)), "done")
    };
    serve(Router::new().route("/{units}", get(handler)).layer(layer)).await
}

#[tokio::test]
async fn token_limit_denies_after_handler_reports_used_tokens() {
    with_both_stores!(|fixture| {
        let http = serve_handler_that_reports_used_tokens(&fixture).await;
        let send = async |units: u64, tokens: Option<&str>| {
            let request = http.request(&format!("/{units}")).header("x-user", "ann");
            let request =
                tokens.iter().fold(request, |request, tokens| request.header("x-tokens", *tokens));
            http.send(request).await
        };
        assert_eq!(send(40, None).await.status, 200);
        // 50 in advance, and 30 more when the response is there.
        assert_eq!(send(30, Some("50")).await.status, 200, "{fixture:?}");
        let denied = send(0, None).await;
        assert_eq!(
            denied.json()["violated-policies"],
            serde_json::json!(["tokens"]),
            "{fixture:?}"
        );
        assert_eq!(denied.retry_after(), Some(60));
        fixture.clock.advance(MINUTE);
        for _ in 0..5 {
            assert_eq!(send(0, None).await.status, 200, "{fixture:?}");
        }
        let denied = send(0, None).await;
        assert_eq!(
            denied.json()["violated-policies"],
            serde_json::json!(["requests"]),
            "{fixture:?}"
        );
    });
}
