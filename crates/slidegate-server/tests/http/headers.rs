//! Tests of the flag `--headers` (style of the rate-limit headers) and of the flag `--retry-jitter` (random extra wait
//! in `Retry-After`).

use std::ops::RangeInclusive;
use std::process::Output;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::common::{Server, TempFile, slidegate_command};
use crate::http::client::{Client, HttpResponse};

/// A policy with two limits. Their windows are so long that no unit becomes available again while a test runs.
const POLICY: &str = "
rules:
  - { name: all, limits: [2/h], algorithm: sliding_log }
  - { name: more, limits: [50/d], algorithm: sliding_log }
";

const RATE_LIMIT_HEADERS: [&str; 8] = [
    "ratelimit-policy",
    "ratelimit",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
];

/// Starts a server with these flags, and returns the responses to an allowed and to a denied request.
fn allowed_and_denied_response(args: &[&str]) -> [HttpResponse; 2] {
    let server = Server::start_with(POLICY, args);
    let client = Client::new(&server);
    let responses = [2, 1].map(|cost| client.check(&json!({"attributes": {}, "cost": cost})));
    assert_eq!(responses.each_ref().map(|response| response.status), [200, 429]);
    responses
}

/// Returns the names in [`RATE_LIMIT_HEADERS`] that a response contains.
fn rate_limit_header_names(response: &HttpResponse) -> Vec<&'static str> {
    RATE_LIMIT_HEADERS.into_iter().filter(|name| response.header(name).is_some()).collect()
}

/// Parses the value of a response header as a number.
fn parse_numeric_header(response: &HttpResponse, name: &str) -> u64 {
    response.header(name).unwrap().parse().unwrap()
}

/// Converts milliseconds in a JSON value to seconds, rounded up.
fn ceil_millis_to_seconds(millis: &Value) -> u64 {
    millis.as_u64().unwrap().div_ceil(1_000)
}

