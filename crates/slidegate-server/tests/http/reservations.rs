//! Tests of idempotency keys, `/v1/reserve` and `/v1/settle`.

use std::thread;

use serde_json::{Value, json};

use crate::common::Server;
use crate::http::bad_input::assert_problem;
use crate::http::client::{Client, HttpResponse};
use crate::http::waiting::wait_for_waiting_calls;

const POLICY: &str = "
rules:
  - { name: rate, per: [client], limits: [10/h], cost: 1, algorithm: sliding_log }
  - { name: tokens, per: [client], limits: [1000/h], cost: tokens, algorithm: sliding_log }
  - { name: units, per: [client], limits: [5000/h], algorithm: sliding_log }
";

/// Returns the remaining units of each limit of a client: rate, tokens and units.
fn remaining(client: &Client, name: &str) -> Vec<u64> {
    let peek = client.post("/v1/peek", json!({"attributes": {"client": name}}).to_string()).json();
    let limits = peek["limits"].as_array().unwrap().clone();
    limits.iter().map(|limit| limit["remaining"].as_u64().unwrap()).collect()
}

fn post(client: &Client, path: &str, body: &Value) -> HttpResponse {
    client.post(path, body.to_string())
}

/// Reserves units and tokens for ann, and returns the token.
fn reserve(client: &Client, cost: u64, tokens: u64) -> String {
    let body = json!({"attributes": {"client": "ann"}, "cost": cost, "costs": {"tokens": tokens}});
    let reserved = post(client, "/v1/reserve", &body);
    assert_eq!(reserved.status, 200, "{}", reserved.body);
    reserved.json()["reservation"].as_str().unwrap().to_owned()
}

#[test]
fn repeated_check_returns_same_decision_and_charges_once() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let body = json!({"attributes": {"client": "ann"}, "cost": 7, "idempotency_key": "a"});
    let first = post(&client, "/v1/check", &body);
    assert_eq!((first.status, remaining(&client, "ann")), (200, vec![9, 1000, 4993]));
    for _ in 0..3 {
        let again = post(&client, "/v1/check", &body);
        assert_eq!((again.status, again.json()), (200, first.json()));
    }
    assert_eq!(remaining(&client, "ann"), [9, 1000, 4993]);
    let mut other = body.clone();
    other["idempotency_key"] = json!("b");
    assert_eq!(post(&client, "/v1/check", &other).status, 200);
    assert_eq!(remaining(&client, "ann"), [8, 1000, 4986]);
}

#[test]
fn idempotency_key_of_other_request_is_rejected() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let body = json!({"attributes": {"client": "ann"}, "cost": 7, "idempotency_key": "a"});
    assert_eq!(post(&client, "/v1/check", &body).status, 200);
    let other_client = json!({"attributes": {"client": "bob"}, "cost": 7, "idempotency_key": "a"});
    let other_cost = json!({"attributes": {"client": "ann"}, "cost": 8, "idempotency_key": "a"});
    for (path, other) in [
        ("/v1/check", &other_client),
        ("/v1/check", &other_cost),
        ("/v1/report", &body),
        ("/v1/reserve", &body),
    ] {
        let response = post(&client, path, other);
        assert_problem(
            &response,
            422,
            "Unprocessable Entity",
            "the idempotency key was used for another request",
        );
    }
    assert_eq!(remaining(&client, "ann"), [9, 1000, 4993]);
    assert_eq!(remaining(&client, "bob"), [10, 1000, 5000]);
}

#[test]
fn denied_call_is_decided_again() {
    let server = Server::start("rules: [{ name: a, limits: [1/200ms], algorithm: sliding_log }]");
    let client = Client::new(&server);
    let body = |key: &str| json!({"attributes": {}, "idempotency_key": key});
    assert_eq!(post(&client, "/v1/check", &body("a")).status, 200);
    let denied = post(&client, "/v1/check", &body("b"));
    assert_eq!(denied.status, 429);
    assert_eq!(post(&client, "/v1/check", &body("a")).status, 200, "a is repeated");
    let wait = denied.json()["retry_after_ms"].as_u64().unwrap();
    thread::sleep(std::time::Duration::from_millis(wait));
    assert_eq!(post(&client, "/v1/check", &body("b")).status, 200);
}

#[test]
fn repeated_report_is_recorded_once() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let body =
        json!({"attributes": {"client": "ann"}, "costs": {"tokens": 300}, "idempotency_key": "a"});
    for _ in 0..3 {
        assert_eq!(post(&client, "/v1/report", &body).status, 200);
    }
    assert_eq!(remaining(&client, "ann"), [10, 700, 5000]);
}

#[test]
fn concurrent_repetitions_are_charged_once() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let body = json!({"attributes": {"client": "ann"}, "idempotency_key": "a"});
    let address = server.address();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let client = Client::with_address(address);
                for _ in 0..20 {
                    assert_eq!(post(&client, "/v1/check", &body).status, 200);
                }
            });
        }
    });
    assert_eq!(remaining(&client, "ann"), [9, 1000, 4999]);
}

