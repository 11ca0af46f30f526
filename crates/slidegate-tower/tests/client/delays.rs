//! How long the client waits.

use std::time::{Duration, UNIX_EPOCH};

use http::{HeaderMap, HeaderValue};
use proptest::prelude::*;
use slidegate::{Clock, Jitter, Timestamp, WallClock};
use slidegate_tower::client::{RetryLayer, parse_retry_delay};

use crate::scripted::{Answer, denied, run, seconds};

/// Waits exactly as it is told, else for at most a millisecond.
fn exact() -> RetryLayer {
    RetryLayer::new()
        .jitter(Jitter::NONE)
        .backoff(Duration::ZERO, Duration::ZERO)
        .total_time(seconds(600))
}

const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

#[tokio::test(start_paused = true)]
async fn it_waits_exactly_as_it_is_told() {
    let told: [(u64, &[(&'static str, &str)]); 16] = [
        (7, &[("retry-after", "7")]),
        (7, &[("retry-after", " 7 ")]),
        (7, &[("retry-after", "007")]),
        // Of several the longest.
        (9, &[("retry-after", "7"), ("retry-after", "9"), ("retry-after", "8")]),
        // A date by the server's own clock, in each of the three forms.
        (23, &[("date", DATE), ("retry-after", "Sun, 06 Nov 1994 08:50:00 GMT")]),
        (23, &[("date", DATE), ("retry-after", "Sunday, 06-Nov-94 08:50:00 GMT")]),
        (23, &[("date", DATE), ("retry-after", "Sun Nov  6 08:50:00 1994")]),
        (
            30,
            &[
                ("date", DATE),
                ("retry-after", "Sun, 06 Nov 1994 08:50:00 GMT"),
                ("retry-after", "30"),
            ],
        ),
        // Retry-After goes first, be it shorter or longer.
        (2, &[("retry-after", "2"), ("ratelimit", r#""a";r=0;t=5"#)]),
        (8, &[("retry-after", "8"), ("ratelimit", r#""a";r=0;t=5"#)]),
        (5, &[("ratelimit", r#""a";r=0;t=5"#)]),
        // What is not known is not malformed.
        (5, &[("ratelimit", r#""a";r=0;t=5;pk=:AAA=:;new=?1"#)]),
        (9, &[("ratelimit", r#""a";r=0;t=5, "b";r=0;t=9, "c";r=0;t=7, "d";r=0"#)]),
        (5, &[("ratelimit", r#""a";r=0;t=5, "b";r=3;t=9"#)]),
        // A list of several lines.
        (9, &[("ratelimit", r#""a";r=0;t=5"#), ("ratelimit", r#""b";r=0;t=9"#)]),
        // What is malformed is as if it were not there.
        (5, &[("retry-after", "soon"), ("ratelimit", r#""a";r=0;t=5"#)]),
    ];
    for (told, headers) in told {
        for status in [429, 503] {
            let answer =
                headers.iter().fold(Answer::of(status), |a, (name, value)| a.with(name, value));
            let ran = run(&exact(), [answer]).await;
            assert_eq!((ran.status(), ran.waits()), (200, vec![seconds(told)]), "{headers:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_malformed_tells_nothing() {
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
    // Well-formed, and yet nothing is told.
    let silent: [(&'static str, &[u8]); 3] =
        [("ratelimit", b"\"a\";r=0"), ("ratelimit", b"\"a\";r=1;t=5"), ("x-ratelimit-reset", b"5")];
    for (name, value) in malformed.into_iter().chain(silent) {
        let ran = run(&exact(), [Answer::of(429).with(name, value)]).await;
        let value = String::from_utf8_lossy(value);
        assert_eq!((ran.status(), ran.asked_at.len()), (200, 2), "{name}: {value}");
        assert!(ran.took <= Duration::from_millis(2), "{name}: {value}: {:?}", ran.took);
    }
}

#[test]
fn a_date_is_held_against_the_wall_clock_if_the_answer_has_none() {
    let mut headers = HeaderMap::new();
    headers.insert("retry-after", HeaderValue::from_static("Thu, 01 Jan 1970 00:01:00 GMT"));
    let told = |headers: &HeaderMap, micros| parse_retry_delay(headers, Timestamp::from_micros(micros));
    assert_eq!(told(&headers, 0), Some(seconds(60)));
    assert_eq!(told(&headers, 50_250_000), Some(Duration::from_millis(9_750)));
    assert_eq!(told(&headers, 61_000_000), Some(Duration::ZERO));
    assert_eq!(told(&headers, u64::MAX), Some(Duration::ZERO));
    // One that cannot be read is as good as none.
    headers.insert("date", HeaderValue::from_static("yesterday"));
    assert_eq!(told(&headers, 0), Some(seconds(60)));
    headers.insert("date", HeaderValue::from_static("Thu, 01 Jan 1970 00:00:20 GMT"));
    assert_eq!(told(&headers, 0), Some(seconds(40)));
}

#[tokio::test(start_paused = true)]
async fn the_layer_has_the_wall_clock() {
    let until = UNIX_EPOCH + Duration::from_micros(WallClock.now().as_micros()) + seconds(500);
    let answer = Answer::of(429).with("retry-after", httpdate::fmt_http_date(until));
    let ran = run(&exact(), [answer]).await;
    // The date is cut to whole seconds, and real time goes on a little.
    assert!((seconds(470)..=seconds(500)).contains(&ran.took), "{:?}", ran.took);
}

#[tokio::test(start_paused = true)]
async fn told_to_wait_for_no_time_it_backs_off() {
    let layer = exact().backoff(seconds(8), seconds(8));
    let past =
        Answer::of(429).with("date", DATE).with("retry-after", "Sun, 06 Nov 1994 08:00:00 GMT");
    for answer in [denied(0), past, Answer::of(429).with("ratelimit", r#""a";r=0;t=0"#)] {
        fastrand::seed(3);
        let ran = run(&layer, [answer]).await;
        assert!(ran.took > Duration::from_millis(100) && ran.took <= seconds(9), "{:?}", ran.took);
    }
}

#[tokio::test(start_paused = true)]
async fn a_told_wait_is_lengthened_by_up_to_a_tenth_and_never_shortened() {
    fastrand::seed(1);
    let layer = RetryLayer::new().total_time(seconds(600));
    let mut waits = Vec::new();
    for _ in 0..300 {
        waits.extend(run(&layer, [denied(100)]).await.waits());
    }
    // tokio's timer ends at the next whole millisecond.
    let range = seconds(100)..=seconds(110) + Duration::from_millis(1);
    assert!(waits.iter().all(|wait| range.contains(wait)), "{waits:?}");
    assert_spread(&waits, seconds(100), seconds(10));
}

#[tokio::test(start_paused = true)]
async fn without_being_told_it_backs_off_with_full_jitter() {
    fastrand::seed(2);
    let layer = RetryLayer::new().attempts(7).total_time(seconds(600));
    let mut waits = vec![Vec::new(); 6];
    for _ in 0..300 {
        let ran = run(&layer, (0..6).map(|_| Answer::of(503))).await;
        assert_eq!(ran.status(), 200);
        for (of_nth, wait) in waits.iter_mut().zip(ran.waits()) {
            of_nth.push(wait);
        }
    }
    for (waits, most_ms) in waits.iter().zip([500, 1_000, 2_000, 4_000, 8_000, 10_000]) {
        let most = Duration::from_millis(most_ms);
        assert!(waits.iter().all(|wait| *wait <= most + Duration::from_millis(1)), "{waits:?}");
        assert_spread(waits, Duration::ZERO, most);
    }
}

/// Each tenth of the span has between half and double of its share.
fn assert_spread(waits: &[Duration], from: Duration, span: Duration) {
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
    fn no_header_makes_it_panic(
        values in prop::collection::vec((any::<u8>(), "\\PC{0,40}|\"a\";r=[0-9]{1,16};t=-?[0-9]{1,16}"), 0..4),
        micros: u64,
    ) {
        let mut headers = HeaderMap::new();
        for (which, value) in values {
            let name = ["retry-after", "date", "ratelimit"][usize::from(which) % 3];
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        parse_retry_delay(&headers, Timestamp::from_micros(micros));
    }
}
