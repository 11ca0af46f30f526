//! A public API whose customers have two keys each: a live key, which is paid for and has no limit, and a test key,
//! which costs nothing and may ask ten times a minute.

use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use slidegate_tower::{Attributes, Denial, RateLimitLayer, extract};

use crate::rig::{MINUTE, hello, serve};

const POLICY: &str = "
rules:
  - name: test-keys
    per: [api_key]
    when_missing: deny
    limits: [10/min]
    algorithm: sliding_log
    overrides:
      - { name: live, when: { kind: live }, limits: unlimited }
";

/// Who has been authenticated.
#[derive(Clone)]
struct ApiKey {
    id: String,
    kind: &'static str,
}

/// Knows two customers with two keys each.
async fn authenticate(mut request: Request, next: Next) -> Response {
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

fn too_many(denial: &Denial<'_>) -> Response {
    let body = json!({
        "details": "Too many requests for the test API key.",
        "status": denial.status().as_u16(),
    });
    (denial.status(), [(CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

#[tokio::test]
async fn live_keys_have_no_limit_and_each_test_key_ten_a_minute() {
    with_both!(|rig| {
        let attributes = Attributes::new()
            .with("api_key", extract::extension(|key: &ApiKey| Some(&key.id)))
            .with("kind", extract::extension(|key: &ApiKey| Some(key.kind)));
        let limit = RateLimitLayer::new(rig.gate(POLICY), attributes).respond_with(too_many);
        let app = hello().layer(limit).layer(middleware::from_fn(authenticate));
        let http = serve(app).await;

        for test in ["test-a", "test-b"] {
            for left in (0..10).rev() {
                let answer = http.get_with("x-api-key", test).await;
                assert_eq!((answer.status, &*answer.body), (200, "hello"), "{rig:?}");
                let stands = format!("\"test-keys\";r={left};t=60");
                assert_eq!(answer.header("ratelimit"), Some(&*stands), "{rig:?}");
            }
            let denied = http.get_with("x-api-key", test).await;
            assert_eq!((denied.status, denied.retry_after()), (429, Some(60)), "{rig:?}");
            assert_eq!(denied.header("content-type"), Some("application/json"));
            let said = json!({"details": "Too many requests for the test API key.", "status": 429});
            assert_eq!(denied.json(), said);
        }
        for _ in 0..50 {
            let answer = http.get_with("x-api-key", "live-a").await;
            assert_eq!((answer.status, answer.header("ratelimit")), (200, None), "{rig:?}");
        }
        assert_eq!(http.get_with("x-api-key", "made-up").await.status, 401);
        rig.clock.advance(MINUTE);
        assert_eq!(http.get_with("x-api-key", "test-a").await.status, 200, "{rig:?}");
    });
}
