//! Tests of all response fields and headers of `/v1/check` and `/v1/peek`.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use sfv::{BareItem, List, ListEntry, Parser};

use crate::common::Server;
use crate::http::client::{Client, HttpResponse};

const TWO_WINDOW_POLICY: &str = "
rules:
  - { name: per-tenant, domain: api, per: [tenant], limits: [3/min, 100/h], algorithm: sliding_log }
";

/// Parses a structured header (RFC 9651): a list of strings, each with integer parameters.
fn parse_structured_list(header: &str) -> Vec<(String, Vec<(String, i64)>)> {
    let list: List = Parser::new(header).parse().unwrap();
    let item = |entry| {
        let ListEntry::Item(item) = entry else { panic!("inner list in {header}") };
        let BareItem::String(name) = item.bare_item else {
            panic!("item in {header} is not a string")
        };
        let parameters = item.params.into_iter().map(|(key, value)| {
            let BareItem::Integer(value) = value else {
                panic!("parameter in {header} is not an integer")
            };
            (key.as_str().to_owned(), value.into())
        });
        (name.as_str().to_owned(), parameters.collect())
    };
    list.into_iter().map(item).collect()
}

fn structured_list_element(name: &str, parameters: &[(&str, i64)]) -> (String, Vec<(String, i64)>) {
    let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), *value));
    (name.to_owned(), parameters.collect())
}

/// Converts milliseconds in a JSON value to seconds, rounded up.
fn ceil_millis_to_seconds(millis: &Value) -> i64 {
    i64::try_from(millis.as_u64().unwrap().div_ceil(1_000)).unwrap()
}

/// Asserts that a time in milliseconds is at most ten seconds below `max`, and not above `max`.
fn assert_at_most_10_seconds_below(millis: &Value, max: u64) {
    let millis = millis.as_u64().unwrap();
    assert!((max - 10_000..=max).contains(&millis), "{millis} is not just below {max}");
}

fn assert_ratelimit_policy_header_has_both_windows(response: &HttpResponse) {
    assert_eq!(
        parse_structured_list(response.header("ratelimit-policy").unwrap()),
        [
            structured_list_element("per-tenant.1m", &[("q", 3), ("w", 60)]),
            structured_list_element("per-tenant.1h", &[("q", 100), ("w", 3_600)])
        ]
    );
}

#[test]
fn allowed_response_has_status_of_every_limit() {
    let server = Server::start(TWO_WINDOW_POLICY);
    let request =
        json!({"domain": "api", "attributes": {"tenant": "acme", "method": "GET"}, "cost": 2});
    let response = Client::new(&server).check(&request);
    assert_eq!((response.status, response.header("content-type")), (200, Some("application/json")));

    let found = response.json();
    let [minute, hour] = [0, 1].map(|nth| found["limits"][nth]["reset_after_ms"].clone());
    assert_at_most_10_seconds_below(&minute, 60_000);
    assert_at_most_10_seconds_below(&hour, 3_600_000);
    assert_eq!(
        found,
        json!({
            "allowed": true,
            "reason": null,
            "rule": "per-tenant",
            "limit": {"name": "1m", "max": 3, "window_ms": 60_000},
            "remaining": 1,
            "reset_after_ms": minute,
            "retry_after_ms": null,
            "degraded": false,
            "limits": [
                {
                    "rule": "per-tenant",
                    "limit": {"name": "1m", "max": 3, "window_ms": 60_000},
                    "algorithm": "sliding_log",
                    "allowed": true,
                    "observed": false,
                    "remaining": 1,
                    "reset_after_ms": minute,
                    "retry_after_ms": null
                },
                {
                    "rule": "per-tenant",
                    "limit": {"name": "1h", "max": 100, "window_ms": 3_600_000},
                    "algorithm": "sliding_log",
                    "allowed": true,
                    "observed": false,
                    "remaining": 98,
                    "reset_after_ms": hour,
                    "retry_after_ms": null
                }
            ]
        })
    );
    assert_ratelimit_policy_header_has_both_windows(&response);
    assert_eq!(
        parse_structured_list(response.header("ratelimit").unwrap()),
        [structured_list_element(
            "per-tenant.1m",
            &[("r", 1), ("t", ceil_millis_to_seconds(&minute))]
        )]
    );
    assert_eq!(response.header("retry-after"), None);
}

#[test]
fn denied_response_has_binding_limit_and_retry_after() {
    let server = Server::start(TWO_WINDOW_POLICY);
    let client = Client::new(&server);
    let request = json!({"domain": "api", "attributes": {"tenant": "acme"}, "cost": 2});
    assert_eq!(client.check(&request).status, 200);
    let response = client.check(&request);
    assert_eq!((response.status, response.header("content-type")), (429, Some("application/json")));
    assert_eq!(response.header("cache-control"), Some("no-store"));

    let found = response.json();
    let [minute, hour] = [0, 1].map(|nth| found["limits"][nth]["reset_after_ms"].clone());
    let wait = found["retry_after_ms"].clone();
    assert_at_most_10_seconds_below(&wait, 60_000);
    assert_eq!(
        found,
        json!({
            "allowed": false,
            "reason": "limit_exceeded",
            "rule": "per-tenant",
            "limit": {"name": "1m", "max": 3, "window_ms": 60_000},
            "remaining": 1,
            "reset_after_ms": minute,
            "retry_after_ms": wait,
            "degraded": false,
            "limits": [
                {
                    "rule": "per-tenant",
                    "limit": {"name": "1m", "max": 3, "window_ms": 60_000},
                    "algorithm": "sliding_log",
                    "allowed": false,
                    "observed": false,
                    "remaining": 1,
                    "reset_after_ms": minute,
                    "retry_after_ms": wait
                },
                {
                    "rule": "per-tenant",
                    "limit": {"name": "1h", "max": 100, "window_ms": 3_600_000},
                    "algorithm": "sliding_log",
                    "allowed": true,
                    "observed": false,
                    "remaining": 98,
                    "reset_after_ms": hour,
                    "retry_after_ms": null
                }
            ]
        })
    );
    assert_ratelimit_policy_header_has_both_windows(&response);
    assert_eq!(
        parse_structured_list(response.header("ratelimit").unwrap()),
        [structured_list_element(
            "per-tenant.1m",
            &[("r", 1), ("t", ceil_millis_to_seconds(&wait))]
        )]
    );
    assert_eq!(response.header("retry-after"), Some(&*ceil_millis_to_seconds(&wait).to_string()));
}