#[test]
fn reservation_is_settled_to_actual_costs_once() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let token = reserve(&client, 5, 700);
    assert_eq!(remaining(&client, "ann"), [9, 300, 4995]);
    let settle = json!({"reservation": token, "cost": 3, "costs": {"tokens": 900}});
    for _ in 0..3 {
        let settled = post(&client, "/v1/settle", &settle);
        assert_eq!((settled.status, settled.json()), (200, json!({"settled": true})));
        assert_eq!(remaining(&client, "ann"), [9, 100, 4997]);
    }
    let other = json!({"reservation": token, "cost": 3, "costs": {"tokens": 901}});
    assert_problem(
        &post(&client, "/v1/settle", &other),
        409,
        "Conflict",
        "settled with other costs",
    );
    assert_eq!(remaining(&client, "ann"), [9, 100, 4997]);
}

#[test]
fn cost_of_zero_cancels_reservation() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let token = reserve(&client, 5, 700);
    let cancel = json!({"reservation": token, "cost": 0});
    assert_eq!(post(&client, "/v1/settle", &cancel).status, 200);
    assert_eq!(remaining(&client, "ann"), [10, 1000, 5000]);
}

#[test]
fn settlement_keeps_estimates_that_it_does_not_name() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let token = reserve(&client, 5, 700);
    let settle = json!({"reservation": token, "costs": {"tokens": 0}});
    assert_eq!(post(&client, "/v1/settle", &settle).status, 200);
    assert_eq!(remaining(&client, "ann"), [9, 1000, 4995]);
}

#[test]
fn concurrent_settlements_are_applied_once() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let token = reserve(&client, 5, 700);
    let settle = json!({"reservation": token, "costs": {"tokens": 600}});
    let address = server.address();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let client = Client::with_address(address);
                for _ in 0..20 {
                    assert_eq!(post(&client, "/v1/settle", &settle).status, 200);
                }
            });
        }
    });
    assert_eq!(remaining(&client, "ann"), [9, 400, 4995]);
}

#[test]
fn denied_reservation_has_no_token() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let body = json!({"attributes": {"client": "ann"}, "costs": {"tokens": 1001}});
    let denied = post(&client, "/v1/reserve", &body);
    let json = denied.json();
    assert_eq!((denied.status, &json["reason"]), (429, &json!("cost_exceeds_max")));
    assert_eq!((&json["reservation"], &json["expires_in_ms"]), (&Value::Null, &Value::Null));
}

#[test]
fn response_says_how_much_of_use_is_reserved() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let body = |tokens: u64| json!({"attributes": {"client": "ann"}, "costs": {"tokens": tokens}});
    post(&client, "/v1/report", &body(100));
    let reserved = post(&client, "/v1/reserve", &body(890)).json();
    assert_eq!((&reserved["remaining"], &reserved["reserved"]), (&json!(10), &json!(890)));
    let denied = post(&client, "/v1/reserve", &body(20));
    assert_eq!((denied.status, &denied.json()["reserved"]), (429, &json!(890)));
    assert!(denied.json()["retry_after_ms"].as_u64().unwrap() > 3_000_000);
    let settle = json!({"reservation": reserved["reservation"], "costs": {"tokens": 300}});
    for _ in 0..2 {
        assert_eq!(post(&client, "/v1/settle", &settle).status, 200);
    }
    let again = post(&client, "/v1/reserve", &body(600)).json();
    assert_eq!((&again["remaining"], &again["reserved"]), (&json!(0), &json!(600)));
    let unlimited = post(&client, "/v1/reserve", &json!({"attributes": {}})).json();
    assert_eq!(unlimited["reserved"], Value::Null, "no limit applies");
}

#[test]
fn waiting_reservation_is_admitted_by_settlement() {
    let server = Server::start_with_admin(POLICY, &["--max-wait", "30s"]);
    let (client, address) = (Client::new(&server), server.address());
    let token = reserve(&client, 1, 1_000);
    let body =
        json!({"attributes": {"client": "ann"}, "costs": {"tokens": 200}, "wait_ms": 30_000});
    let reserved = thread::scope(|scope| {
        let waiting = scope.spawn(|| post(&Client::with_address(address), "/v1/reserve", &body));
        wait_for_waiting_calls(&server, 1);
        let settle = json!({"reservation": token, "costs": {"tokens": 700}});
        assert_eq!(post(&client, "/v1/settle", &settle).status, 200);
        waiting.join().unwrap()
    });
    assert_eq!((reserved.status, &reserved.json()["reserved"]), (200, &json!(200)));
    assert_eq!(remaining(&client, "ann")[1], 100);
}

