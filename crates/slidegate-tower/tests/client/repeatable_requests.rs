//! Tests that the retrying client repeats only the requests that may be sent more than once.

use bytes::Bytes;
use http::{Method, Request};
use slidegate::Jitter;
use slidegate_tower::client::RetryLayer;
use tower::{Layer, ServiceExt};

use crate::client::test_util::{
    ScriptedService, denial_with_wait, run_method, run_request, seconds,
};

fn layer_without_jitter() -> RetryLayer {
    RetryLayer::new().jitter(Jitter::NONE)
}

#[tokio::test(start_paused = true)]
async fn only_idempotent_methods_are_repeated() {
    let custom = Method::from_bytes(b"PURGE").unwrap();
    let methods = [
        (Method::GET, true),
        (Method::HEAD, true),
        (Method::OPTIONS, true),
        (Method::TRACE, true),
        (Method::PUT, true),
        (Method::DELETE, true),
        (Method::POST, false),
        (Method::PATCH, false),
        (Method::CONNECT, false),
        (custom, false),
    ];
    for (method, is_repeated) in methods {
        let result =
            run_method(&layer_without_jitter(), method.clone(), vec![denial_with_wait(3)]).await;
        let expected = if is_repeated { (200, seconds(3)) } else { (429, seconds(0)) };
        assert_eq!((result.status(), result.elapsed), expected, "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn post_with_idempotency_key_is_repeated() {
    for (key, status) in [("8e03978e", 200), ("", 429), (" ", 429)] {
        let request = Request::post("/").header("idempotency-key", key);
        assert_eq!(
            run_request(&layer_without_jitter(), request, [denial_with_wait(3)]).await.status(),
            status,
            "`{key}`"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn requests_selected_by_predicate_are_repeated() {
    let layer = layer_without_jitter()
        .also_repeat(|head| head.uri.path() == "/search" && head.method == Method::POST);
    let requests = [
        (Request::post("/search"), 200),
        (Request::post("/order"), 429),
        (Request::patch("/search"), 429),
        (Request::get("/order"), 200),
    ];
    for (request, status) in requests {
        assert_eq!(run_request(&layer, request, [denial_with_wait(3)]).await.status(), status);
    }
}

#[tokio::test(start_paused = true)]
async fn every_attempt_sends_complete_body() {
    let service =
        ScriptedService::new([denial_with_wait(1), denial_with_wait(1), denial_with_wait(1)]);
    let body = Bytes::from(vec![7; 100_000]);
    let request = Request::put("/").body(body.clone()).unwrap();
    layer_without_jitter().layer(service.clone()).oneshot(request).await.unwrap();
    let bodies: Vec<_> = service.calls().into_iter().map(|call| call.body).collect();
    assert_eq!(bodies, vec![body; 4]);
}
