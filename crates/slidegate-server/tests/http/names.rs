//! Tests of misspelt names in requests: costs that no rule charges, and attributes that no rule uses.

use std::time::Duration;

use serde_json::{Value, json};
use ureq::http::Request;

use crate::common::Server;
use crate::http::bad_input::assert_problem;
use crate::http::client::Client;

const POLICY: &str = "
rules:
  - { name: tokens, per: [user], limits: [1000/h], cost: tokens, algorithm: sliding_log }
  - { name: images, per: [user], limits: [10/h], cost: images, algorithm: sliding_log }
  - { name: units, domain: mixed, per: [user], limits: [1000/h] }
  - { name: tokens, domain: mixed, per: [user], limits: [1000/h], cost: tokens }
  - { name: all, domain: open, limits: unlimited }
";

/// Returns the next line of the log that contains `text`.
fn log_line(server: &Server, text: &str) -> String {
    loop {
        let line = server.next_log_line(Duration::from_secs(30)).expect(text);
        if line.contains(text) {
            return line;
        }
    }
}

#[test]
fn unknown_cost_is_rejected_at_every_endpoint() {
    let server = Server::start_with_admin(POLICY, &[]);
    let client = Client::new(&server);
    let admin = Client::with_address(server.admin_address());
    let named = json!({"attributes": {"user": "ann"}, "costs": {"token": 4000}});
    let unnamed = json!({"attributes": {"user": "ann"}, "cost": 4000});
    let endpoints =
        ["/v1/check", "/v1/peek", "/v1/report", "/v1/reserve"].map(|path| (&client, path));
    for (client, path) in endpoints.into_iter().chain([(&admin, "/v1/explain")]) {
        assert_problem(
            &client.post(path, named.to_string()),
            400,
            "Bad Request",
            "no rule of domain `default` charges `token`; did you mean `tokens`? Its rules charge `images`, `tokens`",
        );
        assert_problem(
            &client.post(path, unnamed.to_string()),
            400,
            "Bad Request",
            "no rule of domain `default` charges `cost`; send the units by name, for example {\"costs\":{\"images\":4000}}. Its rules charge `images`, `tokens`",
        );
    }
    let line = log_line(&server, "rejected request because of its costs or its number of limits");
    assert!(line.contains("charges `token`; did you mean `tokens`?"), "{line}");
    let keyed = json!({"attributes": {"user": "ann"}, "costs": {"token": 1}, "idempotency_key": "a", "wait_ms": 10});
    assert_eq!(client.check(&keyed).status, 400);
    // The key is still unused, and nothing has been charged.
    let corrected =
        json!({"attributes": {"user": "ann"}, "costs": {"tokens": 1000}, "idempotency_key": "a"});
    let response = client.check(&corrected);
    assert_eq!((response.status, &response.json()["limits"][0]["remaining"]), (200, &json!(0)));
}

#[test]
fn known_costs_of_other_domains_are_accepted() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let status = |domain: &str, costs: Value| {
        let mut body = json!({"domain": domain, "attributes": {"user": "ann"}});
        body.as_object_mut().unwrap().append(&mut costs.as_object().unwrap().clone());
        client.check(&body).status
    };
    assert_eq!(status("mixed", json!({"cost": 7})), 200);
    assert_eq!(status("mixed", json!({"cost": 7, "costs": {"tokens": 1}})), 200);
    assert_eq!(status("mixed", json!({"costs": {"images": 1}})), 400);
    assert_eq!(status("default", json!({"cost": 7, "costs": {"tokens": 1}})), 200);
    assert_eq!(status("default", json!({"cost": 0})), 200);
    // No rule counts units, or there is no rule.
    assert_eq!(status("open", json!({"cost": 7, "costs": {"token": 1}})), 200);
    assert_eq!(status("unknown", json!({"cost": 7, "costs": {"token": 1}})), 200);
}

#[test]
fn settlement_with_unknown_cost_leaves_reservation_open() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let estimate = json!({"attributes": {"user": "ann"}, "costs": {"tokens": 700}});
    let reserved = client.post("/v1/reserve", estimate.to_string()).json();
    let settle = |costs: Value| {
        let mut body = json!({"reservation": reserved["reservation"]});
        body.as_object_mut().unwrap().append(&mut costs.as_object().unwrap().clone());
        client.post("/v1/settle", body.to_string())
    };
    assert_problem(
        &settle(json!({"costs": {"token": 5}})),
        400,
        "Bad Request",
        "no rule of the reservation charges `token`; did you mean `tokens`?",
    );
    assert_problem(
        &settle(json!({"cost": 5})),
        400,
        "Bad Request",
        "no rule of the reservation charges `cost`; send the units by name",
    );
    let settled = settle(json!({"costs": {"tokens": 5}}));
    assert_eq!((settled.status, settled.json()), (200, json!({"settled": true})));
    let peek = client.post("/v1/peek", json!({"attributes": {"user": "ann"}}).to_string()).json();
    assert_eq!(peek["limits"][0]["remaining"], json!(995));
}

