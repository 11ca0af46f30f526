//! The styles of headers, and jitter, as flags choose them.

use std::ops::RangeInclusive;
use std::process::Output;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::common::{Server, TempFile, slidegate};

/// Nothing leaves so long a window while a test runs, and nothing comes back.
const POLICY: &str = "
rules:
  - { name: all, limits: [2/h], algorithm: sliding_log }
  - { name: more, limits: [50/d], algorithm: sliding_log }
";

const RATE_LIMITS: [&str; 8] = [
    "ratelimit-policy",
    "ratelimit",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
];

/// An allowed answer and a denial.
fn both(args: &[&str]) -> [Answer; 2] {
    let server = Server::start_with(POLICY, args);
    let client = Client::of(&server);
    let answers = [2, 1].map(|cost| client.check(&json!({"attributes": {}, "cost": cost})));
    assert_eq!(answers.each_ref().map(|answer| answer.status), [200, 429]);
    answers
}

/// The rate-limit headers that an answer has.
fn names(answer: &Answer) -> Vec<&'static str> {
    RATE_LIMITS.into_iter().filter(|name| answer.header(name).is_some()).collect()
}

fn number(answer: &Answer, name: &str) -> u64 {
    answer.header(name).unwrap().parse().unwrap()
}

fn seconds_up(millis: &Value) -> u64 {
    millis.as_u64().unwrap().div_ceil(1_000)
}

#[expect(clippy::disallowed_methods, reason = "the other side's clock")]
fn epoch_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn ietf_is_the_default() {
    for args in [&[][..], &["--headers", "ietf"]] {
        let [allowed, denied] = both(args);
        for (answer, wait) in [(&allowed, "reset_after_ms"), (&denied, "retry_after_ms")] {
            assert_eq!(names(answer), RATE_LIMITS[..2]);
            let policies = r#""all";q=2;w=3600, "more";q=50;w=86400"#;
            assert_eq!(answer.header("ratelimit-policy"), Some(policies));
            let expected = format!(r#""all";r=0;t={}"#, seconds_up(&answer.json()[wait]));
            assert_eq!(answer.header("ratelimit"), Some(&*expected));
        }
        assert_eq!(allowed.header("retry-after"), None);
        assert_eq!(number(&denied, "retry-after"), seconds_up(&denied.json()["retry_after_ms"]));
    }
}

#[test]
fn draft03_tells_seconds_from_now() {
    let [allowed, denied] = both(&["--headers", "draft03"]);
    for (answer, wait) in [(&allowed, "reset_after_ms"), (&denied, "retry_after_ms")] {
        assert_eq!(names(answer), RATE_LIMITS[2..5]);
        assert_eq!(answer.header("ratelimit-limit"), Some("2, 2;w=3600, 50;w=86400"));
        assert_eq!(number(answer, "ratelimit-remaining"), 0);
        assert_eq!(number(answer, "ratelimit-reset"), seconds_up(&answer.json()[wait]));
    }
    assert_eq!(allowed.header("retry-after"), None);
    assert_eq!(number(&denied, "retry-after"), number(&denied, "ratelimit-reset"));
}

#[test]
fn x_tells_a_date() {
    let before = epoch_seconds();
    let [allowed, denied] = both(&["--headers", "x"]);
    // Rounding up may add one second more than has passed.
    let dates: RangeInclusive<u64> = before + 3_590..=epoch_seconds() + 3_602;
    for answer in [&allowed, &denied] {
        assert_eq!(names(answer), RATE_LIMITS[5..]);
        assert_eq!(number(answer, "x-ratelimit-limit"), 2);
        assert_eq!(number(answer, "x-ratelimit-remaining"), 0);
        let reset = number(answer, "x-ratelimit-reset");
        assert!(dates.contains(&reset), "{reset} is not within {dates:?}");
    }
    assert_eq!(allowed.header("retry-after"), None);
    assert_eq!(number(&denied, "retry-after"), seconds_up(&denied.json()["retry_after_ms"]));
}

#[test]
fn none_leaves_only_retry_after() {
    let [allowed, denied] = both(&["--headers", "none"]);
    assert_eq!((names(&allowed), names(&denied)), (vec![], vec![]));
    assert_eq!(allowed.header("retry-after"), None);
    assert_eq!(number(&denied, "retry-after"), seconds_up(&denied.json()["retry_after_ms"]));
}

#[test]
fn the_environment_chooses_a_style_and_jitter_too() {
    let policy = TempFile::new(".yaml", POLICY);
    let mut command = slidegate();
    command.arg("serve").env("SLIDEGATE_POLICY", policy.path());
    command.env("SLIDEGATE_HTTP", "127.0.0.1:0");
    command.env("SLIDEGATE_HEADERS", "draft03").env("SLIDEGATE_RETRY_JITTER", "100%");
    let server = Server::spawn(&mut command);
    let client = Client::of(&server);
    assert_eq!(names(&client.check(&json!({"attributes": {}}))), RATE_LIMITS[2..5]);
    assert!(waits(&client, "ratelimit-reset").into_iter().any(|wait| wait > 3_600));
}

/// What 40 denials say in a header and, all the same, in Retry-After.
fn waits(client: &Client, reset: &str) -> Vec<u64> {
    let denial = || {
        let denied = client.check(&json!({"attributes": {}, "cost": 2}));
        assert_eq!(denied.status, 429);
        let wait = number(&denied, "retry-after");
        assert_eq!(number(&denied, reset), wait, "one draw for the whole answer");
        let exact = seconds_up(&denied.json()["retry_after_ms"]);
        assert!((3_500..=3_601).contains(&exact), "the JSON is exact");
        assert!((exact..=2 * exact + 1).contains(&wait), "{wait} is not from {exact} to twice it");
        wait
    };
    (0..40).map(|_| denial()).collect()
}

#[test]
fn jitter_spreads_denials_and_leaves_the_rest_exact() {
    let args = ["--headers", "draft03", "--retry-jitter", "100%"];
    let server = Server::start_with(POLICY, &args);
    let client = Client::of(&server);
    let allowed = client.check(&json!({"attributes": {}}));
    assert_eq!(
        number(&allowed, "ratelimit-reset"),
        seconds_up(&allowed.json()["reset_after_ms"]),
        "an allowed answer"
    );
    let waits = waits(&client, "ratelimit-reset");
    // That 40 draws all fall into one half of the range happens once in 2^39 runs.
    assert!(waits.iter().any(|wait| *wait < 5_400), "{waits:?}");
    assert!(waits.iter().any(|wait| *wait >= 5_400), "{waits:?}");
}

fn refused(args: &[&str]) -> Output {
    let policy = TempFile::new(".yaml", POLICY);
    let mut command = slidegate();
    command.arg("serve").arg("--policy").arg(policy.path());
    command.args(["--http", "127.0.0.1:0"]).args(args).output().unwrap()
}

#[test]
fn a_wrong_style_or_jitter_is_told_with_what_would_be_right() {
    for (args, message) in [
        (
            ["--headers", "foo"],
            "invalid value 'foo' for '--headers <STYLE>': `foo` is not a style of headers: write ietf, draft03, x or none",
        ),
        (
            ["--retry-jitter", "10"],
            "invalid value '10' for '--retry-jitter <PERCENT>': `10` is not a share of the wait: write a whole percentage, for example 10%",
        ),
        (
            ["--retry-jitter", "110%"],
            "invalid value '110%' for '--retry-jitter <PERCENT>': a jitter of 110% is too large: at most 100%",
        ),
    ] {
        let output = refused(&args);
        let stderr = str::from_utf8(&output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr.contains(message), "{stderr}");
    }
}
