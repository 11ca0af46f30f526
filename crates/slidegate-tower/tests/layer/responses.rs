//! What answers say: headers, problems, own ones, jitter.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Response};
use serde_json::json;
use slidegate::headers::{self, Style};
use slidegate::{Clock, Jitter, JitterSample, Store, WallClock};
use slidegate_tower::{Attributes, Denial, RateLimitLayer, WhenMissing, extract};

use crate::rig::{Http, MINUTE, Rig, TICK, hello, serve};

/// Two requests a minute for each `x-api-key`.
async fn two_a_minute(rig: &Rig<impl Store>, style: Style) -> Http {
    let limiter = rig.limiter(2, MINUTE).named("per-key");
    let layer =
        RateLimitLayer::keyed_by(limiter, extract::api_key(), WhenMissing::Deny).headers(style);
    serve(hello().layer(layer)).await
}

#[tokio::test]
async fn what_passes_and_what_is_denied_tell_how_the_limits_stand() {
    with_both!(|rig| {
        let http = two_a_minute(&rig, Style::Ietf).await;
        for (status, stands) in [
            (200, "\"per-key\";r=1;t=60"),
            (200, "\"per-key\";r=0;t=60"),
            (429, "\"per-key\";r=0;t=60"),
        ] {
            let answer = http.get_with("x-api-key", "k1").await;
            assert_eq!(answer.status, status, "{rig:?}");
            assert_eq!(answer.header("ratelimit-policy"), Some("\"per-key\";q=2;w=60"));
            assert_eq!(answer.header("ratelimit"), Some(stands), "{rig:?}");
            assert_eq!(answer.retry_after(), (status == 429).then_some(60));
        }
    });
}

#[tokio::test]
async fn draft_03_tells_the_same_in_three_headers() {
    with_both!(|rig| {
        let http = two_a_minute(&rig, Style::Draft03).await;
        for (status, remaining) in [(200, "1"), (200, "0"), (429, "0")] {
            let answer = http.get_with("x-api-key", "k1").await;
            assert_eq!(answer.status, status);
            assert_eq!(answer.header("ratelimit-limit"), Some("2, 2;w=60"));
            assert_eq!(answer.header("ratelimit-remaining"), Some(remaining));
            assert_eq!(answer.header("ratelimit-reset"), Some("60"));
            assert_eq!(answer.retry_after(), (status == 429).then_some(60));
        }
    });
}

#[tokio::test]
async fn x_headers_tell_the_second_of_the_reset() {
    with_both!(|rig| {
        let http = two_a_minute(&rig, Style::X).await;
        for (status, remaining) in [(200, "1"), (200, "0"), (429, "0")] {
            let before = reset_at(MINUTE);
            let answer = http.get_with("x-api-key", "k1").await;
            assert_eq!(answer.status, status);
            assert_eq!(answer.header("x-ratelimit-limit"), Some("2"));
            assert_eq!(answer.header("x-ratelimit-remaining"), Some(remaining));
            let reset: u64 = answer.header("x-ratelimit-reset").unwrap().parse().unwrap();
            assert!((before..=reset_at(MINUTE)).contains(&reset), "{reset}");
            assert_eq!(answer.retry_after(), (status == 429).then_some(60));
        }
    });
}

/// The second, since the epoch, that is so far off.
fn reset_at(wait: Duration) -> u64 {
    WallClock.now().after(wait).as_micros().div_ceil(1_000_000)
}

#[tokio::test]
async fn without_a_style_only_a_denial_says_when_to_come_back() {
    with_both!(|rig| {
        let http = two_a_minute(&rig, Style::None).await;
        let told = |headers: &HeaderMap| {
            headers.keys().filter(|name| name.as_str().contains("ratelimit")).count()
        };
        for status in [200, 200, 429] {
            let answer = http.get_with("x-api-key", "k1").await;
            assert_eq!((answer.status, told(&answer.headers)), (status, 0));
            assert_eq!(answer.retry_after(), (status == 429).then_some(60));
        }
    });
}

/// Plans, a rule for some paths only, and one that enforces for half of the keys.
const MIXED: &str = "
rules:
  - name: key
    per: [api_key]
    limits: [2/s, 9/min]
    algorithm: sliding_log
    overrides:
      - { name: pro, when: { plan: pro }, limits: [8/s, 90/min] }
      - { name: free-for-all, when: { plan: internal }, limits: unlimited }
  - { name: nowhere, when: { path: /nowhere }, limits: [1/min], algorithm: sliding_log }
  - { name: half, per: [api_key], limits: [50/min], mode: { enforce: 50% } }
";

