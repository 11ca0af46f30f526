//! Probes and scrapes while clients hold every connection that they can get.

use std::io::{ErrorKind, Read};
use std::net::SocketAddr;
use std::time::Duration;

use ureq::Agent;

use crate::client::Raw;
use crate::common::{Server, TempFile, slidegate, with_open_files};

const POLICY: &str = "rules: [{ name: all, limits: [100/min] }]";

/// `timeoutSeconds` of the probes in `deploy/kubernetes/deployment.yaml`.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Starts of requests that leave the server waiting for more, over HTTP/1.1.
const HTTP: [&str; 3] =
    ["", "GET /heal", "POST /v1/explain HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{"];

/// The same over HTTP/2, where anything else ends the connection.
const GRPC: [&str; 1] = [""];

/// Connections on which the server waits for a request.
fn idle(address: SocketAddr, starts: &[&str], count: usize) -> Vec<Raw> {
    let connections = starts.iter().cycle().take(count).map(|start| {
        let mut connection = Raw::connect(address);
        connection.write(start);
        connection
    });
    connections.collect()
}

/// Holds every path that is probed or scraped to the time that a probe has.
#[track_caller]
fn assert_answers(server: &Server) {
    let agent: Agent = Agent::config_builder().timeout_global(Some(PROBE_TIMEOUT)).build().into();
    for path in ["/healthz", "/readyz", "/metrics"] {
        let url = format!("http://{}{path}", server.admin());
        let response = agent.get(&url).call().unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(response.status(), 200, "{path}");
    }
}

#[test]
fn idle_clients_do_not_delay_probes() {
    let flags = ["--grpc", "127.0.0.1:0", "--max-connections", "2"];
    let server = Server::start_with_admin(POLICY, &flags);
    let clients = (idle(server.address(), &HTTP, 9), idle(server.grpc(), &GRPC, 9));
    assert_answers(&server);
    drop(clients);
}

#[test]
fn idle_admin_connections_do_not_delay_probes() {
    let server = Server::start_with_admin(POLICY, &[]);
    // More than 64, and few enough that those beyond fit into the system's queue.
    let mut idle = idle(server.admin(), &HTTP, 150);
    assert_answers(&server);
    // No more than 64 are left: the oldest were evicted.
    for connection in &mut idle[..150 - 64] {
        let end = connection.stream().read(&mut [0]);
        // With bytes that the server had not read yet, an end is a reset.
        let reset = end.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
        assert!(reset || matches!(end, Ok(0)), "{end:?}");
    }
    assert!(!idle[149].says_something_within(Duration::from_millis(100)));
}

#[test]
fn admin_connection_ends_with_its_response() {
    let server = Server::start_with_admin(POLICY, &[]);
    let mut connection = Raw::connect(server.admin());
    connection.write("GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n");
    let response = connection.answer();
    assert_eq!((response.status, response.header("connection")), (200, Some("close")));
    connection.assert_ends();
}

#[test]
fn clients_leave_open_files_to_probes() {
    let policy = TempFile::new(".yaml", POLICY);
    let mut command = slidegate();
    command.arg("serve").arg("--policy").arg(policy.path());
    for listener in ["--http", "--grpc", "--admin"] {
        command.args([listener, "127.0.0.1:0"]);
    }
    let server = Server::spawn(&mut with_open_files(300, &command));
    // More than there are files, and few enough that those beyond fit into the system's queues.
    let clients = (idle(server.address(), &HTTP, 180), idle(server.grpc(), &GRPC, 180));
    assert_answers(&server);
    drop(clients);
    let told = server.starting().join("\n");
    assert!(told.contains("open file limit is 300; 20128 needed"), "{told}");
    assert!(told.contains("serving at most 86 connections on each"), "{told}");
}
