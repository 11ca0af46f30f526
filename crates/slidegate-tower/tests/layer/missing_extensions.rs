//! Tests of requests to which the server has not added an extension that a limit counts by.

use axum::Router;
use axum::body::Body;
use axum::extract::Extension;
use axum::http::{Request, StatusCode};
use axum::middleware::map_request;
use serde_json::json;
use slidegate::Store;
use slidegate_tower::{Attributes, RateLimitLayer, TrustedProxies, WhenMissing, extract};
use tower::ServiceExt;
use tower_layer::Layer;

use crate::layer::fixture::{MINUTE, StoreFixture, hello_router, serve, serve_without_peers};
use crate::layer::log::Log;

/// The authenticated user.
#[derive(Clone)]
struct User(&'static str);

/// Returns two layers, one over a limiter and one over a gate, that count by an extension or by the address.
fn layers(
    fixture: &StoreFixture<impl Store>,
    when_missing: WhenMissing,
) -> [(&'static str, RateLimitLayer); 4] {
    let ip = || extract::client_ip(TrustedProxies::none());
    let user = || extract::extension(|user: &User| Some(user.0));
    let policy = |name| {
        let when_missing = match when_missing {
            WhenMissing::Skip => "skip",
            WhenMissing::Deny => "deny",
        };
        fixture.gate(&format!(
            "rules: [{{ name: a, per: [{name}], limits: [2/min], when_missing: {when_missing} }}]"
        ))
    };
    [
        ("ConnectInfo", RateLimitLayer::keyed_by(fixture.limiter(2, MINUTE), ip(), when_missing)),
        ("User", RateLimitLayer::keyed_by(fixture.limiter(2, MINUTE), user(), when_missing)),
        ("ConnectInfo", RateLimitLayer::new(policy("ip"), Attributes::new().with("ip", ip()))),
        ("User", RateLimitLayer::new(policy("user"), Attributes::new().with("user", user()))),
    ]
}

#[tokio::test]
async fn missing_extension_is_warned_about_once() {
    for (when_missing, status) in [(WhenMissing::Skip, 200), (WhenMissing::Deny, 429)] {
        with_both_stores!(|fixture| {
            for (extension, layer) in layers(&fixture, when_missing) {
                let log = Log::new();
                let http = serve_without_peers(hello_router().layer(layer)).await;
                for _ in 0..3 {
                    assert_eq!(http.get("/").await.status, status, "{extension} {fixture:?}");
                }
                let warning = log.take_warning();
                assert!(warning.contains(extension), "{warning}");
            }
        });
    }
}

#[tokio::test]
async fn present_extension_causes_no_warning() {
    with_both_stores!(|fixture| {
        for (_, layer) in layers(&fixture, WhenMissing::Deny) {
            let log = Log::new();
            let app: Router = hello_router().layer(layer).layer(Extension(User("ann")));
            let http = serve(app).await;
            assert_eq!(http.get("/").await.status, 200);
            assert_eq!(log.take_warnings(), [""; 0], "{fixture:?}");
        }
    });
}

#[tokio::test]
async fn optional_extension_causes_no_warning() {
    with_both_stores!(|fixture| {
        let log = Log::new();
        let gate = fixture.gate(
            "
rules:
  - name: a
    per: [user|ip]
    limits: [2/min]
    overrides: [{ when: { user: root }, limits: [9/min] }]
",
        );
        let attributes = Attributes::new()
            .with("user", extract::extension(|user: &User| Some(user.0)))
            .with("ip", extract::client_ip(TrustedProxies::none()));
        let layer = RateLimitLayer::new(gate, attributes);
        let http = serve(hello_router().layer(layer)).await;
        for status in [200, 200, 429] {
            assert_eq!(http.get("/").await.status, status, "{fixture:?}");
        }
        assert_eq!(log.take_warnings(), [""; 0], "{fixture:?}");
    });
}

#[tokio::test]
async fn missing_extension_status_replaces_deny_status() {
    with_both_stores!(|fixture| {
        for (extension, layer) in layers(&fixture, WhenMissing::Deny) {
            let layer = layer.missing_extension_status(StatusCode::INTERNAL_SERVER_ERROR);
            let http = serve_without_peers(hello_router().layer(layer)).await;
            let response = http.get("/").await;
            assert_eq!(response.status, 500, "{extension} {fixture:?}");
            assert_eq!(response.header("ratelimit"), None);
            assert_eq!(
                response.json(),
                json!({
                    "type": "about:blank",
                    "title": "Internal Server Error",
                    "status": 500,
                    "detail": "the server has not added a value that a limit counts by",
                })
            );
        }
    });
}

#[tokio::test]
async fn missing_extension_status_leaves_other_denials() {
    with_both_stores!(|fixture| {
        let limiter = fixture.limiter(1, MINUTE);
        let layer = RateLimitLayer::keyed_by(limiter, extract::api_key(), WhenMissing::Deny)
            .missing_extension_status(StatusCode::INTERNAL_SERVER_ERROR);
        let http = serve_without_peers(hello_router().layer(layer)).await;
        assert_eq!(http.get("/").await.status, 429, "the client has not sent the key");
        for status in [200, 429] {
            assert_eq!(http.get_with_header("x-api-key", "k").await.status, status, "{fixture:?}");
        }
    });
}

/// Adds the user to requests with the header `x-user`.
async fn identify(mut request: Request<Body>) -> Request<Body> {
    if request.headers().contains_key("x-user") {
        request.extensions_mut().insert(User("ann"));
    }
    request
}

#[tokio::test]
async fn extension_of_earlier_request_causes_no_warning() {
    with_both_stores!(|fixture| {
        let log = Log::new();
        let limiter = fixture.limiter(2, MINUTE);
        let user = extract::extension(|user: &User| Some(user.0));
        let layer = RateLimitLayer::keyed_by(limiter, user, WhenMissing::Deny);
        let http = serve(hello_router().layer(layer).layer(map_request(identify))).await;
        assert_eq!(http.get_with_header("x-user", "ann").await.status, 200);
        assert_eq!(http.get("/").await.status, 429, "an anonymous client");
        assert_eq!(log.take_warnings(), [""; 0], "{fixture:?}");
    });
}

#[tokio::test]
async fn layer_outside_router_has_no_route() {
    let log = Log::new();
    let fixture = StoreFixture::with_sync_store();
    let gate = fixture.gate("rules: [{ name: a, when: { route: / }, limits: [1/min] }]");
    let attributes = Attributes::new().with("route", extract::matched_route());
    let layer = RateLimitLayer::new(gate, attributes);
    let app = layer.layer(hello_router());
    for _ in 0..3 {
        let request = Request::get("/").body(Body::empty()).unwrap();
        assert_eq!(app.clone().oneshot(request).await.unwrap().status(), 200);
    }
    assert!(log.take_warning().contains("MatchedPath"));
}