#[test]
fn request_after_retry_after_is_allowed() {
    let server = Server::start("rules: [{ name: one, limits: [1/s], algorithm: sliding_log }]");
    let client = Client::new(&server);
    let request = json!({"attributes": {}});
    assert_eq!(client.check(&request).status, 200);
    let denied = client.check(&request);
    assert_eq!(denied.status, 429);
    let wait = denied.header("retry-after").unwrap().parse().unwrap();
    assert_eq!(wait, 1);
    thread::sleep(Duration::from_secs(wait));
    assert_eq!(client.check(&request).status, 200);
}

#[test]
fn cost_above_max_has_no_retry_after() {
    let server = Server::start("rules: [{ name: few, limits: [5/min], algorithm: sliding_log }]");
    let response = Client::new(&server).check(&json!({"attributes": {}, "cost": 6}));
    assert_eq!(response.status, 429);
    let found = response.json();
    assert_eq!((&found["retry_after_ms"], &found["remaining"]), (&Value::Null, &json!(5)));
    assert_eq!(response.header("retry-after"), None);
    assert_eq!(
        parse_structured_list(response.header("ratelimit").unwrap()),
        [structured_list_element("few", &[("r", 5)])]
    );
}

#[test]
fn subsecond_window_is_omitted_from_policy_header() {
    let server = Server::start("rules: [{ name: quick, limits: [5/100ms] }]");
    let response = Client::new(&server).check(&json!({"attributes": {}}));
    let policies = parse_structured_list(response.header("ratelimit-policy").unwrap());
    assert_eq!(policies, [structured_list_element("quick", &[("q", 5)])]);
    assert_eq!(response.json()["limit"]["window_ms"], 100);
}

#[test]
fn peek_reports_status_and_charges_nothing() {
    let server = Server::start("rules: [{ name: one, limits: [1/h], algorithm: sliding_log }]");
    let client = Client::new(&server);
    let request = json!({"attributes": {}});
    for _ in 0..5 {
        let peeked = client.post("/v1/peek", request.to_string());
        assert_eq!((peeked.status, &peeked.json()["remaining"]), (200, &json!(1)));
    }
    assert_eq!(client.check(&request).status, 200);
    let peeked = client.post("/v1/peek", request.to_string());
    assert_eq!((peeked.status, &peeked.json()["remaining"]), (429, &json!(0)));
    assert!(peeked.header("retry-after").is_some());
}

#[test]
fn zero_cost_charges_nothing() {
    let server = Server::start("rules: [{ name: one, limits: [1/h], algorithm: sliding_log }]");
    let client = Client::new(&server);
    let statuses =
        [0, 0, 1, 0].map(|cost| client.check(&json!({"attributes": {}, "cost": cost})).status);
    assert_eq!(statuses, [200, 200, 200, 429]);
}

#[test]
fn unmatched_request_is_allowed_without_rate_limit_headers() {
    let server = Server::start(TWO_WINDOW_POLICY);
    let client = Client::new(&server);
    let other_domain = json!({"attributes": {"tenant": "acme"}});
    let without_tenant = json!({"domain": "api", "attributes": {}});
    for request in [other_domain, without_tenant] {
        let response = client.check(&request);
        assert_eq!(response.status, 200);
        assert_eq!(
            response.json(),
            json!({
                "allowed": true,
                "reason": null,
                "rule": null,
                "limit": null,
                "remaining": null,
                "reset_after_ms": null,
                "retry_after_ms": null,
                "degraded": false,
                "limits": []
            })
        );
        let headers = ["ratelimit", "ratelimit-policy", "retry-after"];
        assert_eq!(headers.map(|name| response.header(name)), [None; 3]);
    }
}

#[test]
fn json_escapes_do_not_change_counter_key() {
    let server = Server::start("rules: [{ name: one, per: [ip], limits: [1/h] }]");
    let client = Client::new(&server);
    assert_eq!(client.post("/v1/check", r#"{"attributes":{"ip":"::1"}}"#).status, 200);
    let escaped = r#"{"attributes":{"\u0069p":"\u003a:1"}}"#;
    assert_eq!(client.post("/v1/check", escaped).status, 429);
}

#[test]
fn quickstart_policy_denies_sixth_request() {
    let server = Server::start(include_str!("../../../../examples/quickstart.yaml"));
    let client = Client::new(&server);
    let alice = json!({"attributes": {"client": "alice"}});
    let statuses = [(); 6].map(|()| client.check(&alice).status);
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    assert_eq!(client.check(&json!({"attributes": {"client": "bob"}})).status, 200);
}
