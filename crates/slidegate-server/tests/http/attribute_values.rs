//! Tests of attribute values that are integers or booleans. Each counts as its text.

use serde_json::json;

use crate::common::Server;
use crate::http::client::Client;

const POLICY: &str = "
defaults: { algorithm: sliding_log }
rules:
  - { name: beta, when: { beta: 'true' }, limits: denied }
  - { name: per-user, per: [user], limits: [1/h] }
";

fn body_with_user(json: &str) -> String {
    format!(r#"{{"attributes":{{"user":{json}}}}}"#)
}

#[test]
fn integers_and_booleans_share_counter_with_text() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let long = "9".repeat(5_000);
    for value in
        ["42", "0", "-7", "9007199254740993", "-9223372036854775809", "true", "false", &long]
    {
        let statuses = [body_with_user(value), body_with_user(&format!("\"{value}\""))]
            .map(|body| client.post("/v1/check", body).status);
        assert_eq!(statuses, [200, 429], "{value}");
    }
}

#[test]
fn neighboring_large_integers_have_separate_counters() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    // As `f64`, all values of a group would be equal.
    for value in [
        "9007199254740992",
        "9007199254740993",
        "18446744073709551615",
        "18446744073709551616",
        "18446744073709551617",
    ] {
        assert_eq!(client.post("/v1/check", body_with_user(value)).status, 200, "{value}");
    }
}

#[test]
fn every_endpoint_accepts_integers_and_booleans() {
    let server = Server::start_with_admin(POLICY, &[]);
    let client = Client::new(&server);
    let body = r#"{"attributes":{"user":42,"beta":false},"cost":1}"#;
    for path in ["/v1/peek", "/v1/report", "/v1/peek"] {
        assert!([200, 429].contains(&client.post(path, body).status), "{path}");
    }
    assert_eq!(client.post("/v1/check", body).status, 429, "the report charged the unit");
    let admin = Client::with_address(server.admin_address());
    let explained = admin.post("/v1/explain", body).json();
    assert_eq!(explained["rules"][1]["limits"][0]["key_values"], json!({"user": "42"}));
    let descriptors = r#"{"descriptors":[{"attributes":{"user":42}}]}"#;
    let explained = admin.post("/v1/explain", descriptors).json();
    assert_eq!(explained["rules"][1]["limits"][0]["now"]["used"], 1);
}

#[test]
fn boolean_value_matches_policy_condition() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let status =
        |json| client.post("/v1/check", format!(r#"{{"attributes":{{"beta":{json}}}}}"#)).status;
    assert_eq!([status("true"), status("\"true\""), status("false")], [429, 429, 200]);
}
