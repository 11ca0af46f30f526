//! Tests of named costs (`costs`), and of `/v1/report`, which records consumption after the fact.

use serde_json::{Value, json};

use crate::common::Server;
use crate::http::bad_input::assert_problem;
use crate::http::client::Client;

const POLICY: &str = "
rules:
  - { name: rate, per: [client], limits: [10/h], cost: 1 }
  - { name: tokens, per: [client], limits: [1000/h], cost: tokens, algorithm: sliding_log }
  - { name: bytes, per: [client], limits: [5000/h], algorithm: sliding_log }
";

/// Returns the name of the rule and the number of remaining units for each limit in a response.
fn remaining_by_rule(response: &Value) -> Vec<(&str, u64)> {
    let limits = response["limits"].as_array().unwrap();
    let remaining = |limit: &'_ Value| limit["remaining"].as_u64().unwrap();
    limits.iter().map(|limit| (limit["rule"].as_str().unwrap(), remaining(limit))).collect()
}

#[test]
fn check_charges_each_rule_its_named_cost() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let attributes = json!({"client": "ann"});
    let plain = client.check(&json!({"attributes": attributes})).json();
    assert_eq!(remaining_by_rule(&plain), [("rate", 9), ("tokens", 1000), ("bytes", 4999)]);
    let costs = json!({"tokens": 700});
    let all = client.check(&json!({"attributes": attributes, "cost": 99, "costs": costs})).json();
    assert_eq!(remaining_by_rule(&all), [("rate", 8), ("tokens", 300), ("bytes", 4900)]);
    let denied = client.check(&json!({"attributes": attributes, "costs": {"tokens": 301}}));
    assert_eq!((denied.status, &denied.json()["rule"]), (429, &json!("tokens")));
}

#[test]
fn usage_report_charges_above_max_without_denial() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let report = |body: Value| client.post("/v1/report", body.to_string());
    let attributes = json!({"client": "ann"});
    let reported = report(json!({"attributes": attributes, "costs": {"tokens": 1800}}));
    assert_eq!(reported.status, 200);
    let json = reported.json();
    assert_eq!((&json["allowed"], &json["degraded"]), (&json!(true), &json!(false)));
    assert_eq!(remaining_by_rule(&json), [("tokens", 0)]);
    let denied = client.check(&json!({"attributes": attributes}));
    assert_eq!((denied.status, &denied.json()["rule"]), (429, &json!("tokens")));
    let other = report(json!({"attributes": attributes, "cost": 4000})).json();
    assert_eq!(remaining_by_rule(&other), [("bytes", 1000)]);
    let nothing = report(json!({"attributes": {}, "costs": {"tokens": 1}})).json();
    assert_eq!(remaining_by_rule(&nothing), []);
}

#[test]
fn malformed_costs_are_bad_requests() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let many: serde_json::Map<String, Value> =
        (0..65).map(|nth| (format!("cost-{nth}"), json!(1))).collect();
    for (path, body, detail) in [
        ("/v1/report", json!({"attributes": {}}).to_string(), "the report contains no units"),
        (
            "/v1/report",
            json!({"attributes": {}, "costs": {}}).to_string(),
            "the report contains no units",
        ),
        (
            "/v1/report",
            json!({"costs": {"tokens": 1}}).to_string(),
            "missing field `attributes`; send a JSON object",
        ),
        (
            "/v1/check",
            json!({"attributes": {}, "costs": {"tokens": -1}}).to_string(),
            "cost `tokens`: -1 is not accepted; send a whole number",
        ),
        (
            "/v1/check",
            json!({"attributes": {}, "costs": [1]}).to_string(),
            "invalid type: sequence, expected an object with a value for each cost; send",
        ),
        ("/v1/check", json!({"attributes": {}, "costs": many}).to_string(), "more than 64 costs"),
        (
            "/v1/peek",
            r#"{"attributes":{},"costs":{"tokens":1,"tokens":2}}"#.to_owned(),
            "duplicate cost `tokens`",
        ),
    ] {
        assert_problem(&client.post(path, body), 400, "Bad Request", detail);
    }
    assert_eq!(client.call("GET", "/v1/report").status, 405);
}
