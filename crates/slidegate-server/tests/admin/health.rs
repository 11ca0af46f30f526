//! `/healthz`, `/readyz`, and how the server ends.

use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use crate::client::{Client, Raw};
use crate::common::Server;
use crate::server::{Redis, wait_until};

const POLICY: &str = "rules: [{ name: all, limits: [100/min] }, { name: b, limits: [9/s] }]";

#[test]
fn a_server_is_ready_on_both_addresses_and_says_by_what() {
    let server = Server::start_with_admin(POLICY, &[]);
    for client in [Client::of(&server), Client::at(server.admin())] {
        assert_eq!(client.call("GET", "/healthz").body, "ok");
        let ready = client.call("GET", "/readyz");
        assert_eq!(ready.status, 200);
        let expected = json!({
            "ready": true,
            "draining": false,
            "policy": { "rules": 2, "observe": false, "problem": null },
            "store": { "kind": "memory", "reachable": true },
        });
        assert_eq!(ready.json(), expected);
    }
}

/// While it finishes what runs, operators can still ask; and it ends with 0 within the grace.
#[test]
fn a_server_that_stops_is_not_ready_finishes_what_runs_and_cuts_what_does_not_end() {
    let server = Server::start_with_admin(POLICY, &["--shutdown-grace", "1s"]);
    let mut stuck = Raw::connect(server.address());
    stuck.write("POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{");
    let mut runs = Raw::connect(server.address());
    runs.write(
        "POST /v1/check HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 17\r\n\r\n",
    );
    assert_eq!(runs.response().0, 100);
    server.signal("TERM");
    server.wait_for_log("SIGTERM: stopping");
    let ready = Client::at(server.admin()).call("GET", "/readyz");
    assert_eq!((ready.status, &ready.json()["draining"]), (503, &json!(true)));
    assert_eq!(Client::at(server.admin()).call("GET", "/healthz").status, 200);
    while TcpStream::connect(server.address()).is_ok() {}
    runs.write(r#"{"attributes":{}}"#);
    assert_eq!(runs.response().0, 200);
    server.wait_for_log("cutting connections");
    server.wait_for_log("stopped");
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn who_asks_once_more_while_it_stops_is_answered_and_told_that_this_was_the_last() {
    let server = Server::start_with_admin(POLICY, &[]);
    let mut asks = Raw::connect(server.address());
    let check =
        "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 17\r\n\r\n{\"attributes\":{}}";
    asks.write(check);
    let answer = asks.answer();
    assert_eq!((answer.status, answer.header("connection")), (200, None));
    server.signal("TERM");
    server.wait_for_log("SIGTERM: stopping");
    asks.write(check);
    let answer = asks.answer();
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    // It was the only connection: nobody else has to be waited for.
    assert!(server.next_log(Duration::from_secs(10)).unwrap().contains("stopped"));
    assert_eq!(server.exit_code(), Some(0));
}

fn wait_until_ready(server: &Server) {
    let client = Client::of(server);
    wait_until("it is ready", || client.call("GET", "/readyz").status == 200);
}

/// Nothing listens at the address of the store.
#[test]
fn a_store_that_was_never_reached_does_not_answer_and_the_log_says_so() {
    let mut redis = Redis::start();
    let address = redis.address();
    redis.kill();
    let without = Server::start_with_admin(POLICY, &["--store", &address]);
    let needs = Server::start_with_admin(POLICY, &["--store", &address, "--ready-needs-store"]);
    for (server, status) in [(&without, 200), (&needs, 503)] {
        let ready = Client::of(server).call("GET", "/readyz");
        assert_eq!((ready.status, &ready.json()["store"]["reachable"]), (status, &json!(false)));
        if !server.starting().concat().contains("Redis has not been reachable so far") {
            server.wait_for_log("Redis has not been reachable so far");
        }
    }
    redis.restart();
    wait_until_ready(&needs);
    needs.wait_for_log("connected to Redis for the first time");
    assert_eq!(Client::of(&needs).call("GET", "/readyz").json()["store"]["reachable"], true);
}

#[test]
fn a_lost_store_is_told_and_keeps_from_being_ready_only_who_needs_it() {
    let redis = Redis::start();
    let address = redis.address();
    let flags = ["--store", &address, "--redis-timeout", "100ms"];
    let without = Server::start_with_admin(POLICY, &flags);
    let needs = Server::start_with_admin(POLICY, &[&flags[..], &["--ready-needs-store"]].concat());
    wait_until_ready(&needs);
    redis.pause();
    for (server, status) in [(&without, 200), (&needs, 503)] {
        let client = Client::of(server);
        let lost = || {
            Some(client.call("GET", "/readyz"))
                .filter(|one| one.json()["store"]["reachable"] == false)
        };
        let ready = loop {
            client.post("/v1/check", r#"{"attributes":{}}"#);
            if let Some(ready) = lost() {
                break ready;
            }
        };
        assert_eq!((ready.status, ready.json()["ready"] == true), (status, status == 200));
        server.wait_for_log("circuit breaker opened");
    }
    redis.resume();
    // Without any request: a server that is not ready gets none.
    wait_until_ready(&needs);
    let client = Client::of(&needs);
    wait_until("it is asked again", || {
        client.post("/v1/check", r#"{"attributes":{}}"#).json()["degraded"] == false
    });
}
