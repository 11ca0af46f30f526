//! Many requests on one connection, one after the other and all at once.

use std::net::Shutdown;

use serde_json::Value;

use crate::client::{Raw, raw_check, raw_chunks};
use crate::common::Server;

const HUNDRED: &str = "rules: [{ name: all, limits: [100/h], algorithm: sliding_log }]";

fn remaining(body: &str) -> u64 {
    serde_json::from_str::<Value>(body).unwrap()["remaining"].as_u64().unwrap()
}

#[test]
fn one_connection_carries_many_requests() {
    let server = Server::start(HUNDRED);
    let mut connection = Raw::connect(server.address());
    for nth in 0..200 {
        connection.write(raw_check(r#"{"attributes":{}}"#));
        let (status, body) = connection.response();
        assert_eq!(status, if nth < 100 { 200 } else { 429 });
        assert_eq!(remaining(&body), 99_u64.saturating_sub(nth));
    }
}

#[test]
fn no_problem_of_one_request_ends_the_connection() {
    let server = Server::start(HUNDRED);
    let mut connection = Raw::connect(server.address());
    let too_large = " ".repeat((1 << 20) + 1);
    let cases = [
        (raw_check(""), 400),
        (raw_check("{"), 400),
        (raw_check(r#"{"attributes":{"a":0}}"#), 400),
        (raw_check(r#"{"attributes":{},"cost":101}"#), 429),
        (raw_check(&too_large), 413),
        (raw_chunks(&[&too_large]), 413),
        (raw_check("{}").replace("/v1/check", "/nowhere"), 404),
        (raw_check("{}").replace("POST", "PUT"), 405),
        (raw_check("not wanted").replace("POST /v1/check", "GET /healthz"), 200),
    ];
    for (request, status) in &cases {
        connection.write(request);
        assert_eq!(connection.response().0, *status);
        connection.write(raw_check(r#"{"attributes":{}}"#));
        assert_eq!(connection.response().0, 200, "after {status}");
    }
    // The same, all at once.
    for (request, _) in &cases {
        connection.write(request);
    }
    assert_eq!(
        cases.each_ref().map(|_| connection.response().0),
        cases.each_ref().map(|(_, status)| *status)
    );
}

#[test]
fn a_body_may_come_in_chunks() {
    let server = Server::start(HUNDRED);
    let mut connection = Raw::connect(server.address());
    let padding = " ".repeat((1 << 20) - 17);
    connection.write(raw_chunks(&["{\"attri", "butes", "\":{}}", &padding]));
    assert_eq!(connection.response().0, 200);
    connection.write(raw_chunks(&["{\"attri", "butes", "\":{}}", &padding, " "]));
    assert_eq!(connection.response().0, 413);
}

#[test]
fn whoever_asks_before_sending_too_much_is_told_at_once() {
    let server = Server::start(HUNDRED);
    let mut connection = Raw::connect(server.address());
    let head = "POST /v1/check HTTP/1.1\r\nhost: x\r\nexpect: 100-Continue\r\n";
    connection.write(format!("{head}content-length: 1048577\r\n\r\n"));
    assert_eq!(connection.response().0, 413);
    connection.assert_ends();
}

#[test]
fn a_client_that_has_said_its_last_word_gets_all_its_answers() {
    let server = Server::start(HUNDRED);
    let mut connection = Raw::connect(server.address());
    connection.write(raw_check(r#"{"attributes":{}}"#).repeat(3));
    connection.stream().shutdown(Shutdown::Write).unwrap();
    let left = [(); 3].map(|()| remaining(&connection.response().1));
    assert_eq!(left, [99, 98, 97]);
    connection.assert_ends();
}

#[test]
fn http_1_0_ends_the_connection_after_the_answer() {
    let server = Server::start(HUNDRED);
    let mut connection = Raw::connect(server.address());
    connection.write(raw_check(r#"{"attributes":{}}"#).replace("HTTP/1.1", "HTTP/1.0"));
    assert_eq!(connection.response().0, 200);
    connection.assert_ends();
}

#[test]
fn pipelined_requests_are_answered_in_their_order() {
    let server = Server::start(HUNDRED);
    let mut connection = Raw::connect(server.address());
    connection.write(raw_check(r#"{"attributes":{}}"#).repeat(100));
    let left: Vec<u64> = (0..100).map(|_| remaining(&connection.response().1)).collect();
    assert_eq!(left, (0..100).rev().collect::<Vec<_>>());
}
