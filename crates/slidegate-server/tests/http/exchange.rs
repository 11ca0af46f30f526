//! What is asked, and what is answered, field by field.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use sfv::{BareItem, List, ListEntry, Parser};

use crate::client::{Answer, Client};
use crate::common::Server;

const TWO_WINDOWS: &str = "
rules:
  - { name: per-tenant, domain: api, per: [tenant], limits: [3/min, 100/h], algorithm: sliding_log }
";

/// A List of Strings with Integers as parameters, read as RFC 9651 says.
fn structured(header: &str) -> Vec<(String, Vec<(String, i64)>)> {
    let list: List = Parser::new(header).parse().unwrap();
    let item = |entry| {
        let ListEntry::Item(item) = entry else { panic!("an inner list in {header}") };
        let BareItem::String(name) = item.bare_item else { panic!("no string in {header}") };
        let parameters = item.params.into_iter().map(|(key, value)| {
            let BareItem::Integer(value) = value else { panic!("no integer in {header}") };
            (key.as_str().to_owned(), value.into())
        });
        (name.as_str().to_owned(), parameters.collect())
    };
    list.into_iter().map(item).collect()
}

fn item(name: &str, parameters: &[(&str, i64)]) -> (String, Vec<(String, i64)>) {
    let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), *value));
    (name.to_owned(), parameters.collect())
}

fn seconds_up(millis: &Value) -> i64 {
    i64::try_from(millis.as_u64().unwrap().div_ceil(1_000)).unwrap()
}

/// A time within the last ten seconds before `most`, or a tick over it.
fn assert_just_under(millis: &Value, most: u64) {
    let millis = millis.as_u64().unwrap();
    assert!((most - 10_000..=most + 1).contains(&millis), "{millis} is not just under {most}");
}

fn assert_policies(answer: &Answer) {
    assert_eq!(
        structured(answer.header("ratelimit-policy").unwrap()),
        [
            item("per-tenant.1m", &[("q", 3), ("w", 60)]),
            item("per-tenant.1h", &[("q", 100), ("w", 3_600)])
        ]
    );
}

#[test]
fn an_allowed_request_is_told_how_every_limit_stands() {
    let server = Server::start(TWO_WINDOWS);
    let ask =
        json!({"domain": "api", "attributes": {"tenant": "acme", "method": "GET"}, "cost": 2});
    let answer = Client::of(&server).check(&ask);
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));

    let found = answer.json();
    let [minute, hour] = [0, 1].map(|nth| found["limits"][nth]["reset_after_ms"].clone());
    assert_just_under(&minute, 60_000);
    assert_just_under(&hour, 3_600_000);
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
    assert_policies(&answer);
    assert_eq!(
        structured(answer.header("ratelimit").unwrap()),
        [item("per-tenant.1m", &[("r", 1), ("t", seconds_up(&minute))])]
    );
    assert_eq!(answer.header("retry-after"), None);
}

#[test]
fn a_denied_request_is_told_which_limit_denied_it_and_when_to_come_back() {
    let server = Server::start(TWO_WINDOWS);
    let client = Client::of(&server);
    let ask = json!({"domain": "api", "attributes": {"tenant": "acme"}, "cost": 2});
    assert_eq!(client.check(&ask).status, 200);
    let answer = client.check(&ask);
    assert_eq!((answer.status, answer.header("content-type")), (429, Some("application/json")));

    let found = answer.json();
    let [minute, hour] = [0, 1].map(|nth| found["limits"][nth]["reset_after_ms"].clone());
    let wait = found["retry_after_ms"].clone();
    assert_just_under(&wait, 60_000);
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
    assert_policies(&answer);
    assert_eq!(
        structured(answer.header("ratelimit").unwrap()),
        [item("per-tenant.1m", &[("r", 1), ("t", seconds_up(&wait))])]
    );
    assert_eq!(answer.header("retry-after"), Some(&*seconds_up(&wait).to_string()));
}

