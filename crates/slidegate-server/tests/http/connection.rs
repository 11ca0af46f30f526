//! Tests of many requests on one HTTP connection, sequential and pipelined.

use serde_json::Value;

use crate::common::Server;
use crate::http::client::{RawConnection, raw_check_request, raw_chunked_check_request};

const POLICY: &str = "rules: [{ name: all, limits: [100/h], algorithm: sliding_log }]";

/// Returns the number of remaining units, which is the field `remaining` of a response body.
fn remaining_units(body: &str) -> u64 {
    serde_json::from_str::<Value>(body).unwrap()["remaining"].as_u64().unwrap()
}

#[test]
fn one_connection_serves_many_requests() {
    let server = Server::start(POLICY);
    let mut connection = RawConnection::connect(server.address());
    for nth in 0..200 {
        connection.write(raw_check_request(r#"{"attributes":{}}"#));
        let (status, body) = connection.read_status_and_body();
        assert_eq!(status, if nth < 100 { 200 } else { 429 });
        assert_eq!(remaining_units(&body), 99_u64.saturating_sub(nth));
    }
}

#[test]
fn invalid_request_keeps_connection_open() {
    let server = Server::start(POLICY);
    let mut connection = RawConnection::connect(server.address());
    let too_large = " ".repeat((1 << 20) + 1);
    let cases = [
        (raw_check_request(""), 400),
        (raw_check_request("{"), 400),
        (raw_check_request(r#"{"attributes":{"a":null}}"#), 400),
        (raw_check_request(r#"{"attributes":{},"cost":101}"#), 429),
        (raw_check_request(&too_large), 413),
        (raw_chunked_check_request(&[&too_large]), 413),
        (raw_check_request("{}").replace("/v1/check", "/nowhere"), 404),
        (raw_check_request("{}").replace("POST", "PUT"), 405),
        (raw_check_request("not wanted").replace("POST /v1/check", "GET /healthz"), 200),
    ];
    for (request, status) in &cases {
        connection.write(request);
        assert_eq!(connection.read_status_and_body().0, *status);
        connection.write(raw_check_request(r#"{"attributes":{}}"#));
        assert_eq!(connection.read_status_and_body().0, 200, "after {status}");
    }
    // The same requests, pipelined.
    for (request, _) in &cases {
        connection.write(request);
    }
    assert_eq!(
        cases.each_ref().map(|_| connection.read_status_and_body().0),
        cases.each_ref().map(|(_, status)| *status)
    );
}

#[test]
fn chunked_body_is_accepted_up_to_size_limit() {
    let server = Server::start(POLICY);
    let mut connection = RawConnection::connect(server.address());
    let padding = " ".repeat((1 << 20) - 17);
    connection.write(raw_chunked_check_request(&["{\"attri", "butes", "\":{}}", &padding]));
    assert_eq!(connection.read_status_and_body().0, 200);
    connection.write(raw_chunked_check_request(&["{\"attri", "butes", "\":{}}", &padding, " "]));
    assert_eq!(connection.read_status_and_body().0, 413);
}

#[test]
fn expect_continue_body_over_size_limit_is_413() {
    let server = Server::start(POLICY);
    let mut connection = RawConnection::connect(server.address());
    let head = "POST /v1/check HTTP/1.1\r\nhost: x\r\nexpect: 100-Continue\r\n";
    connection.write(format!("{head}content-length: 1048577\r\n\r\n"));
    assert_eq!(connection.read_status_and_body().0, 413);
    connection.assert_closes();
}

#[test]
fn http_1_0_connection_closes_after_response() {
    let server = Server::start(POLICY);
    let mut connection = RawConnection::connect(server.address());
    connection.write(raw_check_request(r#"{"attributes":{}}"#).replace("HTTP/1.1", "HTTP/1.0"));
    assert_eq!(connection.read_status_and_body().0, 200);
    connection.assert_closes();
}

#[test]
fn pipelined_responses_keep_request_order() {
    let server = Server::start(POLICY);
    let mut connection = RawConnection::connect(server.address());
    connection.write(raw_check_request(r#"{"attributes":{}}"#).repeat(100));
    let left: Vec<u64> =
        (0..100).map(|_| remaining_units(&connection.read_status_and_body().1)).collect();
    assert_eq!(left, (0..100).rev().collect::<Vec<_>>());
}
