//! Tests of the examples `examples/plans.rs`, whose limits depend on the plan of the customer, and
//! `examples/axum_login.rs`, which limits failed logins.

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use tower::ServiceExt;

use crate::layer::fixture::{TestClient, serve};

#[path = "../../../../examples/plans.rs"]
#[expect(dead_code, reason = "the example's `main` is not called here")]
mod plans;

#[path = "../../../../examples/axum_login.rs"]
#[expect(dead_code, reason = "the example's `main` is not called here")]
mod axum_login;

async fn send_requests_with_key(http: &TestClient, key: &str, times: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..times {
        let request = http.request("/v1/items/7").header("authorization", format!("Bearer {key}"));
        statuses.push(http.send(request).await.status);
    }
    statuses
}

#[tokio::test]
async fn plans_example_limit_depends_on_plan() {
    let http = serve(plans::app().unwrap()).await;
    assert_eq!(
        send_requests_with_key(&http, "key-of-ann", 7).await,
        [200, 200, 200, 200, 200, 429, 429]
    );
    assert_eq!(
        send_requests_with_key(&http, "key-of-bob", 21).await,
        [&[200; 20][..], &[429]].concat()
    );
    assert_eq!(send_requests_with_key(&http, "key-of-acme", 200).await, [200; 200]);
    assert_eq!(send_requests_with_key(&http, "made-up", 2).await, [401, 401]);
    for status in [200, 200, 200, 200, 200, 429] {
        assert_eq!(http.get("/v1/items/7").await.status, status, "by address");
    }
}

#[tokio::test]
async fn plans_example_export_requires_api_key() {
    let http = serve(plans::app().unwrap()).await;
    let export =
        async |request: axum::http::request::Builder| http.send(request.method("POST")).await;
    let anonymous = export(http.request("/v1/exports")).await;
    assert_eq!((anonymous.status, anonymous.retry_after()), (429, None));
    let policies = anonymous.header("ratelimit-policy").unwrap();
    assert!(policies.ends_with("\"exports\";q=0;w=1"), "{policies}");
    for status in [200, 200, 429] {
        let request = http.request("/v1/exports").header("authorization", "Bearer key-of-acme");
        assert_eq!(export(request).await.status, status);
    }
}

/// Sends a login from the address 192.0.2.`host`, and returns the status of the response.
async fn send_login(app: &Router, host: u8, body: String) -> u16 {
    let request = Request::post("/login")
        .header("content-type", "application/json")
        .extension(ConnectInfo(SocketAddr::from(([192, 0, 2, host], 1))))
        .body(Body::from(body))
        .unwrap();
    app.clone().oneshot(request).await.unwrap().status().as_u16()
}

fn login_body(account: &str, password: &str) -> String {
    serde_json::json!({ "account": account, "password": password }).to_string()
}

#[tokio::test]
async fn login_example_limits_failed_logins_of_address() {
    let app = axum_login::app().unwrap();
    for _ in 0..10 {
        assert_eq!(send_login(&app, 1, login_body("ann", "correct horse")).await, 200);
    }
    for attempt in 0..5 {
        let body = login_body(&format!("user{attempt}"), "wrong");
        assert_eq!(send_login(&app, 1, body).await, 401);
    }
    assert_eq!(send_login(&app, 1, login_body("ann", "correct horse")).await, 429);
    assert_eq!(send_login(&app, 2, login_body("ann", "correct horse")).await, 200);
}

#[tokio::test]
async fn login_example_limits_failed_logins_of_account() {
    let app = axum_login::app().unwrap();
    for host in 0..20 {
        let account = ["ann", " ANN"][usize::from(host % 2)];
        assert_eq!(send_login(&app, host, login_body(account, "wrong")).await, 401);
    }
    assert_eq!(send_login(&app, 20, login_body("Ann", "wrong")).await, 429);
    assert_eq!(send_login(&app, 20, login_body("bob", "wrong")).await, 401);
}

#[tokio::test]
async fn login_example_rejects_large_and_invalid_bodies() {
    let app = axum_login::app().unwrap();
    assert_eq!(send_login(&app, 1, login_body("ann", &"x".repeat(1024))).await, 413);
    assert_eq!(send_login(&app, 1, "{".to_owned()).await, 400);
}
