//! Tests of calls with `wait_ms`, which wait until they fit. The windows are short, because the server has a real clock.

use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use quanta::Instant;
use serde_json::{Value, json};

use crate::common::Server;
use crate::http::bad_input::assert_problem;
use crate::http::client::{Client, RawConnection, raw_check_request};

const POLICY: &str = "rules: [{ name: all, limits: [10/2s], algorithm: sliding_log }]";

/// Longer than a call may be delayed on a busy machine, and shorter than the window of the policy.
const SHORT: Duration = Duration::from_millis(1_500);

fn body(cost: u64, wait_ms: u64) -> String {
    json!({ "attributes": {}, "cost": cost, "wait_ms": wait_ms }).to_string()
}

/// Sends a check on a new connection, and returns before the response.
fn send_check(server: &Server, cost: u64, wait_ms: u64) -> RawConnection {
    send_body(server, &body(cost, wait_ms))
}

fn send_body(server: &Server, body: &str) -> RawConnection {
    let mut connection = RawConnection::connect(server.address());
    connection.write(raw_check_request(body));
    connection
}

fn read_json(connection: &mut RawConnection) -> (u16, Value) {
    let (status, body) = connection.read_status_and_body();
    (status, serde_json::from_str(&body).unwrap())
}

/// Returns the value of a metric, with its labels.
pub fn metric(server: &Server, name: &str) -> f64 {
    let text = Client::with_address(server.admin_address()).call("GET", "/metrics").body;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} in {text}")).parse().unwrap()
}

