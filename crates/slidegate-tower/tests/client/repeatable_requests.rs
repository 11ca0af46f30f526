//! Which requests the client repeats.

use bytes::Bytes;
use http::{Method, Request};
use slidegate::Jitter;
use slidegate_tower::client::RetryLayer;
use tower::{Layer, ServiceExt};

use crate::scripted::{Scripted, denied, run_method, run_request, seconds};

fn layer() -> RetryLayer {
    RetryLayer::new().jitter(Jitter::NONE)
}

#[tokio::test(start_paused = true)]
async fn what_is_idempotent_is_repeated_and_nothing_else() {
    let own = Method::from_bytes(b"PURGE").unwrap();
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
        (own, false),
    ];
    for (method, repeated) in methods {
        let ran = run_method(&layer(), method.clone(), vec![denied(3)]).await;
        let expected = if repeated { (200, seconds(3)) } else { (429, seconds(0)) };
        assert_eq!((ran.status(), ran.took), expected, "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_post_with_an_idempotency_key_is_repeated() {
    for (key, status) in [("8e03978e", 200), ("", 429), (" ", 429)] {
        let request = Request::post("/").header("idempotency-key", key);
        assert_eq!(run_request(&layer(), request, [denied(3)]).await.status(), status, "`{key}`");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_opted_in_is_repeated_beside_the_rest() {
    let layer =
        layer().also_repeat(|head| head.uri.path() == "/search" && head.method == Method::POST);
    let requests = [
        (Request::post("/search"), 200),
        (Request::post("/order"), 429),
        (Request::patch("/search"), 429),
        (Request::get("/order"), 200),
    ];
    for (request, status) in requests {
        assert_eq!(run_request(&layer, request, [denied(3)]).await.status(), status);
    }
}

#[tokio::test(start_paused = true)]
async fn every_attempt_has_the_whole_body() {
    let service = Scripted::new([denied(1), denied(1), denied(1)]);
    let body = Bytes::from(vec![7; 100_000]);
    let request = Request::put("/").body(body.clone()).unwrap();
    layer().layer(service.clone()).oneshot(request).await.unwrap();
    let bodies: Vec<_> = service.asked().into_iter().map(|asked| asked.body).collect();
    assert_eq!(bodies, vec![body; 4]);
}