#[test]
fn repeated_reservation_is_same_reservation() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let body =
        json!({"attributes": {"client": "ann"}, "costs": {"tokens": 700}, "idempotency_key": "a"});
    let tokens: Vec<Value> =
        (0..3).map(|_| post(&client, "/v1/reserve", &body).json()["reservation"].clone()).collect();
    assert_eq!(remaining(&client, "ann"), [9, 300, 4999]);
    for token in &tokens {
        let settle = json!({"reservation": token, "costs": {"tokens": 200}});
        assert_eq!(post(&client, "/v1/settle", &settle).status, 200);
    }
    assert_eq!(remaining(&client, "ann"), [9, 800, 4999]);
    let again = post(&client, "/v1/reserve", &body);
    assert_eq!((again.status, remaining(&client, "ann")), (200, vec![9, 800, 4999]));
    assert_eq!(again.json()["reserved"], 0, "it is settled");
}

#[test]
fn reservation_expires_after_ttl() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let body = json!({"attributes": {"client": "ann"}, "costs": {"tokens": 700}, "ttl_ms": 1});
    let reserved = post(&client, "/v1/reserve", &body).json();
    assert_eq!(reserved["expires_in_ms"], json!(1));
    thread::sleep(std::time::Duration::from_millis(2));
    let settle = json!({"reservation": reserved["reservation"], "cost": 0});
    assert_problem(&post(&client, "/v1/settle", &settle), 410, "Gone", "`reservation` has expired");
    assert_eq!(remaining(&client, "ann"), [9, 300, 4999]);
}

#[test]
fn reservation_of_other_server_is_rejected() {
    let key = ["--token-key", "0123456789abcdef"];
    let (first, second) = (Server::start_with(POLICY, &key), Server::start_with(POLICY, &key));
    let other_key = Server::start(POLICY);
    let token = reserve(&Client::new(&first), 1, 700);
    let settle = json!({"reservation": token, "cost": 0});
    let misdirected = post(&Client::new(&second), "/v1/settle", &settle);
    assert_problem(&misdirected, 421, "Misdirected Request", "was made by another instance");
    let forged = post(&Client::new(&other_key), "/v1/settle", &settle);
    assert_problem(&forged, 400, "Bad Request", "not a token of this service");
    assert_eq!(post(&Client::new(&first), "/v1/settle", &settle).status, 200);
}

#[test]
fn malformed_reservations_are_bad_requests() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let token = reserve(&client, 1, 1);
    for (path, body, detail) in [
        (
            "/v1/settle",
            json!({"cost": 1}),
            "missing field `reservation`; send the `reservation` in",
        ),
        ("/v1/settle", json!({"reservation": token}), "the settlement contains no units"),
        (
            "/v1/settle",
            json!({"reservation": 7, "cost": 1}),
            "integer `7`, expected a string; send the",
        ),
        ("/v1/settle", json!({"reservation": "x", "cost": 1}), "not a token of this service"),
        (
            "/v1/settle",
            json!({"reservation": "A".repeat(100_000), "cost": 1}),
            "not a token of this service",
        ),
        ("/v1/settle", json!({"reservation": &token[..20], "cost": 1}), "not a token of this"),
        ("/v1/settle", json!({"token": token, "cost": 1}), "expected one of `reservation`,"),
        (
            "/v1/settle",
            json!({"reservation": token, "cost": -1}),
            "`cost`: -1 is not accepted; send a",
        ),
        (
            "/v1/reserve",
            json!({"attributes": {}, "ttl": 5}),
            "unknown field `ttl`, expected one of",
        ),
        (
            "/v1/reserve",
            json!({"attributes": {}, "ttl_ms": 0}),
            "`ttl_ms`: 0 is not accepted; send",
        ),
        ("/v1/reserve", json!({"attributes": {}, "ttl_ms": 86_400_001}), "from 1 to 86400000"),
        (
            "/v1/reserve",
            json!({"attributes": {}, "ttl_ms": "5s"}),
            "`ttl_ms`: \"5s\" is not accepted",
        ),
        ("/v1/reserve", json!({}), "missing field `attributes`"),
        (
            "/v1/check",
            json!({"attributes": {}, "idempotency_key": ""}),
            "`idempotency_key`: \"\" is not accepted; send a Unicode string",
        ),
        (
            "/v1/check",
            json!({"attributes": {}, "idempotency_key": 7}),
            "`idempotency_key`: 7 is not accepted; send",
        ),
        (
            "/v1/check",
            json!({"attributes": {}, "idempotency_key": "x".repeat(256)}),
            "xxx… is not accepted; send a Unicode string of 1 to 255 bytes",
        ),
        ("/v1/peek", json!({"attributes": {}, "idempotency_key": "a"}), "unknown field"),
    ] {
        let response = post(&client, path, &body);
        assert_problem(&response, 400, "Bad Request", detail);
    }
}

#[test]
fn repeated_reservation_cannot_outlive_its_record() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let body = |ttl_ms: u64| json!({"attributes": {"client": "ann"}, "idempotency_key": "a", "ttl_ms": ttl_ms});
    assert_eq!(post(&client, "/v1/reserve", &body(1_000)).status, 200);
    let shorter = post(&client, "/v1/reserve", &body(60_000)).json();
    assert!(shorter["expires_in_ms"].as_u64().unwrap() <= 60_000);
    let longer = post(&client, "/v1/reserve", &body(700_000));
    assert_problem(&longer, 422, "Unprocessable Entity", "was used for another request");
}
