//! Tests of the gRPC responses with a Python client. The client is generated from the protocol files that Envoy
//! publishes, and decodes every kind of response.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::common::Server;
use crate::proxies::installed_program;

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

/// A running Python client process. The process is killed when the value is dropped.
struct PythonClient {
    child: Child,
    requests: ChildStdin,
    responses: BufReader<ChildStdout>,
}

impl PythonClient {
    fn start(server: &Server) -> Self {
        let mut child = Command::new(installed_program("python/bin/python"))
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/proxies/published_protocol.py"))
            .arg(server.grpc_address().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let requests = child.stdin.take().unwrap();
        let responses = BufReader::new(child.stdout.take().unwrap());
        Self { child, requests, responses }
    }

    /// Sends a rate limit request through the Python client, and returns the decoded response as JSON.
    fn check(&mut self, request: &Value) -> Value {
        writeln!(self.requests, "{request}").unwrap();
        let mut response = String::new();
        self.responses.read_line(&mut response).unwrap();
        serde_json::from_str(&response).unwrap_or_else(|error| panic!("{request}: {error}"))
    }

    /// Sends a request in domain `edge` with one descriptor per name, and returns the decoded response. Each descriptor
    /// has one entry with that name.
    fn check_descriptors_with_names(&mut self, names: &[&str]) -> Value {
        let descriptors: Vec<Value> = names.iter().map(|name| new_json_descriptor(name)).collect();
        self.check(&json!({ "domain": "edge", "descriptors": descriptors }))
    }
}

impl Drop for PythonClient {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a descriptor as JSON with a single entry, whose key is `name`.
fn new_json_descriptor(name: &str) -> Value {
    json!({ "entries": [{ "key": name, "value": "v" }] })
}

/// Returns a descriptor as JSON with a single entry, whose key is `name`, and with one additional field.
fn json_descriptor_with_field(name: &str, field: &str, value: Value) -> Value {
    let mut descriptor = new_json_descriptor(name);
    descriptor[field] = value;
    descriptor
}

/// Returns the status of each descriptor in a response: code, limit name, max, time unit, and remaining units.
fn parse_response_statuses(response: &Value) -> Vec<(&str, &str, u64, &str, u64)> {
    let statuses = response["statuses"].as_array().unwrap().iter();
    let statuses = statuses.map(|status| {
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
    statuses.collect()
}

#[test]
fn published_protocol_client_decodes_every_response() {
    let server = Server::start_with_grpc(POLICY, &[]);
    let client = &mut PythonClient::start(&server);
    let max_remaining = u64::from(u32::MAX);

    let allowed = client.check_descriptors_with_names(&["one", "unknown", "free", "watched"]);
    assert_eq!(allowed["overallCode"], "OK");
    assert_eq!(
        parse_response_statuses(&allowed),
        [
            ("OK", "one.1h", 2, "HOUR", 1),
            ("OK", "", 0, "", 0),
            ("OK", "", 0, "", max_remaining),
            ("OK", "watched", 1, "DAY", 0),
        ]
    );
    // A log keeps a charge until the end of its tick, which can add one second after rounding up.
    let reset = allowed["statuses"][0]["durationUntilReset"].as_str().unwrap();
    assert!(["3600s", "3601s"].contains(&reset), "{reset}");
    let watched = client.check_descriptors_with_names(&["watched"]);
    assert_eq!(watched["overallCode"], "OK");
    assert_eq!(parse_response_statuses(&watched), [("OVER_LIMIT", "watched", 1, "DAY", 0)]);

    // The cost exceeds the max of both limits, which are unused again after the same times as before.
    let costly = client.check(
        &json!({ "domain": "edge", "hits_addend": 101, "descriptors": [new_json_descriptor("one")] }),
    );
    assert_eq!(costly["overallCode"], "OVER_LIMIT");
    assert_eq!(parse_response_statuses(&costly), [("OVER_LIMIT", "one.1h", 2, "HOUR", 0)]);
    let reset = costly["statuses"][0]["durationUntilReset"].as_str().unwrap();
    assert!(["3600s", "3601s"].contains(&reset), "{reset}");

    // One of two descriptors is denied, and the other is not charged.
    assert_eq!(client.check_descriptors_with_names(&["other"])["overallCode"], "OK");
    let denied = client.check_descriptors_with_names(&["one", "other"]);
    assert_eq!(denied["overallCode"], "OVER_LIMIT");
    let codes = [("OK", "one.1h", 2, "HOUR", 1), ("OVER_LIMIT", "other", 1, "MINUTE", 0)];
    assert_eq!(parse_response_statuses(&denied), codes);
    let headers: Vec<&str> = denied["responseHeadersToAdd"]
        .as_array()
        .unwrap()
        .iter()
        .map(|header| header["key"].as_str().unwrap())
        .collect();
    assert_eq!(
        headers,
        ["ratelimit-policy", "ratelimit", "retry-after", "content-type", "cache-control"]
    );
    let body = BASE64_STANDARD.decode(denied["rawBody"].as_str().unwrap()).unwrap();
    let problem: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (&problem["status"], &problem["violated-policies"][0]),
        (&json!(429), &json!("other"))
    );

    let peeked = client
        .check(&json!({ "domain": "edge", "descriptors": [json_descriptor_with_field("one", "hits_addend", json!(0))] }));
    assert_eq!(
        parse_response_statuses(&peeked),
        [("OK", "one.1h", 2, "HOUR", 1)],
        "zero hits charge nothing"
    );

    let overspent = client.check(
        &json!({ "domain": "edge", "descriptors": [json_descriptor_with_field("spent", "hits_addend", json!(25))] }),
    );
    assert_eq!(overspent["overallCode"], "OVER_LIMIT", "the units are charged: {overspent}");
    assert_eq!(
        client.check(
            &json!({ "domain": "edge", "descriptors": [json_descriptor_with_field("spent", "hits_addend", json!(0))] })
        )["overallCode"],
        "OVER_LIMIT"
    );

    let own = json_descriptor_with_field(
        "unknown",
        "limit",
        json!({ "requests_per_unit": 1, "unit": "SECOND" }),
    );
    let own = json!({ "domain": "edge", "descriptors": [own] });
    assert_eq!(parse_response_statuses(&client.check(&own)), [("OK", "own", 1, "SECOND", 0)]);

    let banned = client.check_descriptors_with_names(&["banned"]);
    assert_eq!(banned["overallCode"], "OVER_LIMIT");
    assert_eq!(banned["statuses"][0]["durationUntilReset"], "1s", "the window of a ban");

    // A client may send an empty domain: no rule matches.
    let without_domain = client.check(&json!({ "descriptors": [new_json_descriptor("a")] }));
    assert_eq!(parse_response_statuses(&without_domain), [("OK", "", 0, "", 0)]);

    for request in [json!({}), json!({ "domain": "edge" })] {
        let rejected = client.check(&request);
        assert_eq!(rejected["error"], "INVALID_ARGUMENT", "{rejected}");
        assert!(rejected["details"].as_str().is_some_and(|details| !details.is_empty()));
    }
}
