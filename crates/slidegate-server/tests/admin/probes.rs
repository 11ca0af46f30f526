//! Tests that health probes and metric scrapes succeed while clients hold the maximum number of connections.

use std::io::{ErrorKind, Read};
use std::net::SocketAddr;
use std::time::Duration;

use ureq::Agent;

use crate::common::{Server, TempFile, slidegate_command, with_open_file_limit};
use crate::http::client::RawConnection;

const POLICY: &str = "rules: [{ name: all, limits: [100/min] }]";

/// Maximum response time of a probe: `timeoutSeconds` of the probes in `deploy/helm/templates/deployment.yaml`.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Incomplete HTTP/1.1 requests. After each of these texts, the server waits for the rest of the request.
const INCOMPLETE_HTTP1_REQUESTS: [&str; 3] =
    ["", "GET /heal", "POST /v1/explain HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{"];

/// Incomplete HTTP/2 connections, each as the bytes that the client sends. The only entry is empty, because the server
/// closes a connection that does not begin with the HTTP/2 preface.
const INCOMPLETE_HTTP2_REQUESTS: [&str; 1] = [""];

/// Opens `count` connections, and sends one of the incomplete requests in `starts` over each connection. Uses the
/// requests in turn if `count` is larger than the length of `starts`.
fn open_idle_connections(address: SocketAddr, starts: &[&str], count: usize) -> Vec<RawConnection> {
    let connections = starts.iter().cycle().take(count).map(|start| {
        let mut connection = RawConnection::connect(address);
        connection.write(start);
        connection
    });
    connections.collect()
}

/// Asserts that `/healthz`, `/readyz` and `/metrics` respond with status 200 within [`PROBE_TIMEOUT`].
#[track_caller]
fn assert_probes_succeed(server: &Server) {
    let agent: Agent = Agent::config_builder().timeout_global(Some(PROBE_TIMEOUT)).build().into();
    for path in ["/healthz", "/readyz", "/metrics"] {
        let url = format!("http://{}{path}", server.admin_address());
        let response = agent.get(&url).call().unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(response.status(), 200, "{path}");
    }
}

#[test]
fn idle_clients_do_not_delay_probes() {
    let flags = ["--grpc", "127.0.0.1:0", "--max-connections", "2"];
    let server = Server::start_with_admin(POLICY, &flags);
    let clients = (
        open_idle_connections(server.address(), &INCOMPLETE_HTTP1_REQUESTS, 9),
        open_idle_connections(server.grpc_address(), &INCOMPLETE_HTTP2_REQUESTS, 9),
    );
    assert_probes_succeed(&server);
    drop(clients);
}

#[test]
fn idle_admin_connections_do_not_delay_probes() {
    let server = Server::start_with_admin(POLICY, &[]);
    // More than the maximum of 64, and few enough that the others fit into the listen queue.
    let mut idle = open_idle_connections(server.admin_address(), &INCOMPLETE_HTTP1_REQUESTS, 150);
    assert_probes_succeed(&server);
    // At most 64 are left: the server has closed the oldest.
    for connection in &mut idle[..150 - 64] {
        let end = connection.stream().read(&mut [0]);
        // If the server has not read all bytes, closing resets the connection.
        let reset = end.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
        assert!(reset || matches!(end, Ok(0)), "{end:?}");
    }
    assert!(!idle[149].is_readable_within(Duration::from_millis(100)));
}

#[test]
fn admin_connection_closes_after_response() {
    let server = Server::start_with_admin(POLICY, &[]);
    let mut connection = RawConnection::connect(server.admin_address());
    connection.write("GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n");
    let response = connection.read_response();
    assert_eq!((response.status, response.header("connection")), (200, Some("close")));
    connection.assert_closes();
}

#[test]
fn client_connections_leave_file_descriptors_for_probes() {
    let policy = TempFile::new(".yaml", POLICY);
    let mut command = slidegate_command();
    command.arg("serve").arg("--policy").arg(policy.path());
    for listener in ["--http", "--grpc", "--admin"] {
        command.args([listener, "127.0.0.1:0"]);
    }
    for (limit, max) in [(300, 86), (40, 1)] {
        let server = Server::spawn(&mut with_open_file_limit(limit, &command));
        // More than the open file limit, and few enough that the others fit into the listen queues.
        let clients = (
            open_idle_connections(server.address(), &INCOMPLETE_HTTP1_REQUESTS, 180),
            open_idle_connections(server.grpc_address(), &INCOMPLETE_HTTP2_REQUESTS, 180),
        );
        assert_probes_succeed(&server);
        drop(clients);
        let startup_log = server.startup_log().join("\n");
        let expected = format!(
            " INFO open file limit is {limit}: at most {max} connections on each of 2 listeners"
        );
        assert!(startup_log.contains(&expected), "{startup_log}");
    }
}

#[test]
fn unreachable_max_connections_logs_warning() {
    let policy = TempFile::new(".yaml", POLICY);
    let mut command = slidegate_command();
    command.arg("serve").arg("--policy").arg(policy.path());
    command.args(["--http", "127.0.0.1:0", "--max-connections", "10000"]);
    let server = Server::spawn(&mut with_open_file_limit(300, &command));
    let startup_log = server.startup_log().join("\n");
    let expected = " WARN open file limit is 300; 10064 needed for --max-connections 10000 on 1 listener: the maximum is 236; raise the limit with ulimit -n, or lower --max-connections";
    assert!(startup_log.contains(expected), "{startup_log}");
}
