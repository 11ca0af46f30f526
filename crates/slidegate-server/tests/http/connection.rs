//! Many requests on one connection, one after the other and all at once.

use serde_json::Value;

use crate::client::{Raw, raw_check};
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
fn bad_input_does_not_end_the_connection() {
    let server = Server::start(HUNDRED);
    let mut connection = Raw::connect(server.address());
    for body in ["", "{", r#"{"attributes":{"a":0}}"#] {
        connection.write(raw_check(body));
        assert_eq!(connection.response().0, 400);
    }
    connection.write(raw_check(r#"{"attributes":{}}"#));
    assert_eq!(connection.response().0, 200);
}

#[test]
fn pipelined_requests_are_answered_in_their_order() {
    let server = Server::start(HUNDRED);
    let mut connection = Raw::connect(server.address());
    connection.write(raw_check(r#"{"attributes":{}}"#).repeat(100));
    let left: Vec<u64> = (0..100).map(|_| remaining(&connection.response().1)).collect();
    assert_eq!(left, (0..100).rev().collect::<Vec<_>>());
}
