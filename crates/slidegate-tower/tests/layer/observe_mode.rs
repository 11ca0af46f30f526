//! Tests of observe mode, in which the layer reports decisions but denies no request.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use slidegate::Decision;
use slidegate_tower::extract::RequestHead;
use slidegate_tower::{Attributes, RateLimitLayer, WhenMissing, extract};

use crate::layer::fixture::{MINUTE, hello_router, serve};

/// Returns a function for `inspect` that counts the requests that an observing limit would have denied.
fn new_observed_denial_counter(
    count: &Arc<AtomicUsize>,
) -> impl Fn(RequestHead<'_>, &Decision<'_>) + Send + Sync + 'static {
    let count = count.clone();
    move |_, decision| {
        assert!(decision.is_allowed());
        let would_deny = decision.limits().any(|limit| limit.is_observed() && !limit.fits());
        count.fetch_add(usize::from(would_deny), Ordering::Relaxed);
    }
}

#[tokio::test]
async fn rule_in_observe_mode_never_denies() {
    with_both_stores!(|fixture| {
        let gate = fixture.gate(
            "rules:
              - { name: trial, limits: [2/min], mode: observe }
              - { name: all, limits: [100/min] }",
        );
        let count = Arc::new(AtomicUsize::new(0));
        let layer = RateLimitLayer::new(gate, Attributes::new())
            .inspect(new_observed_denial_counter(&count));
        let http = serve(hello_router().layer(layer)).await;
        for nth in 1..=5 {
            let response = http.get("/").await;
            assert_eq!(response.status, 200, "{fixture:?}");
            // Headers do not report observed limits.
            assert_eq!(response.header("ratelimit-policy"), Some("\"all\";q=100;w=60"));
            assert_eq!(count.load(Ordering::Relaxed), usize::saturating_sub(nth, 2), "{fixture:?}");
        }
    });
}

#[tokio::test]
async fn limiter_in_observe_mode_never_denies() {
    with_both_stores!(|fixture| {
        let limiter = fixture.limiter(2, MINUTE).named("trial").observing();
        let count = Arc::new(AtomicUsize::new(0));
        let layer = RateLimitLayer::keyed_by(limiter, extract::value("all"), WhenMissing::Deny)
            .inspect(new_observed_denial_counter(&count));
        let http = serve(hello_router().layer(layer)).await;
        for nth in 1..=5 {
            let response = http.get("/").await;
            assert_eq!((response.status, response.header("ratelimit")), (200, None), "{fixture:?}");
            assert_eq!(count.load(Ordering::Relaxed), usize::saturating_sub(nth, 2), "{fixture:?}");
        }
    });
}

#[tokio::test]
async fn observe_mode_allows_request_without_key() {
    with_both_stores!(|fixture| {
        let gate = fixture.gate(
            "rules:
              - { name: a, per: [key], limits: [2/min], mode: observe, when_missing: deny }",
        );
        let attributes = Attributes::new().with("key", extract::api_key());
        let count = Arc::new(AtomicUsize::new(0));
        let gate =
            RateLimitLayer::new(gate, attributes).inspect(new_observed_denial_counter(&count));
        let limiter = fixture.limiter(2, MINUTE).observing();
        let limiter = RateLimitLayer::keyed_by(limiter, extract::api_key(), WhenMissing::Deny)
            .inspect(new_observed_denial_counter(&count));
        for app in [hello_router().layer(gate), hello_router().layer(limiter)] {
            let http = serve(app).await;
            let response = http.get("/").await;
            assert_eq!((response.status, &*response.body), (200, "hello"), "{fixture:?}");
        }
        assert_eq!(count.load(Ordering::Relaxed), 2, "{fixture:?}");
    });
}

#[tokio::test]
async fn inspect_callback_receives_request_and_decision() {
    with_both_stores!(|fixture| {
        let (sender, receiver) = mpsc::channel();
        let layer = RateLimitLayer::keyed_by(
            fixture.limiter(1, MINUTE),
            extract::value("all"),
            WhenMissing::Deny,
        )
        .inspect(move |head, decision| {
            sender.send((head.uri.path().to_owned(), decision.is_allowed())).unwrap();
        });
        let http = serve(hello_router().layer(layer)).await;
        http.get("/nowhere").await;
        http.get("/").await;
        let inspected: Vec<_> = receiver.try_iter().collect();
        assert_eq!(
            inspected,
            [("/nowhere".to_owned(), true), ("/".to_owned(), false)],
            "{fixture:?}"
        );
    });
}