#[test]
fn whoever_comes_back_after_retry_after_is_allowed() {
    let server = Server::start("rules: [{ name: one, limits: [1/s], algorithm: sliding_log }]");
    let client = Client::of(&server);
    let ask = json!({"attributes": {}});
    assert_eq!(client.check(&ask).status, 200);
    let denied = client.check(&ask);
    assert_eq!(denied.status, 429);
    let wait = denied.header("retry-after").unwrap().parse().unwrap();
    assert_eq!(wait, 1);
    thread::sleep(Duration::from_secs(wait));
    assert_eq!(client.check(&ask).status, 200);
}

#[test]
fn a_cost_that_can_never_fit_has_no_time_to_come_back() {
    let server = Server::start("rules: [{ name: few, limits: [5/min], algorithm: sliding_log }]");
    let answer = Client::of(&server).check(&json!({"attributes": {}, "cost": 6}));
    assert_eq!(answer.status, 429);
    let found = answer.json();
    assert_eq!((&found["retry_after_ms"], &found["remaining"]), (&Value::Null, &json!(5)));
    assert_eq!(answer.header("retry-after"), None);
    assert_eq!(structured(answer.header("ratelimit").unwrap()), [item("few", &[("r", 5)])]);
}

#[test]
fn a_window_under_a_second_has_no_w_in_the_header() {
    let server = Server::start("rules: [{ name: quick, limits: [5/100ms] }]");
    let answer = Client::of(&server).check(&json!({"attributes": {}}));
    let policies = structured(answer.header("ratelimit-policy").unwrap());
    assert_eq!(policies, [item("quick", &[("q", 5)])]);
    assert_eq!(answer.json()["limit"]["window_ms"], 100);
}

#[test]
fn a_peek_says_the_same_and_charges_nothing() {
    let server = Server::start("rules: [{ name: one, limits: [1/h], algorithm: sliding_log }]");
    let client = Client::of(&server);
    let ask = json!({"attributes": {}});
    for _ in 0..5 {
        let peeked = client.post("/v1/peek", ask.to_string());
        assert_eq!((peeked.status, &peeked.json()["remaining"]), (200, &json!(1)));
    }
    assert_eq!(client.check(&ask).status, 200);
    let peeked = client.post("/v1/peek", ask.to_string());
    assert_eq!((peeked.status, &peeked.json()["remaining"]), (429, &json!(0)));
    assert!(peeked.header("retry-after").is_some());
}

#[test]
fn a_cost_of_0_asks_and_takes_nothing() {
    let server = Server::start("rules: [{ name: one, limits: [1/h], algorithm: sliding_log }]");
    let client = Client::of(&server);
    let statuses =
        [0, 0, 1, 0].map(|cost| client.check(&json!({"attributes": {}, "cost": cost})).status);
    assert_eq!(statuses, [200, 200, 200, 429]);
}

#[test]
fn where_no_rule_applies_everything_is_allowed_and_nothing_promised() {
    let server = Server::start(TWO_WINDOWS);
    let client = Client::of(&server);
    let elsewhere = json!({"attributes": {"tenant": "acme"}});
    let nobody = json!({"domain": "api", "attributes": {}});
    for ask in [elsewhere, nobody] {
        let answer = client.check(&ask);
        assert_eq!(answer.status, 200);
        assert_eq!(
            answer.json(),
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
        assert_eq!(headers.map(|name| answer.header(name)), [None; 3]);
    }
}

#[test]
fn an_escape_in_a_name_or_value_makes_no_other_key() {
    let server = Server::start("rules: [{ name: one, per: [ip], limits: [1/h] }]");
    let client = Client::of(&server);
    assert_eq!(client.post("/v1/check", r#"{"attributes":{"ip":"::1"}}"#).status, 200);
    let escaped = r#"{"attributes":{"\u0069p":"\u003a:1"}}"#;
    assert_eq!(client.post("/v1/check", escaped).status, 429);
}

#[test]
fn the_quickstart_denies_the_sixth_request() {
    let server = Server::start(include_str!("../../../../examples/quickstart.yaml"));
    let client = Client::of(&server);
    let alice = json!({"attributes": {"client": "alice"}});
    let statuses = [(); 6].map(|()| client.check(&alice).status);
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    assert_eq!(client.check(&json!({"attributes": {"client": "bob"}})).status, 200);
}
