//! Tests of a public API whose customers have two keys each: a paid live key without a limit, and a free test key with
//! ten requests per minute.

use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use slidegate_tower::{Attributes, Denial, RateLimitLayer, extract};

use crate::layer::fixture::{MINUTE, hello_router, serve};

const TEST_API_KEY_LIMIT_POLICY: &str = "
rules:
  - name: test-keys
    per: [api_key]
    when_missing: deny
    limits: [10/min]
    algorithm: sliding_log
    overrides:
      - { name: live, when: { kind: live }, limits: unlimited }
";

/// An authenticated API key, stored as an extension of the request.
#[derive(Clone)]
struct ApiKey {
    id: String,
    kind: &'static str,
}

/// Accepts only the live keys and test keys of two customers, and adds the [`ApiKey`] to the request. Rejects other
/// keys with status 401.
async fn authenticate_api_key(mut request: Request, next: Next) -> Response {
    let key = request.headers().get("x-api-key").and_then(|key| key.to_str().ok());
    let kind = match key {
        Some("live-a" | "live-b") => "live",
        Some("test-a" | "test-b") => "test",
        _ => return StatusCode::UNAUTHORIZED.into_response(),
    };
    let id = key.unwrap_or_default().to_owned();
    request.extensions_mut().insert(ApiKey { id, kind });
    next.run(request).await
}

fn json_denial_response(denial: &Denial<'_>) -> Response {
    let body = json!({
        "details": "Too many requests for the test API key.",
        "status": denial.status().as_u16(),
    });
    (denial.status(), [(CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

#[tokio::test]
async fn only_test_api_keys_are_limited() {
    with_both_stores!(|fixture| {
        let attributes = Attributes::new()
            .with("api_key", extract::extension(|key: &ApiKey| Some(&key.id)))
            .with("kind", extract::extension(|key: &ApiKey| Some(key.kind)));
        let limit = RateLimitLayer::new(fixture.gate(TEST_API_KEY_LIMIT_POLICY), attributes)
            .respond_with(json_denial_response);
        let app = hello_router().layer(limit).layer(middleware::from_fn(authenticate_api_key));
        let http = serve(app).await;

        for test in ["test-a", "test-b"] {
            for remaining in (0..10).rev() {
                let response = http.get_with_header("x-api-key", test).await;
                assert_eq!((response.status, &*response.body), (200, "hello"), "{fixture:?}");
                let ratelimit = response.header("ratelimit").unwrap();
                let expected = format!("\"test-keys\";r={remaining}");
                assert_eq!(ratelimit.trim_end_matches(";t=60"), expected, "{fixture:?}");
            }
            let denied = http.get_with_header("x-api-key", test).await;
            assert_eq!((denied.status, denied.retry_after()), (429, Some(60)), "{fixture:?}");
            assert_eq!(denied.header("content-type"), Some("application/json"));
            let expected =
                json!({"details": "Too many requests for the test API key.", "status": 429});
            assert_eq!(denied.json(), expected);
        }
        for _ in 0..50 {
            let response = http.get_with_header("x-api-key", "live-a").await;
            assert_eq!((response.status, response.header("ratelimit")), (200, None), "{fixture:?}");
        }
        assert_eq!(http.get_with_header("x-api-key", "made-up").await.status, 401);
        fixture.clock.advance(MINUTE);
        assert_eq!(http.get_with_header("x-api-key", "test-a").await.status, 200, "{fixture:?}");
    });
}
