//! Tests that other clients are served while slow, silent or too many clients are connected.

use std::io::ErrorKind;
use std::thread;
use std::time::Duration;

use crate::common::{Server, TempFile, slidegate_command};
use crate::http::bad_input::assert_problem;
use crate::http::client::{Client, RawConnection, raw_check_request};

const POLICY: &str = "rules: [{ name: all, limits: [1000000/h] }]";
const HEALTH_CHECK_REQUEST: &str = "GET /healthz HTTP/1.1\r\n\r\n";

/// Starts a server with a client timeout (`--client-timeout`) of one second.
fn start_server_with_short_client_timeout() -> Server {
    Server::start_with(POLICY, &["--client-timeout", "1s"])
}

#[track_caller]
fn assert_healthz_succeeds(server: &Server) {
    assert_eq!(Client::new(server).call("GET", "/healthz").status, 200);
}

#[test]
fn incomplete_request_head_times_out() {
    let server = start_server_with_short_client_timeout();
    for start in ["", "G", "GET /healthz HTTP/1.1\r\nname: "] {
        let mut connection = RawConnection::connect(server.address());
        connection.write(start);
        connection.assert_closes();
    }
}

#[test]
fn idle_connection_times_out() {
    let server = start_server_with_short_client_timeout();
    let mut connection = RawConnection::connect(server.address());
    connection.write(HEALTH_CHECK_REQUEST);
    assert_eq!(connection.read_status_and_body().0, 200);
    connection.assert_closes();
}

