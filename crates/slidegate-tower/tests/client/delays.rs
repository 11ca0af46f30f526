//! Tests of the waits of the retrying client. The response states the wait, or the client chooses it by backoff. Jitter
//! lengthens a stated wait.

use std::time::{Duration, UNIX_EPOCH};

use http::{HeaderMap, HeaderValue};
use proptest::prelude::*;
use slidegate::clock::{Clock, WallClock};
use slidegate::{Jitter, Timestamp};
use slidegate_tower::client::{RetryLayer, parse_retry_delay};

use crate::client::test_util::{ScriptedResponse, denial_with_wait, run_get, seconds};

/// Returns a layer that waits exactly as long as the response states. If the response states no wait, the layer waits
/// at most a millisecond.
fn retry_layer_without_jitter_and_backoff() -> RetryLayer {
    RetryLayer::new()
        .jitter(Jitter::NONE)
        .backoff(Duration::ZERO, Duration::ZERO)
        .total_time(seconds(600))
}

const RESPONSE_DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

#[tokio::test(start_paused = true)]
async fn client_waits_exactly_as_long_as_response_states() {
    let cases: [(u64, &[(&'static str, &str)]); 16] = [
        (7, &[("retry-after", "7")]),
        (7, &[("retry-after", " 7 ")]),
        (7, &[("retry-after", "007")]),
        // The longest of several values.
        (9, &[("retry-after", "7"), ("retry-after", "9"), ("retry-after", "8")]),
        // A date relative to the `Date` of the server, in each of the three formats.
        (23, &[("date", RESPONSE_DATE), ("retry-after", "Sun, 06 Nov 1994 08:50:00 GMT")]),
        (23, &[("date", RESPONSE_DATE), ("retry-after", "Sunday, 06-Nov-94 08:50:00 GMT")]),
        (23, &[("date", RESPONSE_DATE), ("retry-after", "Sun Nov  6 08:50:00 1994")]),
        (
            30,
            &[
                ("date", RESPONSE_DATE),
                ("retry-after", "Sun, 06 Nov 1994 08:50:00 GMT"),
                ("retry-after", "30"),
            ],
        ),
        // Retry-After takes precedence, whether it is shorter or longer.
        (2, &[("retry-after", "2"), ("ratelimit", r#""a";r=0;t=5"#)]),
        (8, &[("retry-after", "8"), ("ratelimit", r#""a";r=0;t=5"#)]),
        (5, &[("ratelimit", r#""a";r=0;t=5"#)]),
        // An unknown parameter is not malformed.
        (5, &[("ratelimit", r#""a";r=0;t=5;pk=:AAA=:;new=?1"#)]),
        (9, &[("ratelimit", r#""a";r=0;t=5, "b";r=0;t=9, "c";r=0;t=7, "d";r=0"#)]),
        (5, &[("ratelimit", r#""a";r=0;t=5, "b";r=3;t=9"#)]),
        // A list in several header lines.
        (9, &[("ratelimit", r#""a";r=0;t=5"#), ("ratelimit", r#""b";r=0;t=9"#)]),
        // A malformed header is ignored.
        (5, &[("retry-after", "soon"), ("ratelimit", r#""a";r=0;t=5"#)]),
    ];
    for (expected, headers) in cases {
        for status in [429, 503] {
            let response = headers
                .iter()
                .fold(ScriptedResponse::with_status(status), |response, (name, value)| {
                    response.with_header(name, value)
                });
            let result = run_get(&retry_layer_without_jitter_and_backoff(), [response]).await;
            assert_eq!(
                (result.status(), result.waits()),
                (200, vec![seconds(expected)]),
                "{headers:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn malformed_retry_headers_are_ignored() {
    let malformed: [(&'static str, &[u8]); 24] = [
        ("retry-after", b""),
        ("retry-after", b"soon"),
        ("retry-after", b"-5"),
        ("retry-after", b"+5"),
        ("retry-after", b"1.5"),
        ("retry-after", b"5s"),
        ("retry-after", b"5, 10"),
        ("retry-after", b"\xd9\xa5"),
        ("retry-after", b"Sun, 06 Nov 2094 08:50:00 CET"),
        ("retry-after", b"Sun, 31 Feb 2094 08:50:00 GMT"),
        ("retry-after", b"2094-11-06T08:50:00Z"),
        ("ratelimit", b""),
        ("ratelimit", b"\"a\";r=0;t=5,"),
        ("ratelimit", b"\"a\";r=0;t=5, \"b"),
        ("ratelimit", b"a;r=0;t=5"),
        ("ratelimit", b"(\"a\");r=0;t=5"),
        ("ratelimit", b"\"a\";t=5"),
        ("ratelimit", b"\"a\";r=-1;t=5"),
        ("ratelimit", b"\"a\";r=0;t=-5"),
        ("ratelimit", b"\"a\";r=0;t=5.0"),
        ("ratelimit", b"\"a\";r=0;t=9999999999999999"),
        ("ratelimit", b"\"a\";r=0;t=5, \"b\";r=x;t=5"),
        ("ratelimit", b"limit=100, remaining=0, reset=5"),
        ("ratelimit", b"\xff"),
    ];
    // Well-formed headers that state no wait.
    let without_wait: [(&'static str, &[u8]); 3] =
        [("ratelimit", b"\"a\";r=0"), ("ratelimit", b"\"a\";r=1;t=5"), ("x-ratelimit-reset", b"5")];
    for (name, value) in malformed.into_iter().chain(without_wait) {
        let result = run_get(
            &retry_layer_without_jitter_and_backoff(),
            [ScriptedResponse::with_status(429).with_header(name, value)],
        )
        .await;
        let value = String::from_utf8_lossy(value);
        assert_eq!((result.status(), result.call_times.len()), (200, 2), "{name}: {value}");
        assert!(
            result.elapsed <= Duration::from_millis(2),
            "{name}: {value}: {:?}",
            result.elapsed
        );
    }
}

#[test]
fn retry_date_without_response_date_uses_wall_clock() {
    let mut headers = HeaderMap::new();
    headers.insert("retry-after", HeaderValue::from_static("Thu, 01 Jan 1970 00:01:00 GMT"));
    let stated =
        |headers: &HeaderMap, micros| parse_retry_delay(headers, Timestamp::from_micros(micros));
    assert_eq!(stated(&headers, 0), Some(seconds(60)));
    assert_eq!(stated(&headers, 50_250_000), Some(Duration::from_millis(9_750)));
    assert_eq!(stated(&headers, 61_000_000), Some(Duration::ZERO));
    assert_eq!(stated(&headers, u64::MAX), Some(Duration::ZERO));
    // An unreadable date is ignored.
    headers.insert("date", HeaderValue::from_static("yesterday"));
    assert_eq!(stated(&headers, 0), Some(seconds(60)));
    headers.insert("date", HeaderValue::from_static("Thu, 01 Jan 1970 00:00:20 GMT"));
    assert_eq!(stated(&headers, 0), Some(seconds(40)));
}

#[tokio::test(start_paused = true)]
async fn retry_date_is_relative_to_wall_clock() {
    let until = UNIX_EPOCH + Duration::from_micros(WallClock.now().as_micros()) + seconds(500);
    let response = ScriptedResponse::with_status(429)
        .with_header("retry-after", httpdate::fmt_http_date(until));
    let result = run_get(&retry_layer_without_jitter_and_backoff(), [response]).await;
    // The date is truncated to whole seconds, and real time advances a little.
    assert!((seconds(470)..=seconds(500)).contains(&result.elapsed), "{:?}", result.elapsed);
}

#[tokio::test(start_paused = true)]
async fn stated_wait_of_zero_seconds_causes_backoff() {
    let layer = retry_layer_without_jitter_and_backoff().backoff(seconds(8), seconds(8));
    let past = ScriptedResponse::with_status(429)
        .with_header("date", RESPONSE_DATE)
        .with_header("retry-after", "Sun, 06 Nov 1994 08:00:00 GMT");
    for response in [
        denial_with_wait(0),
        past,
        ScriptedResponse::with_status(429).with_header("ratelimit", r#""a";r=0;t=0"#),
    ] {
        fastrand::seed(3);
        let result = run_get(&layer, [response]).await;
        assert!(
            result.elapsed > Duration::from_millis(100) && result.elapsed <= seconds(9),
            "{:?}",
            result.elapsed
        );
    }
}

#[tokio::test(start_paused = true)]
async fn default_jitter_adds_up_to_ten_percent() {
    fastrand::seed(1);
    let layer = RetryLayer::new().total_time(seconds(600));
    let mut waits = Vec::new();
    for _ in 0..300 {
        waits.extend(run_get(&layer, [denial_with_wait(100)]).await.waits());
    }
    // tokio's timer rounds up to a whole millisecond.
    let range = seconds(100)..=seconds(110) + Duration::from_millis(1);
    assert!(waits.iter().all(|wait| range.contains(wait)), "{waits:?}");
    assert_waits_are_evenly_spread(&waits, seconds(100), seconds(10));
}

#[tokio::test(start_paused = true)]
async fn response_without_stated_wait_causes_jittered_backoff() {
    fastrand::seed(2);
    let layer = RetryLayer::new().attempts(7).total_time(seconds(600));
    let mut waits = vec![Vec::new(); 6];
    for _ in 0..300 {
        let result = run_get(&layer, (0..6).map(|_| ScriptedResponse::with_status(503))).await;
        assert_eq!(result.status(), 200);
        for (waits, wait) in waits.iter_mut().zip(result.waits()) {
            waits.push(wait);
        }
    }
    for (waits, max_ms) in waits.iter().zip([500, 1_000, 2_000, 4_000, 8_000, 10_000]) {
        let max = Duration::from_millis(max_ms);
        assert!(waits.iter().all(|wait| *wait <= max + Duration::from_millis(1)), "{waits:?}");
        assert_waits_are_evenly_spread(waits, Duration::ZERO, max);
    }
}

/// Asserts that the waits are evenly spread between `from` and `from + span`: if this period is divided into ten equal
/// parts, each part contains between half and double the average number of waits.
fn assert_waits_are_evenly_spread(waits: &[Duration], from: Duration, span: Duration) {
    let mut tenths = [0; 10];
    for wait in waits {
        let share = (*wait - from).as_secs_f64() / span.as_secs_f64();
        tenths[((share * 10.0) as usize).min(9)] += 1;
    }
    let share = waits.len() / 10;
    assert!(tenths.iter().all(|n| (share / 2..=share * 2).contains(n)), "{tenths:?}");
}

proptest! {
    #[test]
    fn parsing_arbitrary_retry_headers_causes_no_panic(
        values in prop::collection::vec((any::<u8>(), "\\PC{0,40}|\"a\";r=[0-9]{1,16};t=-?[0-9]{1,16}"), 0..4),
        micros: u64,
    ) {
        let mut headers = HeaderMap::new();
        for (name_index, value) in values {
            let name = ["retry-after", "date", "ratelimit"][usize::from(name_index) % 3];
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        parse_retry_delay(&headers, Timestamp::from_micros(micros));
    }
}
