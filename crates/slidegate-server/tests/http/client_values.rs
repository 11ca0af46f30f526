//! Tests of hostile attribute values. End clients can choose the values. Many callers allow a request if the check
//! fails with an error, so no value may cause an error.

use serde_json::json;

use crate::common::Server;
use crate::http::client::Client;

const POLICY: &str = "
defaults: { algorithm: sliding_log }
rules:
  - { name: banned, when: { agent: 'evil*' }, limits: denied }
  - { name: per-user, per: [user], limits: [1/h] }
";

/// Returns a body for `/v1/check` whose attribute `user` has this value. The bytes are inserted without JSON escaping.
fn check_body(user: &[u8]) -> Vec<u8> {
    [br#"{"attributes":{"user":""#, user, br#""}}"#].concat()
}

/// Returns a body for `/json`, the JSON form of the gRPC request, whose entry `user` has this value. The bytes are
/// inserted without JSON escaping.
fn rate_limit_service_body(user: &[u8]) -> Vec<u8> {
    let front = br#"{"domain":"default","descriptors":[{"entries":[{"key":"user","value":""#;
    [front, user, br#""}]}]}"#].concat()
}

/// Returns hostile contents of a JSON string: very long, not Unicode, and control characters. The values differ after
/// U+FFFD has replaced invalid Unicode.
fn hostile_json_strings() -> Vec<Vec<u8>> {
    vec![
        vec![b'x'; 1025],
        [vec![b'x'; 1025], b"y".to_vec()].concat(),
        vec![b'*'; 15_000],
        vec![b'z'; 1_000_000],
        b"\xff".to_vec(),
        b"k\xff\xfe".to_vec(),
        br"k\udcff".to_vec(),
        br"\u0000\u0001".to_vec(),
        b"\x01\n\x1f".to_vec(),
        br"\ud83d\ude00".to_vec(),
    ]
}

#[test]
fn hostile_values_have_separate_counters() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    for status in [200, 429] {
        for text in hostile_json_strings() {
            let shown = String::from_utf8_lossy(&text[..text.len().min(20)]).into_owned();
            // A peek charges nothing.
            assert_eq!(client.post("/v1/peek", check_body(&text)).status, status, "{shown}");
            assert_eq!(client.post("/v1/check", check_body(&text)).status, status, "{shown}");
        }
    }
}

#[test]
fn values_with_invalid_unicode_share_counter() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    assert_eq!(client.post("/v1/check", check_body("\u{fffd}".as_bytes())).status, 200);
    for text in [&b"\xff"[..], b"\xfe", br"\ud800", br"\uDCFF", br"\ufffd"] {
        let shown = String::from_utf8_lossy(text);
        assert_eq!(client.post("/v1/check", check_body(text)).status, 429, "{shown}");
        assert_eq!(client.post("/json", rate_limit_service_body(text)).status, 429, "{shown}");
    }
}

#[test]
fn json_and_check_endpoints_share_hostile_value_counters() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    for text in hostile_json_strings() {
        let shown = String::from_utf8_lossy(&text[..text.len().min(20)]).into_owned();
        assert_eq!(client.post("/json", rate_limit_service_body(&text)).status, 200, "{shown}");
        assert_eq!(client.post("/json", rate_limit_service_body(&text)).status, 429, "{shown}");
        assert_eq!(client.post("/v1/check", check_body(&text)).status, 429, "{shown}");
    }
}

#[test]
fn long_or_non_utf8_value_does_not_evade_ban() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let agent = |agent: &[u8]| [br#"{"attributes":{"agent":""#, agent, br#""}}"#].concat();
    for evil in [[b"evil", &[b'x'; 2000][..]].concat(), b"evil\xff".to_vec()] {
        assert_eq!(client.post("/v1/check", agent(&evil)).status, 429);
    }
}

#[test]
fn non_utf8_attribute_names_do_not_affect_counting() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    // Both invalid names become U+FFFD, which is not an error for a repeated name.
    let body = b"{\"attributes\":{\"\xff\":\"a\",\"\xfe\":\"b\",\"user\":\"ann\"}}";
    assert_eq!([(); 2].map(|()| client.post("/v1/check", body).status), [200, 429]);
}

#[test]
fn cost_above_every_limit_is_denied() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    for cost in ["2", "9007199254740992", "18446744073709551615", "18446744073709551616", "1e300"] {
        let body = format!(r#"{{"attributes":{{"user":"ann"}},"cost":{cost}}}"#);
        let response = client.post("/v1/check", body);
        assert_eq!(
            (response.status, &response.json()["retry_after_ms"]),
            (429, &json!(null)),
            "{cost}"
        );
    }
    assert_eq!(client.check(&json!({"attributes": {"user": "ann"}})).status, 200);
}