#[tokio::test]
async fn each_answer_tells_of_its_own_limits_whoever_came_first() {
    with_both!(|rig| {
        for style in Style::ALL {
            let gate = rig.gate(MIXED);
            let attributes = Attributes::new()
                .with("api_key", extract::api_key())
                .with("plan", extract::header("x-plan"))
                .with("path", extract::path());
            let told = Arc::new(Mutex::new(Vec::new()));
            let tell = told.clone();
            let layer =
                RateLimitLayer::new(gate, attributes).headers(style).inspect(move |_, ruling| {
                    let now = WallClock.now();
                    *tell.lock().unwrap() = headers::write(style, ruling, now, JitterSample::NONE);
                });
            let http = serve(hello().layer(layer)).await;
            for nth in 0..60 {
                let key = format!("k{}", nth % 7);
                let plan = ["free", "pro", "internal"][nth % 3];
                let path = ["/", "/nowhere"][nth % 2];
                let request = http.request(path).header("x-api-key", key).header("x-plan", plan);
                let answer = http.send(request).await;
                let told = told.lock().unwrap().clone();
                for name in style.header_names().iter().filter(|name| **name != "x-ratelimit-reset")
                {
                    let value = told.iter().find(|(told, _)| told == name);
                    let value = value.map(|(_, value)| &**value);
                    assert_eq!(answer.header(name), value, "{nth}: {style} {rig:?}");
                }
                rig.clock.advance(Duration::from_millis(40));
            }
        }
    });
}

#[tokio::test]
async fn a_denial_is_a_problem_that_names_the_limits() {
    with_both!(|rig| {
        let gate = rig.gate(
            "rules:
              - { name: per-key, per: [api_key], limits: [1/s, 1/min] }
              - { name: all, limits: [10/s] }",
        );
        let attributes = Attributes::new().with("api_key", extract::api_key());
        let http = serve(hello().layer(RateLimitLayer::new(gate, attributes))).await;
        assert_eq!(http.get_with("x-api-key", "k1").await.body, "hello");
        let denied = http.get_with("x-api-key", "k1").await;
        assert_eq!(denied.status, 429);
        assert_eq!(denied.header("content-type"), Some("application/problem+json"));
        assert_eq!(
            denied.json(),
            json!({
                "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "title": "Quota exceeded",
                "status": 429,
                "reason": "limit_exceeded",
                "violated-policies": ["per-key.1s", "per-key.1m"],
            })
        );
    });
}

#[tokio::test]
async fn who_comes_back_when_told_to_passes_and_who_comes_a_tick_before_does_not() {
    with_both!(|rig| {
        let http = two_a_minute(&rig, Style::Ietf).await;
        http.get_with("x-api-key", "k1").await;
        rig.clock.advance(Duration::from_secs(20));
        http.get_with("x-api-key", "k1").await;
        let denied = http.get_with("x-api-key", "k1").await;
        let wait = Duration::from_secs(denied.retry_after().unwrap());
        assert_eq!(wait, Duration::from_secs(40));
        rig.clock.advance(wait - TICK);
        assert_eq!(http.get_with("x-api-key", "k1").await.status, 429, "{rig:?}");
        rig.clock.advance(TICK);
        assert_eq!(http.get_with("x-api-key", "k1").await.status, 200, "{rig:?}");
    });
}

#[tokio::test]
async fn jitter_only_lengthens_and_all_headers_speak_of_one_moment() {
    with_both!(|rig| {
        let limiter = rig.limiter(1, MINUTE).named("per-key");
        let layer = RateLimitLayer::keyed_by(limiter, extract::api_key(), WhenMissing::Deny)
            .retry_jitter(Jitter::up_to_percent(100))
            .respond_with(|denial: &Denial<'_>| {
                let mut response = Response::new(Body::empty());
                *response.status_mut() = denial.status();
                let wait = denial.retry_after().unwrap().as_secs_f64().ceil();
                response.headers_mut().insert("x-own-wait", (wait as u64).into());
                response
            });
        let http = serve(hello().layer(layer)).await;
        // Of what passes nothing is lengthened.
        assert_eq!(
            http.get_with("x-api-key", "k1").await.header("ratelimit"),
            Some("\"per-key\";r=0;t=60")
        );
        let mut waits = Vec::new();
        for _ in 0..50 {
            let denied = http.get_with("x-api-key", "k1").await;
            let wait = denied.retry_after().unwrap();
            assert!((60..=120).contains(&wait), "{wait}");
            assert_eq!(denied.header("ratelimit"), Some(&*format!("\"per-key\";r=0;t={wait}")));
            assert_eq!(denied.header("x-own-wait"), Some(&*wait.to_string()));
            waits.push(wait);
        }
        waits.sort_unstable();
        waits.dedup();
        assert!(waits.len() > 10, "{waits:?}");
    });
}

#[tokio::test]
async fn ones_own_answer_keeps_what_it_says_and_gets_the_headers() {
    with_both!(|rig| {
        let limiter = rig.limiter(1, MINUTE).named("per-key");
        let layer = RateLimitLayer::keyed_by(limiter, extract::api_key(), WhenMissing::Deny)
            .respond_with(|denial: &Denial<'_>| {
                let body = format!("{} is over", denial.head().uri.path());
                let response = Response::builder().status(420).header("retry-after", "7");
                response.body(Body::from(body)).unwrap()
            });
        let http = serve(hello().layer(layer)).await;
        http.get_with("x-api-key", "k1").await;
        let denied = http.get_with("x-api-key", "k1").await;
        assert_eq!((denied.status, &*denied.body), (420, "/ is over"));
        assert_eq!(denied.header("ratelimit"), Some("\"per-key\";r=0;t=60"));
        assert_eq!(denied.retry_after(), Some(7), "{rig:?}");
    });
}
