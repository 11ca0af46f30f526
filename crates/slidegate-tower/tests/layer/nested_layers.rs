//! Tests of nested layers. The outer layer limits all routes, and the inner layer limits one of them.

use axum::Router;
use axum::routing::get;
use slidegate::Store;
use slidegate::headers::Style;
use slidegate_tower::{RateLimitLayer, Settlement, WhenMissing, extract};

use crate::layer::fixture::{MINUTE, StoreFixture, TestClient, serve};

/// Starts a server with two nested layers: four requests per minute for all routes, and two requests per minute for
/// `/costly`.
async fn serve_with_nested_layers(fixture: &StoreFixture<impl Store>, style: Style) -> TestClient {
    let all_clients = || extract::value("all-clients");
    let all = RateLimitLayer::keyed_by(
        fixture.limiter(4, MINUTE).named("all"),
        all_clients(),
        WhenMissing::Deny,
    );
    let costly = fixture.limiter(2, MINUTE).named("costly");
    let costly = RateLimitLayer::keyed_by(costly, all_clients(), WhenMissing::Deny);
    let app = Router::new()
        .route("/costly", get(|| async { "costly" }).layer(costly.headers(style)))
        .route("/cheap", get(|| async { "cheap" }))
        .layer(all.headers(style));
    serve(app).await
}

#[tokio::test]
async fn ietf_headers_list_limits_of_both_layers() {
    with_both_stores!(|fixture| {
        let http = serve_with_nested_layers(&fixture, Style::Ietf).await;
        for (path, status, expected) in [
            ("/costly", 200, &["\"costly\";r=1;t=60", "\"all\";r=3;t=60"][..]),
            ("/costly", 200, &["\"costly\";r=0", "\"all\";r=2;t=60"]),
            ("/costly", 429, &["\"costly\";r=0;t=60", "\"all\";r=1;t=60"]),
            ("/cheap", 200, &["\"all\";r=0"]),
            ("/costly", 429, &["\"all\";r=0;t=60"]),
        ] {
            let response = http.get(path).await;
            assert_eq!(response.status, status, "{path} {fixture:?}");
            assert_eq!(response.header_values("ratelimit"), expected, "{path} {fixture:?}");
            assert_eq!(response.retry_after(), (status == 429).then_some(60));
        }
    });
}

#[tokio::test]
async fn single_value_headers_report_layer_with_fewest_remaining_units() {
    for (style, limit, remaining) in [
        (Style::Draft03, "ratelimit-limit", "ratelimit-remaining"),
        (Style::X, "x-ratelimit-limit", "x-ratelimit-remaining"),
    ] {
        with_both_stores!(|fixture| {
            let http = serve_with_nested_layers(&fixture, style).await;
            let fetch = async |path| {
                let response = http.get(path).await;
                let limit = response.header(limit).unwrap().split(',').next().unwrap().to_owned();
                (response.status, limit, response.header(remaining).unwrap().to_owned())
            };
            for (path, status, limit, remaining) in [
                ("/costly", 200, "2", "1"),
                ("/costly", 200, "2", "0"),
                ("/costly", 429, "2", "0"),
                ("/cheap", 200, "4", "0"),
                ("/costly", 429, "4", "0"),
            ] {
                let expected = (status, limit.to_owned(), remaining.to_owned());
                assert_eq!(fetch(path).await, expected, "{path} {style} {fixture:?}");
            }
        });
    }
}

#[tokio::test]
async fn outer_layer_reverts_charge_if_inner_layer_denies() {
    with_both_stores!(|fixture| {
        let all_clients = || extract::value("all-clients");
        let all = fixture.limiter(3, MINUTE).named("all");
        let all =
            RateLimitLayer::keyed_by(all, all_clients(), WhenMissing::Deny).settle(|response| {
                if response.status == 429 { Settlement::Revert } else { Settlement::Keep }
            });
        let costly = fixture.limiter(1, MINUTE).named("costly");
        let costly = RateLimitLayer::keyed_by(costly, all_clients(), WhenMissing::Deny);
        let app = Router::new()
            .route("/costly", get(|| async { "costly" }).layer(costly))
            .route("/cheap", get(|| async { "cheap" }))
            .layer(all);
        let http = serve(app).await;
        assert_eq!(http.get("/costly").await.status, 200);
        for _ in 0..5 {
            assert_eq!(
                http.get("/costly").await.header_values("ratelimit")[0],
                "\"costly\";r=0;t=60"
            );
        }
        let cheap = http.get("/cheap").await;
        assert_eq!(cheap.header("ratelimit"), Some("\"all\";r=1;t=60"), "{fixture:?}");
    });
}
