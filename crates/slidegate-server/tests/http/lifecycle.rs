//! Starting and stopping.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Output;
use std::thread;
use std::time::Duration;

use crate::client::Raw;
use crate::common::{Server, TempFile, slidegate};

const POLICY: &str = "rules: [{ name: all, limits: [100/min] }]";

/// A check whose body the server waits for: it has said so.
fn half_a_check(server: &Server) -> Raw {
    let mut connection = Raw::connect(server.address());
    connection.write(
        "POST /v1/check HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 17\r\n\r\n",
    );
    assert_eq!(connection.response().0, 100);
    connection.write(r#"{"attrib"#);
    connection
}

fn serve(policy: &Path, http: &str) -> Output {
    slidegate().arg("serve").arg("--policy").arg(policy).args(["--http", http]).output().unwrap()
}

fn stderr(output: &Output) -> &str {
    str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn sigterm_finishes_the_request_in_flight_and_takes_no_other() {
    let server = Server::start(POLICY);
    let mut in_flight = half_a_check(&server);
    server.signal("TERM");
    server.wait_for_log("SIGTERM: stopping");
    while TcpStream::connect(server.address()).is_ok() {
        thread::yield_now();
    }
    in_flight.write(r#"utes":{}}"#);
    assert_eq!(in_flight.response().0, 200);
    server.wait_for_log("stopped");
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn sigint_stops_too_and_waits_a_second_at_most_for_idle_connections() {
    let server = Server::start(POLICY);
    let _silent = Raw::connect(server.address());
    let mut idle = Raw::connect(server.address());
    idle.write("GET /healthz HTTP/1.1\r\n\r\n");
    assert_eq!(idle.response().0, 200);
    server.signal("INT");
    server.wait_for_log("SIGINT: stopping");
    assert!(server.next_log(Duration::from_secs(3)).unwrap().contains("stopped"));
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn a_client_that_never_ends_its_request_delays_the_stop_by_the_grace_only() {
    let server = Server::start_with(POLICY, &["--shutdown-grace", "300ms"]);
    let _stuck = half_a_check(&server);
    server.signal("TERM");
    server.wait_for_log("stopping");
    assert!(server.next_log(Duration::from_secs(9)).unwrap().contains("cutting connections"));
    assert!(server.next_log(Duration::from_secs(1)).unwrap().contains("stopped"));
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn the_environment_serves_as_well_as_flags() {
    let policy = TempFile::new(".yaml", POLICY);
    let mut command = slidegate();
    command
        .arg("serve")
        .env("SLIDEGATE_POLICY", policy.path())
        .env("SLIDEGATE_HTTP", "127.0.0.1:0");
    let server = Server::spawn(&mut command);
    assert!(TcpStream::connect(server.address()).is_ok());
}

#[test]
fn with_the_log_off_only_the_error_that_ends_it_is_told() {
    let policy = TempFile::new(".yaml", "rules: []");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = slidegate();
    command.arg("serve").arg("--policy").arg(policy.path());
    command.args(["--log-level", "off", "--http", &taken.local_addr().unwrap().to_string()]);
    let output = command.output().unwrap();
    assert_eq!(stderr(&output).lines().count(), 1);
}

#[test]
fn a_port_that_is_taken_is_named_and_exits_1() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let policy = TempFile::new(".yaml", POLICY);
    let output = serve(policy.path(), &address);
    let expected =
        format!("cannot listen on {address}, the address of --http: Address already in use");
    assert!(stderr(&output).starts_with(&expected), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn every_mistake_of_a_policy_is_told_and_shown_and_exits_1() {
    let policy = TempFile::new(
        ".yaml",
        "rules:\n  - { name: a, limits: [10/fortnight] }\n  - { name: A, limits: [] }\n",
    );
    let output = serve(policy.path(), "127.0.0.1:0");
    let lines: Vec<&str> = stderr(&output).lines().collect();
    let file = policy.path().display();
    assert_eq!(lines.len(), 9, "{lines:?}");
    assert!(lines[0].starts_with(&format!("{file}:2:25: ")), "{lines:?}");
    assert_eq!(lines[1], "    2 |   - { name: a, limits: [10/fortnight] }");
    assert_eq!(lines[2], "      |                         ^^^^^^^^^^^^");
    assert!(lines[3].starts_with(&format!("{file}:3:13: `A` cannot name a rule")), "{lines:?}");
    assert!(lines[6].starts_with(&format!("{file}:3:24: an empty list")), "{lines:?}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_policy_that_is_no_yaml_is_told_with_its_place_and_exits_1() {
    let policy = TempFile::new(".yaml", "rules:\n  - { name: a, limits: [10/s }\n");
    let output = serve(policy.path(), "127.0.0.1:0");
    let place = format!("{}:2:", policy.path().display());
    assert!(stderr(&output).starts_with(&place), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_policy_that_is_not_there_is_named_and_exits_1() {
    let output = serve(Path::new("/nowhere/policy.yaml"), "127.0.0.1:0");
    let expected = "/nowhere/policy.yaml: cannot be read: No such file or directory";
    assert!(stderr(&output).starts_with(expected), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn wrong_usage_exits_2() {
    for args in [&["serve"][..], &["serve", "--policy", "x", "--http", "nowhere"], &["sreve"]] {
        let output = slidegate().args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
}