/// Blocks until this number of calls wait.
pub fn wait_for_waiting_calls(server: &Server, calls: u32) {
    let started = Instant::now();
    while metric(server, "slidegate_waiting_calls") != f64::from(calls) {
        assert!(started.elapsed() < Duration::from_secs(30), "{calls} calls do not wait");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn waiting_calls_are_answered_in_order_of_arrival() {
    let server = Server::start_with_admin(POLICY, &[]);
    let client = Client::new(&server);
    assert_eq!(client.post("/v1/check", body(10, 5_000)).json()["remaining"], 0);
    let mut large = send_check(&server, 8, 5_000);
    wait_for_waiting_calls(&server, 1);
    let mut small = send_check(&server, 2, 5_000);
    wait_for_waiting_calls(&server, 2);
    let (status, response) = read_json(&mut large);
    assert_eq!((status, &response["remaining"]), (200, &json!(2)), "first in the queue");
    let (status, response) = read_json(&mut small);
    assert_eq!((status, &response["remaining"]), (200, &json!(0)), "charged once");
    assert_eq!(metric(&server, "slidegate_waits_total{result=\"admitted\"}"), 2.0);
    assert_eq!(metric(&server, "slidegate_waiting_calls"), 0.0);
    // The time of the wait is not a latency of the server.
    assert!(metric(&server, "slidegate_request_seconds_sum{protocol=\"http\"}") < 1.0);
}

#[test]
fn waiting_repetitions_are_charged_once() {
    let server = Server::start_with_admin(POLICY, &[]);
    assert_eq!(Client::new(&server).post("/v1/check", body(10, 0)).status, 200);
    let call = json!({ "attributes": {}, "cost": 8, "wait_ms": 5_000, "idempotency_key": "a" });
    let mut connections = [(); 2].map(|()| send_body(&server, &call.to_string()));
    wait_for_waiting_calls(&server, 2);
    for connection in &mut connections {
        let (status, response) = read_json(connection);
        assert_eq!((status, &response["remaining"]), (200, &json!(2)));
    }
    assert_eq!(metric(&server, "slidegate_repeated_calls_total"), 1.0);
    // The time of the wait is not a latency of the server.
    assert!(metric(&server, "slidegate_request_seconds_sum{protocol=\"http\"}") < 1.0);
}

#[test]
fn released_permits_answer_waiting_calls_in_order_of_arrival() {
    let policy = "rules: [{ name: all, limits: [{ concurrent: 1, permit_ttl: 60s }] }]";
    let server = Server::start_with_admin(policy, &["--max-wait", "60s"]);
    let client = Client::new(&server);
    let release = |response: &Value| {
        let permit = json!({ "permit": response["permit"] });
        assert_eq!(
            client.post("/v1/release", permit.to_string()).json(),
            json!({ "released": true })
        );
    };
    let held = client.post("/v1/check", body(1, 0)).json();
    let mut calls = Vec::new();
    for waiting in 1..=4 {
        calls.push(send_check(&server, 1, 50_000));
        wait_for_waiting_calls(&server, waiting);
    }
    // The first call is the one that decides again; its client disconnects.
    drop(calls.remove(0));
    wait_for_waiting_calls(&server, 3);
    release(&held);
    for (waiting, mut call) in (0..3).rev().zip(calls) {
        let (status, response) = read_json(&mut call);
        assert_eq!((status, &response["allowed"]), (200, &json!(true)));
        wait_for_waiting_calls(&server, waiting);
        release(&response);
    }
    assert_eq!(metric(&server, "slidegate_waits_total{result=\"admitted\"}"), 3.0);
    assert_eq!(metric(&server, "slidegate_waits_total{result=\"cancelled\"}"), 1.0);
    assert_eq!(metric(&server, "slidegate_permits_in_use"), 0.0, "no call has taken two");
}

#[test]
fn settlements_answer_waiting_calls() {
    let policy = "rules: [{ name: all, limits: [10/5m], algorithm: sliding_log }]";
    let server = Server::start_with_admin(policy, &["--max-wait", "10m"]);
    let client = Client::new(&server);
    let [cancelled, cheaper] = [6, 4].map(|estimate| {
        let reserve = json!({ "attributes": {}, "cost": estimate });
        client.post("/v1/reserve", reserve.to_string()).json()["reservation"].clone()
    });
    let settle = |reservation: &Value, cost: u64| {
        let settlement = json!({ "reservation": reservation, "cost": cost });
        assert_eq!(client.post("/v1/settle", settlement.to_string()).status, 200);
    };
    let mut first = send_check(&server, 6, 600_000);
    wait_for_waiting_calls(&server, 1);
    let mut second = send_check(&server, 2, 600_000);
    wait_for_waiting_calls(&server, 2);
    settle(&cancelled, 0);
    let (status, response) = read_json(&mut first);
    assert_eq!((status, &response["remaining"]), (200, &json!(0)));
    wait_for_waiting_calls(&server, 1);
    settle(&cheaper, 1);
    let (status, response) = read_json(&mut second);
    assert_eq!((status, &response["remaining"]), (200, &json!(1)), "charged once");
}

/// Large calls share a thread, and one of them may be the settlement for which the others wait.
#[test]
fn waiting_large_calls_do_not_delay_other_large_calls() {
    let policy = "rules: [{ name: a, per: [client], limits: [1/5m] }]";
    let server = Server::start_with_admin(policy, &["--max-wait", "10m"]);
    let client = Client::new(&server);
    let body = |name: &str, wait_ms: u64| {
        json!({ "attributes": { "client": name.repeat(20_000) }, "wait_ms": wait_ms }).to_string()
    };
    assert_eq!(client.post("/v1/check", body("a", 0)).status, 200);
    let _waiting = [(); 10].map(|()| send_body(&server, &body("a", 600_000)));
    wait_for_waiting_calls(&server, 10);
    assert_eq!(client.post("/v1/check", body("b", 0)).status, 200);
    wait_for_waiting_calls(&server, 10);
}

#[test]
fn call_that_does_not_fit_in_time_is_denied_immediately() {
    let server = Server::start("rules: [{ name: all, limits: [1/h], algorithm: sliding_log }]");
    let client = Client::new(&server);
    assert_eq!(client.post("/v1/check", body(1, 60_000)).status, 200);
    let started = Instant::now();
    let denied = client.post("/v1/check", body(1, 60_000));
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!((denied.status, &denied.json()["reason"]), (429, &json!("limit_exceeded")));
    assert!(denied.json()["retry_after_ms"].as_u64().unwrap() > 3_500_000);
}

#[test]
fn disconnecting_client_leaves_queue_and_charges_nothing() {
    let server = Server::start_with_admin(POLICY, &[]);
    assert_eq!(Client::new(&server).post("/v1/check", body(4, 0)).status, 200);
    let started = Instant::now();
    let large = send_check(&server, 8, 5_000);
    wait_for_waiting_calls(&server, 1);
    let mut small = send_check(&server, 1, 5_000);
    wait_for_waiting_calls(&server, 2);
    drop(large);
    let (status, response) = read_json(&mut small);
    assert_eq!((status, &response["remaining"]), (200, &json!(5)));
    assert!(started.elapsed() < SHORT, "{:?}", started.elapsed());
    assert_eq!(metric(&server, "slidegate_waits_total{result=\"cancelled\"}"), 1.0);
    assert_eq!(metric(&server, "slidegate_waiting_calls"), 0.0);
    let responses = "slidegate_request_seconds_count{protocol=\"http\"}";
    assert_eq!(metric(&server, responses), 2.0, "a cancelled call has no response");
}

#[test]
fn client_closing_its_sending_side_ends_wait() {
    let server = Server::start_with_admin(POLICY, &[]);
    assert_eq!(Client::new(&server).post("/v1/check", body(4, 0)).status, 200);
    let mut waiting = send_check(&server, 8, 60_000);
    wait_for_waiting_calls(&server, 1);
    waiting.stream().shutdown(Shutdown::Write).unwrap();
    waiting.assert_closes();
    wait_for_waiting_calls(&server, 0);
    assert_eq!(metric(&server, "slidegate_waits_total{result=\"cancelled\"}"), 1.0);
    let peeked = Client::new(&server).post("/v1/peek", body(1, 0).replace(r#","wait_ms":0"#, ""));
    assert_eq!(peeked.json()["remaining"], 6);
}

#[test]
fn request_sent_during_wait_is_answered_afterwards() {
    let server = Server::start_with_admin(POLICY, &[]);
    assert_eq!(Client::new(&server).post("/v1/check", body(10, 0)).status, 200);
    let mut connection = send_check(&server, 1, 5_000);
    wait_for_waiting_calls(&server, 1);
    let (first, second) = ("GET /healthz HT", "TP/1.1\r\nhost: x\r\n\r\n");
    connection.write(first);
    connection.write(second);
    assert_eq!(read_json(&mut connection).0, 200);
    assert_eq!(connection.read_status_and_body(), (200, "ok".to_owned()));
}

#[test]
fn call_is_denied_if_queue_is_full() {
    for flag in ["--max-waiting", "--max-waiting-per-key"] {
        let server = Server::start_with_admin(POLICY, &[flag, "1"]);
        assert_eq!(Client::new(&server).post("/v1/check", body(10, 0)).status, 200);
        let mut waiting = send_check(&server, 1, 5_000);
        wait_for_waiting_calls(&server, 1);
        let (status, response) = read_json(&mut send_check(&server, 1, 5_000));
        assert_eq!((status, &response["reason"]), (429, &json!("wait_queue_full")));
        assert!(response["retry_after_ms"].as_u64().is_some_and(|wait| wait <= 2_000));
        assert_eq!(read_json(&mut waiting).0, 200);
        assert_eq!(metric(&server, "slidegate_waits_total{result=\"queue_full\"}"), 1.0);
    }
}

#[test]
fn call_is_denied_if_waiting_requests_exceed_memory() {
    // Waiting calls take at most a 16th.
    let server = Server::start_with_admin(POLICY, &["--max-memory", "8MiB"]);
    assert_eq!(Client::new(&server).post("/v1/check", body(10, 0)).status, 200);
    let large = json!({ "attributes": { "note": "a".repeat(300_000) }, "wait_ms": 5_000 });
    let mut waiting = send_body(&server, &large.to_string());
    wait_for_waiting_calls(&server, 1);
    let (status, response) = read_json(&mut send_body(&server, &large.to_string()));
    assert_eq!((status, &response["reason"]), (429, &json!("wait_queue_full")));
    let bytes = metric(&server, "slidegate_memory_bytes{kind=\"waiting\"}");
    assert!((300_000.0..310_000.0).contains(&bytes), "{bytes}");
    assert_eq!(read_json(&mut waiting).0, 200);
    assert_eq!(metric(&server, "slidegate_memory_bytes{kind=\"waiting\"}"), 0.0);
}

#[test]
fn max_wait_options_wait() {
    let server = Server::start_with(POLICY, &["--max-wait", "0s"]);
    let client = Client::new(&server);
    assert_eq!(client.post("/v1/check", body(10, 5_000)).status, 200);
    let denied = client.post("/v1/check", body(1, u64::MAX));
    assert_eq!((denied.status, &denied.json()["reason"]), (429, &json!("limit_exceeded")));
}

#[test]
fn invalid_wait_is_400() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    for (wait, problem) in [
        ("\"5\"", "`wait_ms`: \"5\" is not accepted; send a whole number, 0 or more"),
        ("-1", "`wait_ms`: -1 is not accepted; send a whole number"),
        ("0.5", "`wait_ms`: 0.5 is not accepted"),
    ] {
        let response =
            client.post("/v1/check", format!(r#"{{"attributes":{{}},"wait_ms":{wait}}}"#));
        assert_problem(&response, 400, "Bad Request", problem);
    }
    let response = client.post("/v1/peek", body(1, 5));
    assert_problem(&response, 400, "Bad Request", "unknown field `wait_ms`");
    let response = client.post("/v1/check", r#"{"attributes":{},"wait":5}"#);
    assert_problem(&response, 400, "Bad Request", "unknown field `wait`, expected one of");
}
