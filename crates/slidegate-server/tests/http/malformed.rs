//! What is no HTTP: it gets a problem as well, and then the connection ends, for nobody can tell
//! where the next request would begin.

use std::io::ErrorKind;
use std::net::Shutdown;
use std::time::Duration;

use crate::bad_input::assert_problem;
use crate::client::{Raw, raw_check};
use crate::common::Server;

const POLICY: &str = "rules: [{ name: all, limits: [100/h] }]";
const POST: &str = "POST /v1/check HTTP/1.1\r\nhost: x\r\n";
const NO_HTTP: &str = "this is not an HTTP/1.1 request";

#[track_caller]
fn assert_refused(mut connection: Raw, status: u16, title: &str, detail: &str) {
    let answer = connection.answer();
    assert_problem(&answer, status, title, detail);
    assert_eq!(answer.header("connection"), Some("close"));
    connection.assert_ends();
}

fn sent(server: &Server, bytes: impl AsRef<[u8]>) -> Raw {
    let mut connection = Raw::connect(server.address());
    connection.write(bytes);
    connection
}

#[test]
fn a_head_that_makes_no_sense_is_400() {
    let server = Server::start(POLICY);
    let heads = [
        "nonsense\r\n\r\n".to_owned(),
        "GET /a b HTTP/1.1\r\n\r\n".to_owned(),
        "GET /healthz HTTP/9.9\r\n\r\n".to_owned(),
        "GET /healthz HTTP/1.1\r\nno colon\r\n\r\n".to_owned(),
        "GET /healthz HTTP/1.1\r\nna me: x\r\n\r\n".to_owned(),
        "GET /healthz HTTP/1.1\r\nname: \0\r\n\r\n".to_owned(),
        format!("{POST}content-length: x\r\n\r\n"),
        format!("{POST}content-length: -1\r\n\r\n"),
        format!("{POST}content-length: 99999999999999999999\r\n\r\n"),
        format!("{POST}content-length: 1\r\ncontent-length: 2\r\n\r\n"),
        format!("{POST}transfer-encoding: gzip\r\n\r\n"),
    ];
    for head in heads {
        assert_refused(sent(&server, &head), 400, "Bad Request", NO_HTTP);
    }
}

#[test]
fn nonsense_after_good_requests_leaves_their_answers() {
    let server = Server::start(POLICY);
    let mut connection = sent(&server, raw_check(r#"{"attributes":{}}"#).repeat(3) + "?\r\n\r\n");
    assert_eq!([(); 3].map(|()| connection.response().0), [200; 3]);
    assert_refused(connection, 400, "Bad Request", NO_HTTP);
}

#[test]
fn head_over_64_kib_is_431() {
    let server = Server::start(POLICY);
    let head = |bytes: usize| {
        let [front, rest] = ["GET /healthz HTTP/1.1\r\nname: ", "\r\n\r\n"];
        format!("{front}{}{rest}", "v".repeat(bytes - front.len() - rest.len()))
    };
    assert_eq!(sent(&server, head(65_536)).response().0, 200);
    for bytes in [65_537, 1 << 20] {
        let refused = sent(&server, head(bytes));
        assert_refused(refused, 431, "Request Header Fields Too Large", "over 65536 bytes");
    }
}

#[test]
fn whoever_is_refused_in_the_middle_of_sending_may_finish_and_read_why() {
    let server = Server::start(POLICY);
    let mut connection = sent(&server, "GET /healthz HTTP/1.1\r\nname: ");
    connection.write("v".repeat(70_000));
    assert!(connection.says_something_within(Duration::from_secs(30)));
    // A connection that was closed at once would be reset by the first, and refuse the second.
    for _ in 0..100 {
        connection.write("v".repeat(1_000));
    }
    connection.stream().shutdown(Shutdown::Write).unwrap();
    assert_refused(connection, 431, "Request Header Fields Too Large", "over 65536 bytes");
}

#[test]
fn over_500_headers_are_431() {
    let server = Server::start(POLICY);
    let head = |count| format!("GET /healthz HTTP/1.1\r\n{}\r\n", "name: v\r\n".repeat(count));
    assert_eq!(sent(&server, head(500)).response().0, 200);
    let refused = sent(&server, head(501));
    assert_refused(refused, 431, "Request Header Fields Too Large", "over 500 headers");
}

#[test]
fn chunks_that_make_no_sense_are_400() {
    let server = Server::start(POLICY);
    for chunks in ["zz\r\n{}\r\n", "\r\n", "1\r\n{}\r\n", "ffffffffffffffffff\r\n{}\r\n"] {
        let request = format!("{POST}transfer-encoding: chunked\r\n\r\n{chunks}");
        assert_refused(sent(&server, request), 400, "Bad Request", "the body cannot be read");
    }
}

#[test]
fn a_body_that_ends_before_its_length_is_400() {
    let server = Server::start(POLICY);
    let connection =
        sent(&server, format!("{POST}content-length: 18\r\n\r\n{{\"attributes\":{{}}}}"));
    connection.stream().shutdown(Shutdown::Write).unwrap();
    assert_refused(connection, 400, "Bad Request", "the body cannot be read");
}

#[test]
fn an_endless_body_is_cut() {
    let server = Server::start(POLICY);
    let mut connection = sent(&server, format!("{POST}transfer-encoding: chunked\r\n\r\n"));
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(65_536));
    let cut = (0..10_000).find_map(|_| connection.try_write(&chunk).err()).unwrap();
    assert!(matches!(cut.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{cut}");
}
