//! Clients that are slow, silent or many: none of them takes the server from the others.

use std::io::ErrorKind;
use std::thread;
use std::time::Duration;

use crate::bad_input::assert_problem;
use crate::client::{Client, Raw, raw_check};
use crate::common::{Server, TempFile, slidegate, with_open_files};

const POLICY: &str = "rules: [{ name: all, limits: [1000000/h] }]";
const HEALTH: &str = "GET /healthz HTTP/1.1\r\n\r\n";

fn impatient() -> Server {
    Server::start_with(POLICY, &["--client-timeout", "1"])
}

#[track_caller]
fn assert_serves(server: &Server) {
    assert_eq!(Client::of(server).call("GET", "/healthz").status, 200);
}

#[test]
fn a_client_that_does_not_end_its_head_is_let_go() {
    let server = impatient();
    for start in ["", "G", "GET /healthz HTTP/1.1\r\nname: "] {
        let mut connection = Raw::connect(server.address());
        connection.write(start);
        connection.assert_ends();
    }
}

#[test]
fn an_idle_connection_is_let_go() {
    let server = impatient();
    let mut connection = Raw::connect(server.address());
    connection.write(HEALTH);
    assert_eq!(connection.response().0, 200);
    connection.assert_ends();
}

#[test]
fn a_body_that_stops_coming_is_408() {
    let server = impatient();
    let mut connection = Raw::connect(server.address());
    connection.write("POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 17\r\n\r\n{");
    let answer = connection.answer();
    assert_problem(&answer, 408, "Request Timeout", "the body did not arrive within 1s");
    assert_eq!(answer.header("connection"), Some("close"));
    connection.assert_ends();
}

#[test]
fn a_body_that_trickles_is_408_too() {
    let server = impatient();
    let mut connection = Raw::connect(server.address());
    connection.write("POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n");
    let mut trickle = connection.stream().try_clone().unwrap();
    thread::spawn(move || {
        while std::io::Write::write_all(&mut trickle, b" ").is_ok() {
            thread::sleep(Duration::from_millis(50));
        }
    });
    assert_eq!(connection.answer().status, 408);
}

#[test]
fn a_client_that_does_not_take_its_answers_is_let_go() {
    let server = impatient();
    let mut connection = Raw::connect(server.address());
    let requests = raw_check(r#"{"attributes":{}}"#).repeat(100);
    // Far more answers than the systems on both sides keep for a reader.
    let cut = (0..100_000).find_map(|_| connection.try_write(&requests).err()).unwrap();
    assert!(matches!(cut.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{cut}");
    assert_serves(&server);
}

#[test]
fn beyond_the_bound_a_connection_waits_until_another_ends() {
    let server = Server::start_with(POLICY, &["--max-connections", "2"]);
    let mut served = [(); 2].map(|()| Raw::connect(server.address()));
    for connection in &mut served {
        connection.write(HEALTH);
        assert_eq!(connection.response().0, 200);
    }
    let mut waiting = Raw::connect(server.address());
    waiting.write(HEALTH);
    assert!(!waiting.says_something_within(Duration::from_millis(300)));
    let [first, mut second] = served;
    second.write(HEALTH);
    assert_eq!(second.response().0, 200);
    drop(first);
    assert_eq!(waiting.response().0, 200);
}

#[test]
fn a_bound_of_connections_holds_though_slow_clients_take_all_of_them() {
    let server = Server::start_with(POLICY, &["--max-connections", "3", "--client-timeout", "1"]);
    let mut slow = [(); 6].map(|()| Raw::connect(server.address()));
    slow.iter_mut().for_each(|connection| connection.write("GET /heal"));
    assert_serves(&server);
}

#[test]
fn a_server_out_of_files_waits_and_goes_on() {
    let policy = TempFile::new(".yaml", POLICY);
    let mut command = slidegate();
    command.arg("serve").arg("--policy").arg(policy.path()).args(["--http", "127.0.0.1:0"]);
    let server = Server::spawn(&mut with_open_files(24, &command));
    let mut many = Vec::from([(); 40].map(|()| Raw::connect(server.address())));
    server.wait_for_log("cannot accept a connection");
    // One line a second: it does not try without pause.
    assert_eq!(server.next_log(Duration::from_millis(500)), None);
    many[0].write(HEALTH);
    assert_eq!(many[0].response().0, 200);
    many.clear();
    assert_serves(&server);
}

#[test]
fn bounds_of_nothing_are_wrong_usage() {
    for flag in ["--max-connections", "--client-timeout"] {
        let output = slidegate().args(["serve", "--policy", "x", flag, "0"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{flag}");
    }
}
