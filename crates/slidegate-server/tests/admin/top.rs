//! `/v1/top`: who is limited most.

use serde_json::{Value, json};

use crate::client::Client;
use crate::common::Server;

const POLICY: &str = "
rules:
  - { name: per-tenant, domain: api, per: [tenant, ip], limits: [3/h, 3/d], algorithm: sliding_log }
  - { name: watched, domain: api, per: [tenant], limits: [2/h], algorithm: sliding_log, mode: observe }
  - { name: roomy, domain: api, limits: [1000/h] }
  - { name: quiet, limits: [1/h] }
";

fn check(server: &Server, tenant: &str, times: usize) {
    let client = Client::of(server);
    let attributes = json!({ "tenant": tenant, "ip": "2001:db8::7" });
    for _ in 0..times {
        client.check(&json!({ "domain": "api", "attributes": attributes }));
    }
}

fn top(server: &Server, query: &str) -> Value {
    let answer = Client::at(server.admin()).call("GET", &format!("/v1/top{query}"));
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

fn key(tenant: &str, count: u64) -> Value {
    json!({ "key": { "tenant": tenant, "ip": "2001:db8::/64" }, "count": count, "max_overcount": 0 })
}

#[test]
fn it_tells_who_was_denied_nearly_denied_and_would_have_been() {
    let server = Server::start_with_admin(POLICY, &[]);
    check(&server, "acme", 10);
    check(&server, "bob", 5);
    check(&server, "carol", 3);
    check(&server, "dave", 1);
    let mut told = top(&server, "");
    assert!(told["since_seconds"].take().is_u64());
    let watched = |tenant: &str, count: u64| json!({ "key": { "tenant": tenant }, "count": count, "max_overcount": 0 });
    let expected = json!([
        {
            "domain": "api",
            "rule": "per-tenant",
            "denied": [key("acme", 7), key("bob", 2)],
            "near": [key("acme", 1), key("bob", 1), key("carol", 1)],
        },
        {
            "domain": "api",
            "rule": "watched",
            "denied": [],
            "near": [watched("acme", 1), watched("bob", 1), watched("carol", 1)],
            "observed": [watched("acme", 8), watched("bob", 3), watched("carol", 1)],
        },
    ]);
    let mut rules = told["rules"].take();
    for rule in rules.as_array_mut().unwrap() {
        rule["near"].as_array_mut().unwrap().sort_by_key(|key| key["key"]["tenant"].to_string());
    }
    assert_eq!(rules, expected);
}

#[test]
fn what_is_only_observed_is_never_told_as_denied() {
    let server = Server::start_with_admin(POLICY, &["--observe"]);
    check(&server, "acme", 10);
    let rule = top(&server, "")["rules"][0].clone();
    assert_eq!((&rule["rule"], &rule["denied"]), (&json!("watched"), &json!([])));
    assert_eq!(rule["observed"][0]["count"], 8);
}

#[test]
fn as_many_keys_are_told_as_are_asked_for() {
    let server = Server::start_with_admin(POLICY, &[]);
    (0..70).for_each(|nth| check(&server, &format!("t{nth}"), 4));
    let denied = |query: &str| top(&server, query)["rules"][0]["denied"].as_array().unwrap().len();
    assert_eq!((denied(""), denied("?keys=1"), denied("?keys=64")), (10, 1, 64));
    for wrong in ["?keys=0", "?keys=65", "?keys=x", "?key=1", "?keys=1&a=b"] {
        let answer = Client::at(server.admin()).call("GET", &format!("/v1/top{wrong}"));
        assert_eq!(answer.status, 400, "{wrong}");
        assert!(
            answer.body.contains("query: only keys=N is supported, with N from 1 to 64"),
            "{}",
            answer.body
        );
    }
}
