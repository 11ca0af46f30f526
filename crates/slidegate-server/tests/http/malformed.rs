//! Tests of malformed HTTP requests. The server responds to a malformed head with a status, and to a malformed body with
//! a problem document. It then closes the connection, because it cannot find the start of the next request.

use std::io::ErrorKind;
use std::net::Shutdown;

use crate::common::Server;
use crate::http::bad_input::assert_problem;
use crate::http::client::{RawConnection, raw_check_request};

const POLICY: &str = "rules: [{ name: all, limits: [100/h] }]";
const POST_REQUEST_HEAD_START: &str = "POST /v1/check HTTP/1.1\r\nhost: x\r\n";

/// Asserts that the next response on the connection has this status and no body, and that the server then closes the
/// connection.
#[track_caller]
fn assert_head_rejected_and_closed(mut connection: RawConnection, status: u16) {
    let response = connection.read_response();
    assert_eq!((response.status, &*response.body), (status, ""));
    assert_eq!(response.header("connection"), Some("close"));
    connection.assert_closes();
}

/// Asserts that the next response on the connection is a problem document with this status, title and detail, and that
/// the server then closes the connection.
#[track_caller]
fn assert_rejected_and_closed(
    mut connection: RawConnection,
    status: u16,
    title: &str,
    detail: &str,
) {
    let response = connection.read_response();
    assert_problem(&response, status, title, detail);
    assert_eq!(response.header("connection"), Some("close"));
    connection.assert_closes();
}

/// Opens a connection to the HTTP listener of a server, and writes these bytes.
fn connect_and_send_bytes(server: &Server, bytes: impl AsRef<[u8]>) -> RawConnection {
    let mut connection = RawConnection::connect(server.address());
    connection.write(bytes);
    connection
}

#[test]
fn malformed_request_head_is_400() {
    let server = Server::start(POLICY);
    let heads = [
        "nonsense\r\n\r\n".to_owned(),
        "GET /a b HTTP/1.1\r\n\r\n".to_owned(),
        "GET /healthz HTTP/9.9\r\n\r\n".to_owned(),
        "GET /healthz HTTP/1.1\r\nno colon\r\n\r\n".to_owned(),
        "GET /healthz HTTP/1.1\r\nna me: x\r\n\r\n".to_owned(),
        "GET /healthz HTTP/1.1\r\nname: \0\r\n\r\n".to_owned(),
        format!("{POST_REQUEST_HEAD_START}content-length: x\r\n\r\n"),
        format!("{POST_REQUEST_HEAD_START}content-length: -1\r\n\r\n"),
        format!("{POST_REQUEST_HEAD_START}content-length: 99999999999999999999\r\n\r\n"),
        format!("{POST_REQUEST_HEAD_START}content-length: 1\r\ncontent-length: 2\r\n\r\n"),
        format!("{POST_REQUEST_HEAD_START}transfer-encoding: gzip\r\n\r\n"),
    ];
    for head in heads {
        assert_head_rejected_and_closed(connect_and_send_bytes(&server, &head), 400);
    }
}

#[test]
fn malformed_request_keeps_earlier_pipelined_responses() {
    let server = Server::start(POLICY);
    let mut connection = connect_and_send_bytes(
        &server,
        raw_check_request(r#"{"attributes":{}}"#).repeat(3) + "?\r\n\r\n",
    );
    assert_eq!([(); 3].map(|()| connection.read_status_and_body().0), [200; 3]);
    assert_head_rejected_and_closed(connection, 400);
}

#[test]
fn request_head_over_64_kib_is_431() {
    let server = Server::start(POLICY);
    let head = |bytes: usize| {
        let [front, rest] = ["GET /healthz HTTP/1.1\r\nname: ", "\r\n\r\n"];
        format!("{front}{}{rest}", "v".repeat(bytes - front.len() - rest.len()))
    };
    assert_eq!(connect_and_send_bytes(&server, head(65_536)).read_status_and_body().0, 200);
    assert_head_rejected_and_closed(connect_and_send_bytes(&server, head(65_537)), 431);
}

#[test]
fn request_with_over_500_headers_is_431() {
    let server = Server::start(POLICY);
    let head = |count| format!("GET /healthz HTTP/1.1\r\n{}\r\n", "name: v\r\n".repeat(count));
    assert_eq!(connect_and_send_bytes(&server, head(500)).read_status_and_body().0, 200);
    assert_head_rejected_and_closed(connect_and_send_bytes(&server, head(501)), 431);
}

#[test]
fn malformed_chunked_body_is_400() {
    let server = Server::start(POLICY);
    for chunks in ["zz\r\n{}\r\n", "\r\n", "1\r\n{}\r\n", "ffffffffffffffffff\r\n{}\r\n"] {
        let request =
            format!("{POST_REQUEST_HEAD_START}transfer-encoding: chunked\r\n\r\n{chunks}");
        assert_rejected_and_closed(
            connect_and_send_bytes(&server, request),
            400,
            "Bad Request",
            "the body cannot be read",
        );
    }
}

#[test]
fn truncated_body_is_400() {
    let server = Server::start(POLICY);
    let connection = connect_and_send_bytes(
        &server,
        format!("{POST_REQUEST_HEAD_START}content-length: 18\r\n\r\n{{\"attributes\":{{}}}}"),
    );
    connection.stream().shutdown(Shutdown::Write).unwrap();
    assert_rejected_and_closed(connection, 400, "Bad Request", "the body cannot be read");
}

#[test]
fn endless_body_closes_connection() {
    let server = Server::start(POLICY);
    let mut connection = connect_and_send_bytes(
        &server,
        format!("{POST_REQUEST_HEAD_START}transfer-encoding: chunked\r\n\r\n"),
    );
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(65_536));
    let error = (0..10_000).find_map(|_| connection.try_write(&chunk).err()).unwrap();
    assert!(matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{error}");
}