#[expect(clippy::disallowed_methods, reason = "the client's clock")]
fn current_epoch_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn ietf_headers_are_default() {
    for args in [&[][..], &["--headers", "ietf"]] {
        let [allowed, denied] = allowed_and_denied_response(args);
        let wait = ceil_millis_to_seconds(&denied.json()["retry_after_ms"]);
        // The time of the next unit is not known after an allowed request.
        let limits = [r#""all";r=0"#.to_owned(), format!(r#""all";r=0;t={wait}"#)];
        for (response, limit) in [&allowed, &denied].into_iter().zip(&limits) {
            assert_eq!(rate_limit_header_names(response), RATE_LIMIT_HEADERS[..2]);
            let policies = r#""all";q=2;w=3600, "more";q=50;w=86400"#;
            assert_eq!(response.header("ratelimit-policy"), Some(policies));
            assert_eq!(response.header("ratelimit"), Some(&**limit));
        }
        assert_eq!(allowed.header("retry-after"), None);
        assert_eq!(
            parse_numeric_header(&denied, "retry-after"),
            ceil_millis_to_seconds(&denied.json()["retry_after_ms"])
        );
    }
}

#[test]
fn draft03_ratelimit_reset_is_relative_seconds() {
    let [allowed, denied] = allowed_and_denied_response(&["--headers", "draft03"]);
    for (response, wait) in [(&allowed, "reset_after_ms"), (&denied, "retry_after_ms")] {
        assert_eq!(rate_limit_header_names(response), RATE_LIMIT_HEADERS[2..5]);
        assert_eq!(response.header("ratelimit-limit"), Some("2, 2;w=3600, 50;w=86400"));
        assert_eq!(parse_numeric_header(response, "ratelimit-remaining"), 0);
        assert_eq!(
            parse_numeric_header(response, "ratelimit-reset"),
            ceil_millis_to_seconds(&response.json()[wait])
        );
    }
    assert_eq!(allowed.header("retry-after"), None);
    assert_eq!(
        parse_numeric_header(&denied, "retry-after"),
        parse_numeric_header(&denied, "ratelimit-reset")
    );
}

#[test]
fn x_ratelimit_reset_is_epoch_seconds() {
    let before = current_epoch_seconds();
    let [allowed, denied] = allowed_and_denied_response(&["--headers", "x"]);
    // Rounding up may add one second to the elapsed time.
    let dates: RangeInclusive<u64> = before + 3_590..=current_epoch_seconds() + 3_602;
    for response in [&allowed, &denied] {
        assert_eq!(rate_limit_header_names(response), RATE_LIMIT_HEADERS[5..]);
        assert_eq!(parse_numeric_header(response, "x-ratelimit-limit"), 2);
        assert_eq!(parse_numeric_header(response, "x-ratelimit-remaining"), 0);
        let reset = parse_numeric_header(response, "x-ratelimit-reset");
        assert!(dates.contains(&reset), "{reset} is not within {dates:?}");
    }
    assert_eq!(allowed.header("retry-after"), None);
    assert_eq!(
        parse_numeric_header(&denied, "retry-after"),
        ceil_millis_to_seconds(&denied.json()["retry_after_ms"])
    );
}

#[test]
fn headers_flag_none_sends_only_retry_after() {
    let [allowed, denied] = allowed_and_denied_response(&["--headers", "none"]);
    assert_eq!(
        (rate_limit_header_names(&allowed), rate_limit_header_names(&denied)),
        (vec![], vec![])
    );
    assert_eq!(allowed.header("retry-after"), None);
    assert_eq!(
        parse_numeric_header(&denied, "retry-after"),
        ceil_millis_to_seconds(&denied.json()["retry_after_ms"])
    );
}

#[test]
fn environment_sets_header_style_and_jitter() {
    let policy = TempFile::new(".yaml", POLICY);
    let mut command = slidegate_command();
    command.arg("serve").env("SLIDEGATE_POLICY", policy.path());
    command.env("SLIDEGATE_HTTP", "127.0.0.1:0");
    command.env("SLIDEGATE_HEADERS", "draft03").env("SLIDEGATE_RETRY_JITTER", "100%");
    let server = Server::spawn(&mut command);
    let client = Client::new(&server);
    assert_eq!(
        rate_limit_header_names(&client.check(&json!({"attributes": {}}))),
        RATE_LIMIT_HEADERS[2..5]
    );
    assert!(
        collect_retry_after_seconds(&client, "ratelimit-reset")
            .into_iter()
            .any(|wait| wait > 3_600)
    );
}

/// Sends 40 denied requests, and returns the values of `Retry-After` in seconds. Asserts that in each response the
/// header `reset_header` has the same value as `Retry-After`.
fn collect_retry_after_seconds(client: &Client, reset_header: &str) -> Vec<u64> {
    let denial = || {
        let denied = client.check(&json!({"attributes": {}, "cost": 2}));
        assert_eq!(denied.status, 429);
        let wait = parse_numeric_header(&denied, "retry-after");
        assert_eq!(
            parse_numeric_header(&denied, reset_header),
            wait,
            "one jitter sample for the whole response"
        );
        let exact = ceil_millis_to_seconds(&denied.json()["retry_after_ms"]);
        assert!((3_500..=3_601).contains(&exact), "the JSON body has no jitter");
        assert!(
            (exact..=2 * exact + 1).contains(&wait),
            "{wait} is not between {exact} and twice that"
        );
        wait
    };
    (0..40).map(|_| denial()).collect()
}

#[test]
fn retry_jitter_applies_only_to_denials() {
    let args = ["--headers", "draft03", "--retry-jitter", "100%"];
    let server = Server::start_with(POLICY, &args);
    let client = Client::new(&server);
    let allowed = client.check(&json!({"attributes": {}}));
    assert_eq!(
        parse_numeric_header(&allowed, "ratelimit-reset"),
        ceil_millis_to_seconds(&allowed.json()["reset_after_ms"]),
        "an allowed response has no jitter"
    );
    let collect_retry_after_seconds = collect_retry_after_seconds(&client, "ratelimit-reset");
    // The probability that all 40 samples fall into one half of the range is 2^-39.
    assert!(
        collect_retry_after_seconds.iter().any(|wait| *wait < 5_400),
        "{collect_retry_after_seconds:?}"
    );
    assert!(
        collect_retry_after_seconds.iter().any(|wait| *wait >= 5_400),
        "{collect_retry_after_seconds:?}"
    );
}

/// Runs `slidegate serve` with invalid flags until the process exits, and returns the output.
fn run_serve_command(args: &[&str]) -> Output {
    let policy = TempFile::new(".yaml", POLICY);
    let mut command = slidegate_command();
    command.arg("serve").arg("--policy").arg(policy.path());
    command.args(["--http", "127.0.0.1:0"]).args(args).output().unwrap()
}

#[test]
fn invalid_header_style_or_jitter_error_names_valid_values() {
    for (args, message) in [
        (
            ["--headers", "foo"],
            "invalid value 'foo' for '--headers <STYLE>'\n  [possible values: ietf, draft03, x, none]",
        ),
        (
            ["--retry-jitter", "10"],
            "invalid value '10' for '--retry-jitter <PERCENT>': `10` is not a percentage; write a whole number and %, for example 10%",
        ),
        (
            ["--retry-jitter", "110%"],
            "invalid value '110%' for '--retry-jitter <PERCENT>': a jitter of 110% is too large; the maximum is 100%",
        ),
    ] {
        let output = run_serve_command(&args);
        let stderr = str::from_utf8(&output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr.contains(message), "{stderr}");
    }
}
