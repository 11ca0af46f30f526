//! Tests of the example `examples/plans.rs`, whose limits depend on the plan of the customer.

use crate::fixture::{TestClient, serve};

#[path = "../../../../examples/plans.rs"]
#[expect(dead_code, reason = "the example's `main` is not called here")]
mod plans;

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
