//! An axum API with one limit for each API key. The counters are in Redis in production, and in memory in tests.
//!
//! ```sh
//! REDIS_URL=redis://127.0.0.1:6379 cargo run -p slidegate-tower --features axum --example axum_layer
//! curl -i -H 'x-api-key: k1' http://127.0.0.1:3000/items
//! ```

use std::env;
use std::error::Error;

use axum::{Router, routing::get};
use slidegate::{Limiter, LimiterError, Store};
use slidegate_redis::{RedisSettings, RedisStore};
use slidegate_tower::{RateLimitLayer, WhenMissing, extract};

/// Creates the API, with three requests per minute for each API key, counted in `store`.
fn app<S: Store>(store: S) -> Result<Router, LimiterError> {
    let limiter = Limiter::with_store("per-key", ["3/min"], store)?;
    let limits = RateLimitLayer::keyed_by(limiter, extract::api_key(), WhenMissing::Deny);
    Ok(Router::new().route("/items", get(async || "items\n")).layer(limits))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = RedisStore::open(&env::var("REDIS_URL")?, RedisSettings::default())?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    Ok(axum::serve(listener, app(store)?).await?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test may panic")]
mod tests {
    use axum::body::Body;
    use axum::http::{Request, StatusCode};
    use axum::response::Response;
    use slidegate::MemoryStore;
    use tower::ServiceExt;

    use super::*;

    async fn get_items(app: &Router, key: &str) -> Response {
        let request = Request::get("/items").header("x-api-key", key).body(Body::empty()).unwrap();
        app.clone().oneshot(request).await.unwrap()
    }

    #[tokio::test]
    async fn fourth_request_of_key_is_denied() {
        let app = app(MemoryStore::new()).unwrap();
        for _ in 0..3 {
            let response = get_items(&app, "k1").await;
            assert_eq!(response.status(), StatusCode::OK);
            assert!(response.headers().contains_key("ratelimit"));
        }
        let denied = get_items(&app, "k1").await;
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(denied.headers().contains_key("retry-after"));
        assert_eq!(get_items(&app, "k2").await.status(), StatusCode::OK);
    }
}
