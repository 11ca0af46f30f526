//! Tests of the start, the shutdown and the exit codes of the server.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Output;
use std::thread;
use std::time::Duration;

use crate::common::{Server, TempFile, slidegate_command};
use crate::http::client::RawConnection;

const POLICY: &str = "rules: [{ name: all, limits: [100/min] }]";

/// Opens a connection and starts a check request. Sends the head, waits for the response 100 Continue, and then sends
/// only a part of the body.
fn send_incomplete_check_request(server: &Server) -> RawConnection {
    let mut connection = RawConnection::connect(server.address());
    connection.write(
        "POST /v1/check HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 17\r\n\r\n",
    );
    assert_eq!(connection.read_status_and_body().0, 100);
    connection.write(r#"{"attrib"#);
    connection
}

/// Runs `slidegate serve` with a policy file and an HTTP address until the process exits, and returns the output.
fn run_serve_command(policy: &Path, http: &str) -> Output {
    slidegate_command()
        .arg("serve")
        .arg("--policy")
        .arg(policy)
        .args(["--http", http])
        .output()
        .unwrap()
}

fn stderr_text(output: &Output) -> &str {
    str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn sigterm_finishes_requests_and_rejects_new_connections() {
    let server = Server::start(POLICY);
    let mut in_flight = send_incomplete_check_request(&server);
    server.send_signal("TERM");
    server.wait_for_log("SIGTERM: stopping");
    while TcpStream::connect(server.address()).is_ok() {
        thread::yield_now();
    }
    in_flight.write(r#"utes":{}}"#);
    assert_eq!(in_flight.read_status_and_body().0, 200);
    server.wait_for_log("stopped");
    assert_eq!(server.wait_for_exit_code(), Some(0));
}

/// A paused server accepts no connection, so all connections wait in the accept queues of the system. There they stay
/// when the client closes them.
#[test]
fn every_listener_queues_4096_connections() {
    let any = "127.0.0.1:0";
    let flags = ["--grpc", any, "--store", "cluster://", "--cluster-listen", any];
    let server = Server::start_with_admin(POLICY, &flags);
    let cluster = server
        .startup_log()
        .iter()
        .find_map(|line| line.split_once("cluster node reachable at "))
        .map(|(_, address)| address.parse().unwrap())
        .unwrap();
    server.pause();
    for listener in [server.address(), server.grpc_address(), server.admin_address(), cluster] {
        for nth in 1..=4096 {
            let connected = TcpStream::connect_timeout(&listener, Duration::from_secs(10));
            assert!(connected.is_ok(), "connection {nth} to {listener} is dropped: {connected:?}");
        }
    }
}

#[test]
fn sigint_closes_idle_connections_promptly() {
    let server = Server::start(POLICY);
    let _silent = RawConnection::connect(server.address());
    let mut idle = RawConnection::connect(server.address());
    idle.write("GET /healthz HTTP/1.1\r\n\r\n");
    assert_eq!(idle.read_status_and_body().0, 200);
    server.send_signal("INT");
    server.wait_for_log("SIGINT: stopping");
    assert!(server.next_log_line(Duration::from_secs(3)).unwrap().contains("stopped"));
    assert_eq!(server.wait_for_exit_code(), Some(0));
}

#[test]
fn stuck_request_delays_shutdown_by_grace_period() {
    let server = Server::start_with(POLICY, &["--shutdown-grace", "300ms"]);
    let _stuck = send_incomplete_check_request(&server);
    server.send_signal("TERM");
    server.wait_for_log("stopping");
    let line = server.next_log_line(Duration::from_secs(9)).unwrap();
    assert!(line.contains("still busy after --shutdown-grace 300ms"), "{line}");
    assert!(server.next_log_line(Duration::from_secs(1)).unwrap().contains("stopped"));
    assert_eq!(server.wait_for_exit_code(), Some(0));
}

#[test]
fn environment_variables_replace_flags() {
    let policy = TempFile::new(".yaml", POLICY);
    let mut command = slidegate_command();
    command
        .arg("serve")
        .env("SLIDEGATE_POLICY", policy.path())
        .env("SLIDEGATE_HTTP", "127.0.0.1:0");
    let server = Server::spawn(&mut command);
    assert!(TcpStream::connect(server.address()).is_ok());
}

#[test]
fn log_level_off_prints_only_fatal_error() {
    let policy = TempFile::new(".yaml", "rules: []");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = slidegate_command();
    command.arg("serve").arg("--policy").arg(policy.path());
    command.args(["--log-level", "off", "--http", &listener.local_addr().unwrap().to_string()]);
    let output = command.output().unwrap();
    assert_eq!(stderr_text(&output).lines().count(), 1);
}

#[test]
fn occupied_port_error_names_address_and_exits_1() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let policy = TempFile::new(".yaml", POLICY);
    let output = run_serve_command(policy.path(), &address);
    let expected = format!(
        "--http (SLIDEGATE_HTTP): cannot listen on {address}: Address already in use (os error 98); stop the process"
    );
    assert!(stderr_text(&output).starts_with(&expected), "{}", stderr_text(&output));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn host_name_listener_logs_bound_address() {
    let policy = TempFile::new(".yaml", POLICY);
    let mut command = slidegate_command();
    command.arg("serve").arg("--policy").arg(policy.path()).args(["--http", "localhost:0"]);
    let server = Server::spawn(&mut command);
    assert!(server.address().ip().is_loopback(), "{}", server.listening_log());
    assert!(TcpStream::connect(server.address()).is_ok());
}

#[test]
fn unresolvable_listener_name_error_exits_1() {
    let policy = TempFile::new(".yaml", POLICY);
    let output = run_serve_command(policy.path(), "nowhere.invalid:8080");
    let expected = "--http (SLIDEGATE_HTTP): `nowhere.invalid:8080` does not resolve: ";
    assert!(stderr_text(&output).starts_with(expected), "{}", stderr_text(&output));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn listener_address_without_host_exits_2() {
    for (address, expected) in [
        (
            "8080",
            "write IP:PORT or HOST:PORT with a port of at most 65535, for example 127.0.0.1:8080",
        ),
        (":8080", "write 127.0.0.1:8080 to listen for this machine only, or 0.0.0.0:8080"),
    ] {
        let output = run_serve_command(Path::new("x"), address);
        assert!(stderr_text(&output).contains(expected), "{}", stderr_text(&output));
        assert_eq!(output.status.code(), Some(2));
    }
}

#[test]
fn invalid_policy_reports_every_error_and_exits_1() {
    let policy = TempFile::new(
        ".yaml",
        "rules:\n  - { name: a, limits: [10/fortnight] }\n  - { name: A, limits: [] }\n",
    );
    let output = run_serve_command(policy.path(), "127.0.0.1:0");
    let lines: Vec<&str> = stderr_text(&output).lines().collect();
    let file = policy.path().display();
    assert_eq!(lines.len(), 9, "{lines:?}");
    assert!(lines[0].starts_with(&format!("{file}:2:25: ")), "{lines:?}");
    assert_eq!(lines[1], "    2 |   - { name: a, limits: [10/fortnight] }");
    assert_eq!(lines[2], "      |                         ^^^^^^^^^^^^");
    assert!(lines[3].starts_with(&format!("{file}:3:13: invalid rule name `A`; use")), "{lines:?}");
    assert!(
        lines[6].starts_with(&format!("{file}:3:24: the list of limits is empty")),
        "{lines:?}"
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn invalid_yaml_reports_location_and_exits_1() {
    let policy = TempFile::new(".yaml", "rules:\n  - { name: a, limits: [10/s }\n");
    let output = run_serve_command(policy.path(), "127.0.0.1:0");
    let location = format!("{}:2:", policy.path().display());
    assert!(stderr_text(&output).starts_with(&location), "{}", stderr_text(&output));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn missing_policy_error_names_file_and_exits_1() {
    let output = run_serve_command(Path::new("/nowhere/policy.yaml"), "127.0.0.1:0");
    let expected = "/nowhere/policy.yaml: cannot be read: No such file or directory";
    assert!(stderr_text(&output).starts_with(expected), "{}", stderr_text(&output));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn usage_error_exits_2() {
    for args in [&["serve"][..], &["serve", "--policy", "x", "--http", "nowhere"], &["sreve"]] {
        let output = slidegate_command().args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
}
