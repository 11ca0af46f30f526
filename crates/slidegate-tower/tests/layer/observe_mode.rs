//! To watch before one denies.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use slidegate::Ruling;
use slidegate_tower::extract::RequestHead;
use slidegate_tower::{Attributes, RateLimitLayer, WhenMissing, extract};

use crate::rig::{MINUTE, hello, serve};

/// Counts what a limit that observes would have denied.
fn watching(count: &Arc<AtomicUsize>) -> impl Fn(RequestHead<'_>, &Ruling) + Send + Sync + 'static {
    let count = count.clone();
    move |_, ruling| {
        assert!(ruling.decision().is_allowed());
        let would_deny = ruling.limits().any(|limit| limit.is_observed() && !limit.outcome.fits());
        count.fetch_add(usize::from(would_deny), Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_rule_that_observes_denies_nobody_and_what_it_would_have_denied_is_seen() {
    with_both!(|rig| {
        let gate = rig.gate(
            "rules:
              - { name: trial, limits: [2/min], mode: observe }
              - { name: all, limits: [100/min] }",
        );
        let count = Arc::new(AtomicUsize::new(0));
        let layer = RateLimitLayer::new(gate, Attributes::new()).inspect(watching(&count));
        let http = serve(hello().layer(layer)).await;
        for nth in 1..=5 {
            let answer = http.get("/").await;
            assert_eq!(answer.status, 200, "{rig:?}");
            // Who cannot be denied by a limit is not told of it.
            assert_eq!(answer.header("ratelimit-policy"), Some("\"all\";q=100;w=60"));
            assert_eq!(count.load(Ordering::Relaxed), usize::saturating_sub(nth, 2), "{rig:?}");
        }
    });
}

#[tokio::test]
async fn a_limiter_that_observes_denies_nobody_and_what_it_would_have_denied_is_seen() {
    with_both!(|rig| {
        let limiter = rig.limiter(2, MINUTE).named("trial").observing();
        let count = Arc::new(AtomicUsize::new(0));
        let layer = RateLimitLayer::keyed_by(limiter, extract::value("all"), WhenMissing::Deny)
            .inspect(watching(&count));
        let http = serve(hello().layer(layer)).await;
        for nth in 1..=5 {
            let answer = http.get("/").await;
            assert_eq!((answer.status, answer.header("ratelimit")), (200, None), "{rig:?}");
            assert_eq!(count.load(Ordering::Relaxed), usize::saturating_sub(nth, 2), "{rig:?}");
        }
    });
}

#[tokio::test]
async fn who_observes_denies_nobody_for_want_of_a_key_either() {
    with_both!(|rig| {
        let gate = rig.gate(
            "rules:
              - { name: a, per: [key], limits: [2/min], mode: observe, when_missing: deny }",
        );
        let attributes = Attributes::new().with("key", extract::api_key());
        let count = Arc::new(AtomicUsize::new(0));
        let gate = RateLimitLayer::new(gate, attributes).inspect(watching(&count));
        let limiter = rig.limiter(2, MINUTE).observing();
        let limiter = RateLimitLayer::keyed_by(limiter, extract::api_key(), WhenMissing::Deny)
            .inspect(watching(&count));
        for app in [hello().layer(gate), hello().layer(limiter)] {
            let http = serve(app).await;
            let answer = http.get("/").await;
            assert_eq!((answer.status, &*answer.body), (200, "hello"), "{rig:?}");
        }
        assert_eq!(count.load(Ordering::Relaxed), 2, "{rig:?}");
    });
}

#[tokio::test]
async fn what_is_seen_is_every_ruling_with_the_request_it_is_of() {
    with_both!(|rig| {
        let (sender, receiver) = mpsc::channel();
        let layer = RateLimitLayer::keyed_by(
            rig.limiter(1, MINUTE),
            extract::value("all"),
            WhenMissing::Deny,
        )
        .inspect(move |head, ruling| {
            sender.send((head.uri.path().to_owned(), ruling.decision().is_allowed())).unwrap();
        });
        let http = serve(hello().layer(layer)).await;
        http.get("/nowhere").await;
        http.get("/").await;
        let seen: Vec<_> = receiver.try_iter().collect();
        assert_eq!(seen, [("/nowhere".to_owned(), true), ("/".to_owned(), false)], "{rig:?}");
    });
}