#[test]
fn misspelt_attribute_is_logged_once_a_minute() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    for name in ["usr", "a\nb", "c"] {
        let response = client.check(&json!({"attributes": {name: "ann"}}));
        assert_eq!((response.status, &response.json()["limits"]), (200, &json!([])));
    }
    // A request that a rule applies to, and a request of an unknown domain.
    client.check(&json!({"attributes": {"user": "ann", "b": "c"}}));
    client.check(&json!({"domain": "unknown", "attributes": {"b": "c"}}));
    let line = log_line(&server, "no rule applies to a request with attributes that no rule uses");
    assert!(line.contains("WARN"), "{line}");
    for field in [
        "domain=\"default\"",
        "sent=\"`usr`\"",
        "rules_use=\"`user`\"",
        "did_you_mean=\"user\"",
        "unlogged=0",
    ] {
        assert!(line.contains(field), "{field}: {line}");
    }
    server.send_signal("TERM");
    let rest = std::iter::from_fn(|| server.next_log_line(Duration::from_secs(30)));
    let rest: Vec<String> = rest.take_while(|line| !line.contains("stopped")).collect();
    assert!(!rest.iter().any(|line| line.contains("no rule applies")), "{rest:?}");
}

#[test]
fn logged_attribute_names_are_escaped_bounded_and_redacted() {
    let hostile = format!("a\nINFO b{}", "x".repeat(1000));
    let mut attributes: serde_json::Map<String, Value> =
        (0..100).map(|index| (format!("name-{index:03}"), json!("v"))).collect();
    attributes.insert(hostile, json!("v"));
    let body = json!({ "attributes": attributes });
    let log = |flags: &[&str]| {
        let server = Server::start_with(POLICY, flags);
        assert_eq!(Client::new(&server).check(&body).status, 200);
        log_line(&server, "no rule applies")
    };
    let line = log(&[]);
    assert!(line.contains(r"`a\nINFO bxxx") && line.contains("xxx…`, `name-000`"), "{line}");
    assert!(line.contains("and 85 more") && line.len() < 2000, "{line}");
    let redacted = log(&["--redact-keys"]);
    assert!(
        !redacted.contains("name-000") && redacted.contains("rules_use=\"`user`\""),
        "{redacted}"
    );
}

#[test]
fn strict_server_rejects_misspelt_attribute() {
    let server = Server::start_with(POLICY, &["--strict"]);
    let client = Client::new(&server);
    let misspelt = json!({"attributes": {"usr": "ann"}});
    for path in ["/v1/check", "/v1/peek", "/v1/reserve"] {
        assert_problem(
            &client.post(path, misspelt.to_string()),
            400,
            "Bad Request",
            "no rule of domain `default` uses `usr`, and none applies to the request; did you mean `user`? Its rules use `user`",
        );
    }
    assert_problem(
        &client.check(&json!({"attributes": {}})),
        400,
        "Bad Request",
        "the request has no attributes, and none applies to the request",
    );
    let envoy = json!({"domain": "default", "descriptors": [{"entries": [{"key": "usr", "value": "ann"}]}]});
    assert_problem(&client.post("/json", envoy.to_string()), 400, "Bad Request", "uses `usr`");
    for accepted in [
        json!({"attributes": {"user": "ann", "other": "b"}}),
        json!({"domain": "unknown", "attributes": {"usr": "ann"}}),
        json!({"domain": "open", "attributes": {"usr": "ann"}}),
    ] {
        assert_eq!(client.check(&accepted).status, 200, "{accepted}");
    }
}

#[test]
fn forward_auth_never_rejects_names() {
    let server = Server::start_with(POLICY, &["--strict"]);
    let client = Client::new(&server);
    let request = Request::get("/v1/auth").header("x-forwarded-uri", "/").body(Vec::new());
    assert_eq!(client.send(request.unwrap()).status, 200);
    let line = log_line(&server, "no rule of the domain can apply to requests at /v1/auth");
    assert!(line.contains("rules_use=\"`user`\""), "{line}");
}
