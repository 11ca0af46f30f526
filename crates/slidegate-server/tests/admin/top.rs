//! Tests of `/v1/top`, which lists the keys with the most denied requests, and the keys with the most requests that
//! nearly reached a limit.

use std::time::Duration;

use serde_json::{Value, json};

use crate::client::Client;
use crate::common::Server;
use crate::samples::MetricSamples;

const POLICY: &str = "
rules:
  - { name: per-tenant, domain: api, per: [tenant, ip], limits: [3/h, 3/d], algorithm: sliding_log }
  - { name: watched, domain: api, per: [tenant], limits: [2/h], algorithm: sliding_log, mode: observe }
  - { name: roomy, domain: api, limits: [1000/h] }
  - { name: quiet, limits: [1/h] }
";

/// Sends `times` check requests with this tenant.
fn send_check_requests(server: &Server, tenant: &str, times: usize) {
    let client = Client::new(server);
    let attributes = json!({ "tenant": tenant, "ip": "2001:db8::7" });
    for _ in 0..times {
        client.check(&json!({ "domain": "api", "attributes": attributes }));
    }
}

/// Requests `/v1/top` with this query string, and returns the response body.
fn get_top_keys(server: &Server, query: &str) -> Value {
    let response =
        Client::with_address(server.admin_address()).call("GET", &format!("/v1/top{query}"));
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

/// Returns the entry that `/v1/top` must list for a tenant with `count` requests.
fn expected_top_response_entry(tenant: &str, count: u64) -> Value {
    json!({ "key": { "tenant": tenant, "ip": "2001:db8::/64" }, "count": count, "max_overcount": 0 })
}

#[test]
fn top_response_lists_denied_nearly_denied_and_observed_keys() {
    let server = Server::start_with_admin(POLICY, &[]);
    send_check_requests(&server, "acme", 10);
    send_check_requests(&server, "bob", 5);
    send_check_requests(&server, "carol", 3);
    send_check_requests(&server, "dave", 1);
    let mut body = get_top_keys(&server, "");
    assert!(body["since_seconds"].take().is_u64());
    let watched = |tenant: &str, count: u64| json!({ "key": { "tenant": tenant }, "count": count, "max_overcount": 0 });
    let expected = json!([
        {
            "domain": "api",
            "rule": "per-tenant",
            "denied": [expected_top_response_entry("acme", 7), expected_top_response_entry("bob", 2)],
            "near": [expected_top_response_entry("acme", 1), expected_top_response_entry("bob", 1), expected_top_response_entry("carol", 1)],
        },
        {
            "domain": "api",
            "rule": "watched",
            "denied": [],
            "near": [watched("acme", 1), watched("bob", 1), watched("carol", 1)],
            "observed": [watched("acme", 8), watched("bob", 3), watched("carol", 1)],
        },
    ]);
    let mut rules = body["rules"].take();
    for rule in rules.as_array_mut().unwrap() {
        rule["near"]
            .as_array_mut()
            .unwrap()
            .sort_by_key(|key_count| key_count["key"]["tenant"].to_string());
    }
    assert_eq!(rules, expected);
}

#[test]
fn observe_mode_lists_no_keys_as_denied() {
    let server = Server::start_with_admin(POLICY, &["--observe"]);
    send_check_requests(&server, "acme", 10);
    let rule = get_top_keys(&server, "")["rules"][0].clone();
    assert_eq!((&rule["rule"], &rule["denied"]), (&json!("watched"), &json!([])));
    assert_eq!(rule["observed"][0]["count"], 8);
}

#[test]
fn keys_parameter_sets_maximum_number_of_listed_keys() {
    let server = Server::start_with_admin(POLICY, &[]);
    (0..70).for_each(|nth| send_check_requests(&server, &format!("t{nth}"), 4));
    let denied =
        |query: &str| get_top_keys(&server, query)["rules"][0]["denied"].as_array().unwrap().len();
    assert_eq!((denied(""), denied("?keys=1"), denied("?keys=64")), (10, 1, 64));
    for invalid in ["?keys=0", "?keys=65", "?keys=x", "?key=1", "?keys=1&a=b"] {
        let response =
            Client::with_address(server.admin_address()).call("GET", &format!("/v1/top{invalid}"));
        assert_eq!(response.status, 400, "{invalid}");
        assert!(response.body.contains("send keys=N, with N from 1 to 64"), "{}", response.body);
    }
}

#[test]
fn rule_that_never_applies_is_logged_and_reported() {
    let policy = "
rules:
  - { name: used, per: [user], limits: [5000/h] }
  - { name: misspelt, when: { metod: POST }, limits: [1/h] }
  - { name: late, when: { user: late }, limits: [1/h] }
";
    let server = Server::start_with_admin(policy, &[]);
    let client = Client::new(&server);
    let check = |user: &str| client.check(&json!({"attributes": {"user": user}})).status;
    let metric = || {
        let samples = MetricSamples::scrape(&server);
        samples.get(r#"slidegate_rules_never_applied{domain="default"}"#)
    };
    for _ in 0..999 {
        assert_eq!(check("ann"), 200);
    }
    assert_eq!(get_top_keys(&server, "").get("rules_never_applied"), None);
    assert_eq!(metric(), 0.0);
    assert_eq!(check("ann"), 200);
    let line = std::iter::from_fn(|| server.next_log_line(Duration::from_secs(30)))
        .find(|line| line.contains("rules have not applied to any request of their domain"));
    let line = line.unwrap();
    assert!(line.contains("domain=\"default\" rules=\"misspelt, late\""), "{line}");
    assert_eq!(metric(), 2.0);
    assert_eq!(check("late"), 200);
    let unused = json!([{ "domain": "default", "rule": "misspelt" }]);
    assert_eq!(get_top_keys(&server, "")["rules_never_applied"], unused);
    assert_eq!(metric(), 1.0);
}
