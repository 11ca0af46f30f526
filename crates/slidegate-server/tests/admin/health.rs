//! Tests of the endpoints `/healthz` and `/readyz`, and of the graceful shutdown of the server.

use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::common::{Server, slidegate_command};
use crate::http::client::{Client, RawConnection};
use crate::redis_server::{Redis, wait_until};

const POLICY: &str = "rules: [{ name: all, limits: [100/min] }, { name: b, limits: [9/s] }]";

#[test]
fn readyz_reports_details_on_both_listeners() {
    let server = Server::start_with_admin(POLICY, &[]);
    for client in [Client::new(&server), Client::with_address(server.admin_address())] {
        assert_eq!(client.call("GET", "/healthz").body, "ok");
        let healthcheck = client.call("GET", "/healthcheck");
        assert_eq!((healthcheck.status, &*healthcheck.body), (200, "OK"));
        let ready = client.call("GET", "/readyz");
        assert_eq!(ready.status, 200);
        let expected = json!({
            "ready": true,
            "draining": false,
            "ended_tasks": [],
            "policy": { "rules": 2, "observe": false, "problem": null },
            "store": { "kind": "memory", "reachable": true, "problem": null, "joining": false },
        });
        assert_eq!(ready.json(), expected);
    }
}

/// During the shutdown, the admin listener still responds while active requests finish. When the grace period ends,
/// the server closes stuck connections and exits with code 0.
#[test]
fn shutdown_finishes_requests_and_closes_stuck_connections() {
    let server = Server::start_with_admin(POLICY, &["--shutdown-grace", "1s"]);
    let mut stuck = RawConnection::connect(server.address());
    stuck.write("POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{");
    let mut in_flight = RawConnection::connect(server.address());
    in_flight.write(
        "POST /v1/check HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 17\r\n\r\n",
    );
    assert_eq!(in_flight.read_status_and_body().0, 100);
    server.send_signal("TERM");
    server.wait_for_log("SIGTERM: stopping");
    let ready = Client::with_address(server.admin_address()).call("GET", "/readyz");
    assert_eq!((ready.status, &ready.json()["draining"]), (503, &json!(true)));
    let admin_status = |path| Client::with_address(server.admin_address()).call("GET", path).status;
    assert_eq!((admin_status("/healthz"), admin_status("/healthcheck")), (200, 500));
    while TcpStream::connect(server.address()).is_ok() {}
    in_flight.write(r#"{"attributes":{}}"#);
    assert_eq!(in_flight.read_status_and_body().0, 200);
    server.wait_for_log("closing connections that are still busy");
    server.wait_for_log("stopped");
    assert_eq!(server.wait_for_exit_code(), Some(0));
}

#[test]
fn response_during_shutdown_has_connection_close_header() {
    let server = Server::start_with_admin(POLICY, &[]);
    let mut connection = RawConnection::connect(server.address());
    let check =
        "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 17\r\n\r\n{\"attributes\":{}}";
    connection.write(check);
    let response = connection.read_response();
    assert_eq!((response.status, response.header("connection")), (200, None));
    server.send_signal("TERM");
    server.wait_for_log("SIGTERM: stopping");
    connection.write(check);
    let response = connection.read_response();
    assert_eq!((response.status, response.header("connection")), (200, Some("close")));
    // It was the only connection, so the server need not wait.
    assert!(server.next_log_line(Duration::from_secs(10)).unwrap().contains("stopped"));
    assert_eq!(server.wait_for_exit_code(), Some(0));
}

pub fn wait_until_readyz_succeeds(server: &Server) {
    let client = Client::new(server);
    wait_until("the server is ready", || client.call("GET", "/readyz").status == 200);
}

/// Starts servers with the address of a Redis that is not running. When Redis starts, the servers become ready.
#[test]
fn unreachable_redis_is_logged_and_shown_by_readyz() {
    let mut redis = Redis::start();
    let address = redis.address();
    redis.kill();
    let default_server = Server::start_with_admin(POLICY, &["--store", &address]);
    let strict_server =
        Server::start_with_admin(POLICY, &["--store", &address, "--ready-needs-store"]);
    for (server, status) in [(&default_server, 200), (&strict_server, 503)] {
        let ready = Client::new(server).call("GET", "/readyz");
        assert_eq!((ready.status, &ready.json()["store"]["reachable"]), (status, &json!(false)));
        let line = log_line_of_unreachable_redis(server);
        assert!(line.contains("ERROR") && line.contains("Connection refused"), "{line}");
        let store = Client::new(server).call("GET", "/readyz").json()["store"].clone();
        assert!(store["problem"].as_str().unwrap().contains("Connection refused"), "{store}");
    }
    redis.restart();
    wait_until_readyz_succeeds(&strict_server);
    strict_server.wait_for_log("connected to Redis for the first time");
    assert_eq!(
        Client::new(&strict_server).call("GET", "/readyz").json()["store"],
        json!({ "kind": "redis", "reachable": true, "problem": null, "joining": false })
    );
}

/// Returns the log line that reports that Redis has not been reachable since the start.
fn log_line_of_unreachable_redis(server: &Server) -> String {
    const TEXT: &str = "Redis has not been reachable since the start";
    let earlier = server.startup_log().iter().find(|line| line.contains(TEXT));
    earlier.cloned().unwrap_or_else(|| server.wait_for_log(TEXT))
}

/// A wrong setting has one line in the log, with the remedy, and `/readyz` has the same remedy.
#[test]
fn wrong_redis_settings_are_one_error_with_remedy() {
    let open = Redis::start();
    let protected = Redis::with_args(&["--requirepass", "right"]);
    let [open, protected] = [&open, &protected].map(|redis| format!("127.0.0.1:{}", redis.port()));
    for (address, remedy) in [
        (format!("redis://{open}/99"), "correct the database in the address"),
        (format!("redis://:right@{protected}/99"), "correct the database in the address"),
        (format!("redis://{protected}/99"), "correct the user and the password"),
        (format!("redis://:wrong@{protected}"), "correct the user and the password"),
    ] {
        let server = Server::start_with_admin(POLICY, &["--store", &address]);
        let line = log_line_of_unreachable_redis(&server);
        assert!(line.contains("ERROR") && line.contains(remedy), "{line}");
        let store = Client::new(&server).call("GET", "/readyz").json()["store"].clone();
        assert!(store["problem"].as_str().unwrap().contains(remedy), "{store}");
        server.send_signal("TERM");
        let mut lines = server.startup_log().to_vec();
        while let Some(line) = server.next_log_line(Duration::from_secs(10)) {
            lines.push(line);
        }
        let warnings = lines.iter().filter(|line| line.contains(" WARN ")).collect::<Vec<_>>();
        assert!(warnings.is_empty(), "{address}: {warnings:?}");
    }
}

#[test]
fn readyz_fails_during_outage_with_ready_needs_store_flag() {
    let redis = Redis::start();
    let address = redis.address();
    let flags = ["--store", &address, "--redis-timeout", "100ms"];
    let default_server = Server::start_with_admin(POLICY, &flags);
    let strict_server =
        Server::start_with_admin(POLICY, &[&flags[..], &["--ready-needs-store"]].concat());
    wait_until_readyz_succeeds(&strict_server);
    redis.pause();
    for (server, status) in [(&default_server, 200), (&strict_server, 503)] {
        let client = Client::new(server);
        let unreachable_response = || {
            Some(client.call("GET", "/readyz"))
                .filter(|response| response.json()["store"]["reachable"] == false)
        };
        let ready = loop {
            client.post("/v1/check", r#"{"attributes":{}}"#);
            if let Some(ready) = unreachable_response() {
                break ready;
            }
        };
        assert_eq!((ready.status, ready.json()["ready"] == true), (status, status == 200));
        server.wait_for_log("circuit breaker opened");
    }
    // The breaker of this server would allow a probe after half a second at the latest, but no request arrives.
    let strict_client = Client::new(&strict_server);
    for _ in 0..40 {
        assert_eq!(strict_client.call("GET", "/readyz").status, 503);
        thread::sleep(Duration::from_millis(20));
    }
    redis.resume();
    // Without any request, because a server that is not ready receives none.
    wait_until_readyz_succeeds(&strict_server);
    let metrics = Client::with_address(strict_server.admin_address()).call("GET", "/metrics").body;
    assert!(metrics.contains("slidegate_breaker_open{store=\"redis\"} 0"), "{metrics}");
    let check = strict_client.post("/v1/check", r#"{"attributes":{}}"#);
    assert_eq!(check.json()["degraded"], false);
}

#[test]
fn health_command_fails_after_server_stops() {
    let server = Server::start_with_admin(POLICY, &[]);
    for address in [server.admin_address(), server.address()] {
        let url = format!("http://{address}");
        let output = slidegate_command().args(["health", "--server", &url]).output().unwrap();
        assert!(output.status.success() && output.stdout == b"ok\n", "{output:?}");
    }
    let url = format!("http://{}", server.admin_address());
    server.send_signal("TERM");
    assert_eq!(server.wait_for_exit_code(), Some(0));
    let output = slidegate_command().args(["health", "--server", &url]).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.starts_with(&format!("{url}/healthz: the server does not respond")),
        "{message}"
    );
}
