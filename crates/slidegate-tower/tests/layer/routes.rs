//! Tests of a layer at different positions in an axum router. The position determines the requests that the layer
//! counts.

use axum::Router;
use axum::routing::get;
use slidegate_tower::{Attributes, RateLimitLayer, extract};

use crate::layer::fixture::{hello_router, serve};

const ONE_REQUEST_PER_MINUTE_POLICY: &str =
    "rules: [{ name: all, limits: [1/min], algorithm: sliding_log }]";

#[tokio::test]
async fn router_layer_counts_unmatched_requests() {
    with_both_stores!(|fixture| {
        let layer =
            RateLimitLayer::new(fixture.gate(ONE_REQUEST_PER_MINUTE_POLICY), Attributes::new());
        let http = serve(hello_router().layer(layer)).await;
        let nowhere = http.get("/nowhere").await;
        assert_eq!(nowhere.status, 404);
        assert_eq!(nowhere.header("ratelimit"), Some("\"all\";r=0"));
        assert_eq!(http.get("/").await.status, 429, "{fixture:?}");
    });
}

#[tokio::test]
async fn route_layer_counts_only_matched_requests() {
    with_both_stores!(|fixture| {
        let layer =
            RateLimitLayer::new(fixture.gate(ONE_REQUEST_PER_MINUTE_POLICY), Attributes::new());
        let http = serve(hello_router().route_layer(layer)).await;
        for _ in 0..3 {
            let nowhere = http.get("/nowhere").await;
            assert_eq!((nowhere.status, nowhere.header("ratelimit")), (404, None));
        }
        assert_eq!(http.get("/").await.status, 200, "{fixture:?}");
        assert_eq!(http.get("/").await.status, 429, "{fixture:?}");
    });
}

#[tokio::test]
async fn paths_of_same_route_share_one_counter() {
    with_both_stores!(|fixture| {
        let gate =
            fixture.gate("rules: [{ name: per-route, per: [method, route], limits: [2/min] }]");
        let attributes = Attributes::new()
            .with("method", extract::method())
            .with("route", extract::matched_route());
        let app = Router::new()
            .route("/", get(|| async { "hello" }))
            .route("/users/{id}", get(|| async { "a user" }))
            .layer(RateLimitLayer::new(gate, attributes));
        let http = serve(app).await;
        for (path, status) in [
            ("/users/1", 200),
            ("/users/2", 200),
            ("/users/3", 429),
            ("/users/1?a", 429),
            ("/", 200),
        ] {
            assert_eq!(http.get(path).await.status, status, "{path} {fixture:?}");
        }
        // No route, no attribute: the rule does not apply.
        for _ in 0..3 {
            let nowhere = http.get("/nowhere").await;
            assert_eq!((nowhere.status, nowhere.header("ratelimit")), (404, None));
        }
    });
}
