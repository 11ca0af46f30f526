//! A client that knows nothing of slidegate, made of the published protocol, decodes every kind of reply.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::common::Server;
use crate::installed;

const POLICY: &str = "
defaults: { algorithm: sliding_log }
rules:
  - { name: one, domain: edge, per: [one], limits: [2/h, 100/15m] }
  - { name: other, domain: edge, per: [other], limits: [1/min] }
  - { name: watched, domain: edge, per: [watched], limits: [1/d], mode: observe }
  - { name: free, domain: edge, per: [free], limits: unlimited }
  - { name: spent, domain: edge, per: [spent], limits: [10/w], charge: always }
  - { name: banned, domain: edge, per: [banned], limits: denied }
  - { name: own, domain: edge, limits: requested }
";

/// The client. It is killed when dropped.
struct Client {
    child: Child,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Client {
    fn start(server: &Server) -> Self {
        let mut child = Command::new(installed("python/bin/python"))
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/proxies/independent.py"))
            .arg(server.grpc().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let requests = child.stdin.take().unwrap();
        let replies = BufReader::new(child.stdout.take().unwrap());
        Self { child, requests, replies }
    }

    fn ask(&mut self, request: &Value) -> Value {
        writeln!(self.requests, "{request}").unwrap();
        let mut reply = String::new();
        self.replies.read_line(&mut reply).unwrap();
        serde_json::from_str(&reply).unwrap_or_else(|error| panic!("{request}: {error}"))
    }

    /// Asks about descriptors of one entry each.
    fn ask_for(&mut self, names: &[&str]) -> Value {
        let descriptors: Vec<Value> = names.iter().map(|name| descriptor(name)).collect();
        self.ask(&json!({ "domain": "edge", "descriptors": descriptors }))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn descriptor(name: &str) -> Value {
    json!({ "entries": [{ "key": name, "value": "v" }] })
}

/// A descriptor with one field more.
fn with(name: &str, field: &str, value: Value) -> Value {
    let mut descriptor = descriptor(name);
    descriptor[field] = value;
    descriptor
}

/// How the descriptors of a reply stand: the code, the limit's name, max and unit, and what is left.
fn standing(reply: &Value) -> Vec<(&str, &str, u64, &str, u64)> {
    let statuses = reply["statuses"].as_array().unwrap().iter();
    let standing = statuses.map(|status| {
        let limit = &status["currentLimit"];
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        (
            status["code"].as_str().unwrap(),
            limit["name"].as_str().unwrap_or_default(),
            number(&limit["requestsPerUnit"]),
            limit["unit"].as_str().unwrap_or_default(),
            number(&status["limitRemaining"]),
        )
    });
    standing.collect()
}

#[test]
fn every_kind_of_reply_is_decoded_by_who_knows_only_the_published_protocol() {
    let server = Server::start_with_grpc(POLICY, &[]);
    let client = &mut Client::start(&server);
    let most = u64::from(u32::MAX);

    let allowed = client.ask_for(&["one", "nobody", "free", "watched"]);
    assert_eq!(allowed["overallCode"], "OK");
    assert_eq!(
        standing(&allowed),
        [
            ("OK", "one.1h", 2, "HOUR", 1),
            ("OK", "", 0, "", 0),
            ("OK", "", 0, "", most),
            ("OK", "watched", 1, "DAY", 0),
        ]
    );
    // A log keeps a charge to the end of its tick: that may be a second more, rounded up.
    let reset = allowed["statuses"][0]["durationUntilReset"].as_str().unwrap();
    assert!(["3600s", "3601s"].contains(&reset), "{reset}");
    let watched = client.ask_for(&["watched"]);
    assert_eq!(watched["overallCode"], "OK");
    assert_eq!(standing(&watched), [("OVER_LIMIT", "watched", 1, "DAY", 0)]);

    // A limit that has no unit of Envoy's says none.
    let costly = client
        .ask(&json!({ "domain": "edge", "hits_addend": 101, "descriptors": [descriptor("one")] }));
    assert_eq!(costly["overallCode"], "OVER_LIMIT");
    assert!(costly["statuses"][0].get("durationUntilReset").is_none(), "it never fits: {costly}");

    // One of two denies, and the other is not charged.
    assert_eq!(client.ask_for(&["other"])["overallCode"], "OK");
    let denied = client.ask_for(&["one", "other"]);
    assert_eq!(denied["overallCode"], "OVER_LIMIT");
    let codes = [("OK", "one.1h", 2, "HOUR", 1), ("OVER_LIMIT", "other", 1, "MINUTE", 0)];
    assert_eq!(standing(&denied), codes);
    let headers: Vec<&str> = denied["responseHeadersToAdd"]
        .as_array()
        .unwrap()
        .iter()
        .map(|header| header["key"].as_str().unwrap())
        .collect();
    assert_eq!(headers, ["ratelimit-policy", "ratelimit", "retry-after", "content-type"]);
    let body = BASE64_STANDARD.decode(denied["rawBody"].as_str().unwrap()).unwrap();
    let problem: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (&problem["status"], &problem["violated-policies"][0]),
        (&json!(429), &json!("other"))
    );

    let asks = client
        .ask(&json!({ "domain": "edge", "descriptors": [with("one", "hits_addend", json!(0))] }));
    assert_eq!(standing(&asks), [("OK", "one.1h", 2, "HOUR", 1)], "it asks, and takes nothing");

    let spends = client.ask(
        &json!({ "domain": "edge", "descriptors": [with("spent", "hits_addend", json!(25))] }),
    );
    assert_eq!(spends["overallCode"], "OVER_LIMIT", "and the units are charged: {spends}");
    assert_eq!(
        client.ask(
            &json!({ "domain": "edge", "descriptors": [with("spent", "hits_addend", json!(0))] })
        )["overallCode"],
        "OVER_LIMIT"
    );

    let own = with("nobody", "limit", json!({ "requests_per_unit": 1, "unit": "SECOND" }));
    let own = json!({ "domain": "edge", "descriptors": [own] });
    assert_eq!(standing(&client.ask(&own)), [("OK", "own", 1, "SECOND", 0)]);

    let banned = client.ask_for(&["banned"]);
    assert_eq!(banned["overallCode"], "OVER_LIMIT");
    assert!(banned["statuses"][0].get("durationUntilReset").is_none());

    // A client's filter may leave the domain empty: then no rule applies.
    let without_domain = client.ask(&json!({ "descriptors": [descriptor("a")] }));
    assert_eq!(standing(&without_domain), [("OK", "", 0, "", 0)]);

    for request in [json!({}), json!({ "domain": "edge" })] {
        let refused = client.ask(&request);
        assert_eq!(refused["error"], "INVALID_ARGUMENT", "{refused}");
        assert!(refused["details"].as_str().is_some_and(|told| !told.is_empty()));
    }
}