#[test]
fn checks_keep_connection_open() {
    let server = start_server_with_short_client_timeout();
    let mut connection = RawConnection::connect(server.address());
    for _ in 0..4 {
        connection.write(raw_check_request(r#"{"attributes":{}}"#));
        assert_eq!(connection.read_status_and_body().0, 200);
        thread::sleep(Duration::from_millis(600));
    }
    connection.assert_closes();
}

#[test]
fn stalled_request_body_is_408() {
    let server = start_server_with_short_client_timeout();
    let mut connection = RawConnection::connect(server.address());
    connection.write("POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 17\r\n\r\n{");
    let response = connection.read_response();
    assert_problem(&response, 408, "Request Timeout", "the body did not arrive within 1s");
    assert_eq!(response.header("connection"), Some("close"));
    connection.assert_closes();
}

#[test]
fn very_slow_request_body_is_408() {
    let server = start_server_with_short_client_timeout();
    let mut connection = RawConnection::connect(server.address());
    connection.write("POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n");
    let mut trickle = connection.stream().try_clone().unwrap();
    thread::spawn(move || {
        while std::io::Write::write_all(&mut trickle, b" ").is_ok() {
            thread::sleep(Duration::from_millis(50));
        }
    });
    assert_eq!(connection.read_response().status, 408);
}

#[test]
fn client_not_reading_responses_is_disconnected() {
    let server = start_server_with_short_client_timeout();
    let mut connection = RawConnection::connect(server.address());
    let requests = raw_check_request(r#"{"attributes":{}}"#).repeat(100);
    // Many more responses than the socket buffers on both sides can hold.
    let error = (0..100_000).find_map(|_| connection.try_write(&requests).err()).unwrap();
    assert!(matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{error}");
    assert_healthz_succeeds(&server);
}

#[test]
fn connection_above_maximum_waits_until_another_closes() {
    let server = Server::start_with(POLICY, &["--max-connections", "2"]);
    let mut served = [(); 2].map(|()| RawConnection::connect(server.address()));
    for connection in &mut served {
        connection.write(HEALTH_CHECK_REQUEST);
        assert_eq!(connection.read_status_and_body().0, 200);
    }
    let mut waiting = RawConnection::connect(server.address());
    waiting.write(HEALTH_CHECK_REQUEST);
    assert!(!waiting.is_readable_within(Duration::from_millis(300)));
    let [first, mut second] = served;
    second.write(HEALTH_CHECK_REQUEST);
    assert_eq!(second.read_status_and_body().0, 200);
    drop(first);
    assert_eq!(waiting.read_status_and_body().0, 200);
}

#[test]
fn slow_clients_beyond_max_connections_do_not_block_others() {
    let server = Server::start_with(POLICY, &["--max-connections", "3", "--client-timeout", "1s"]);
    let mut slow = [(); 6].map(|()| RawConnection::connect(server.address()));
    slow.iter_mut().for_each(|connection| connection.write("GET /heal"));
    assert_healthz_succeeds(&server);
}

#[test]
fn address_cannot_use_all_connections() {
    let flags = ["--max-connections", "3", "--max-connections-per-address", "2"];
    let server = Server::start_with(POLICY, &flags);
    let mut served = [(); 2].map(|()| RawConnection::connect(server.address()));
    for connection in &mut served {
        connection.write(HEALTH_CHECK_REQUEST);
        assert_eq!(connection.read_status_and_body().0, 200);
    }
    RawConnection::connect(server.address()).assert_closes();
    let log = server.wait_for_log("closed a new connection of an address");
    assert!(log.contains("address=127.0.0.1 max=2") && log.contains("raise --max-conn"), "{log}");
    // Another address of this machine.
    let mut other = RawConnection::connect_from([127, 0, 0, 2], server.address());
    other.write(HEALTH_CHECK_REQUEST);
    assert_eq!(other.read_status_and_body().0, 200);
    drop((served, other));
    assert_healthz_succeeds(&server);
}

#[test]
fn old_connection_closes_after_its_next_response() {
    let server = Server::start_with(POLICY, &["--max-connection-age", "1s"]);
    let mut connection = RawConnection::connect(server.address());
    loop {
        connection.write(HEALTH_CHECK_REQUEST);
        let response = connection.read_response();
        assert_eq!(response.status, 200);
        if response.header("connection") == Some("close") {
            break connection.assert_closes();
        }
    }
}

/// Above the memory for bodies, the server stops reading.
#[test]
fn incomplete_bodies_use_bounded_memory() {
    let server = Server::start_with(POLICY, &["--max-buffered", "8MiB"]);
    let before = server.resident_memory_kb();
    let start = format!("{{{}", " ".repeat(1_000_000));
    let head = "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 1048576\r\n\r\n";
    let incomplete = [(); 100].map(|()| {
        let mut connection = RawConnection::connect(server.address());
        connection.write(head);
        connection.stream().set_write_timeout(Some(Duration::from_millis(100))).unwrap();
        // The server may stop reading.
        let _ = connection.try_write(&start);
        connection
    });
    wait_until_memory_is_stable(&server);
    let growth_kb = server.resident_memory_kb().saturating_sub(before);
    assert!(growth_kb < 48 * 1024, "incomplete bodies use {growth_kb} kB");
    // Small bodies do not wait for the others.
    let mut connection = RawConnection::connect(server.address());
    connection.write(raw_check_request(r#"{"attributes":{}}"#));
    assert_eq!(connection.read_status_and_body().0, 200);
    drop(incomplete);
}

/// Waits until the server reads no further, so that its memory does not grow any more.
fn wait_until_memory_is_stable(server: &Server) {
    let mut before = 0;
    while before != server.resident_memory_kb() {
        before = server.resident_memory_kb();
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn server_out_of_file_descriptors_recovers() {
    let policy = TempFile::new(".yaml", POLICY);
    let mut command = slidegate_command();
    command.arg("serve").arg("--policy").arg(policy.path()).args(["--http", "127.0.0.1:0"]);
    let server = Server::spawn(&mut command);
    server.limit_open_files(24);
    let mut many = Vec::from([(); 40].map(|()| RawConnection::connect(server.address())));
    server.wait_for_log("cannot accept a connection");
    // One line per second: the server pauses between attempts.
    assert_eq!(server.next_log_line(Duration::from_millis(500)), None);
    many[0].write(HEALTH_CHECK_REQUEST);
    assert_eq!(many[0].read_status_and_body().0, 200);
    many.clear();
    assert_healthz_succeeds(&server);
}

#[test]
fn zero_max_connections_or_client_timeout_is_rejected() {
    for (flag, value) in [("--max-connections", "0"), ("--client-timeout", "0s")] {
        let output =
            slidegate_command().args(["serve", "--policy", "x", flag, value]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{flag}");
    }
}
