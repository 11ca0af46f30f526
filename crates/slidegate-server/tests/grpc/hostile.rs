//! Tests of hostile gRPC calls. Each call receives an error that describes the problem, and the server continues to
//! serve other clients.

use std::time::Duration;

use axum::http::Request;
use futures_util::future::join;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::common::Server;
use crate::grpc::client::{SHOULD_RATE_LIMIT_PATH, new_descriptor, new_request};
use crate::grpc::raw::{RawGrpcConnection, frame_message};

const POLICY: &str = "rules: [{ name: per-user, domain: api, per: [user], limits: [1000000/h] }]";

/// Maximum wait for a response of the server. Much longer than any test needs, so that a broken test fails instead of
/// hanging.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

const GRPC_CANCELLED_CODE: &str = "1";
const GRPC_INVALID_ARGUMENT_CODE: &str = "3";
const GRPC_OUT_OF_RANGE_CODE: &str = "11";
const GRPC_UNIMPLEMENTED_CODE: &str = "12";
const GRPC_INTERNAL_CODE: &str = "13";

/// Returns hostile calls. Each has a name for test failures, the path of a gRPC method, a body, the expected gRPC
/// status code, and a part of the expected error message.
fn hostile_calls() -> Vec<(&'static str, &'static str, Vec<u8>, &'static str, &'static str)> {
    let good = new_request([new_descriptor(&[("user", "ann")])]).encode_to_vec();
    let many = new_request(vec![new_descriptor(&[("a", "b")]); 101]).encode_to_vec();
    let long = frame_message(
        &new_request([new_descriptor(&[("a", &"x".repeat(1 << 20))])]).encode_to_vec(),
    );
    let mut compressed = frame_message(&good);
    compressed[0] = 1;
    let mut invalid_flag = frame_message(&good);
    invalid_flag[0] = 7;
    vec![
        (
            "101 descriptors",
            SHOULD_RATE_LIMIT_PATH,
            frame_message(&many),
            GRPC_INVALID_ARGUMENT_CODE,
            "101 descriptors; send at most 100",
        ),
        (
            "1,001 entries",
            SHOULD_RATE_LIMIT_PATH,
            frame_message(&new_request([new_descriptor(&[("a", "b"); 1_001])]).encode_to_vec()),
            GRPC_INVALID_ARGUMENT_CODE,
            "1001 entries together; send at most 1000",
        ),
        ("over 1 MiB", SHOULD_RATE_LIMIT_PATH, long, GRPC_OUT_OF_RANGE_CODE, "over 1048576 bytes"),
        (
            "no descriptors",
            SHOULD_RATE_LIMIT_PATH,
            frame_message(&new_request([]).encode_to_vec()),
            GRPC_INVALID_ARGUMENT_CODE,
            "no descriptors",
        ),
        (
            "empty message",
            SHOULD_RATE_LIMIT_PATH,
            frame_message(&[]),
            GRPC_INVALID_ARGUMENT_CODE,
            "no descriptors",
        ),
        (
            "garbage",
            SHOULD_RATE_LIMIT_PATH,
            frame_message(&[0xff; 100]),
            GRPC_INTERNAL_CODE,
            "decode",
        ),
        (
            "truncated message",
            SHOULD_RATE_LIMIT_PATH,
            frame_message(&good[..good.len() - 1]),
            GRPC_INTERNAL_CODE,
            "decode",
        ),
        (
            "truncated frame",
            SHOULD_RATE_LIMIT_PATH,
            frame_message(&good)[..9].to_vec(),
            GRPC_INTERNAL_CODE,
            "EOF",
        ),
        ("truncated length", SHOULD_RATE_LIMIT_PATH, vec![0, 0], GRPC_INTERNAL_CODE, "EOF"),
        ("empty body", SHOULD_RATE_LIMIT_PATH, vec![], GRPC_INTERNAL_CODE, "issing"),
        ("compressed", SHOULD_RATE_LIMIT_PATH, compressed, GRPC_INTERNAL_CODE, "ompress"),
        ("invalid flag", SHOULD_RATE_LIMIT_PATH, invalid_flag, GRPC_INTERNAL_CODE, "ompress"),
        (
            "maximum length",
            SHOULD_RATE_LIMIT_PATH,
            vec![0, 0xff, 0xff, 0xff, 0xff],
            GRPC_OUT_OF_RANGE_CODE,
            "too large",
        ),
        (
            "other path",
            "/",
            frame_message(&good),
            GRPC_UNIMPLEMENTED_CODE,
            "unknown method `/`; call ",
        ),
        (
            "other service",
            "/some.Service/Do",
            frame_message(&good),
            GRPC_UNIMPLEMENTED_CODE,
            "unknown method `/some.Service/Do`",
        ),
        (
            "other method",
            "/envoy.service.ratelimit.v3.RateLimitService/Reset",
            frame_message(&good),
            GRPC_UNIMPLEMENTED_CODE,
            "RateLimitService/Reset`; call ",
        ),
    ]
}

#[tokio::test]
async fn hostile_calls_are_rejected_without_memory_growth() {
    let server = Server::start_with_grpc(POLICY, &[]);
    let calls = hostile_calls();
    let round = async || {
        let client = RawGrpcConnection::connect(server.grpc_address()).await;
        for (name, path, body, code, message) in &calls {
            let outcome = client.call(path, body.clone()).await;
            assert_eq!(outcome.code, *code, "{name}: {outcome:?}");
            let decoded = outcome.message.replace("%20", " ").replace("%60", "`");
            assert!(decoded.contains(message), "{name}: {outcome:?}");
        }
        let response = client.check(&new_request([new_descriptor(&[("user", "ann")])])).await;
        assert_eq!(response.overall_code, 1);
    };
    for _ in 0..20 {
        round().await;
    }
    let before = server.resident_memory_kb();
    for _ in 0..200 {
        round().await;
    }
    let growth_kb = server.resident_memory_kb().saturating_sub(before);
    assert!(
        growth_kb < 8 * 1024,
        "memory grew by {growth_kb} kB in {} hostile calls",
        200 * calls.len()
    );
}

#[tokio::test]
async fn invalid_http2_bytes_close_only_their_connection() {
    let server = Server::start_with_grpc(POLICY, &["--client-timeout", "1s"]);
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let frames: [&[u8]; 6] = [
        b"",
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        &preface[..10],
        // A frame above the maximum length, a SETTINGS frame on a stream, an invalid header block.
        &[preface, &[0xff; 64][..]].concat(),
        &[preface, &[0, 0, 0, 4, 0, 0, 0, 0, 1][..]].concat(),
        &[preface, &[0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1, 1, 5, 0, 0, 0, 1, 0xff][..]].concat(),
    ];
    for bytes in frames {
        let mut client = TcpStream::connect(server.grpc_address()).await.unwrap();
        client.write_all(bytes).await.unwrap();
        let mut received = Vec::new();
        // A reset closes the connection as well.
        let closed = timeout(RESPONSE_TIMEOUT, client.read_to_end(&mut received)).await;
        let _ = closed.expect("the server closes the connection");
    }
    let client = RawGrpcConnection::connect(server.grpc_address()).await;
    client.check(&new_request([new_descriptor(&[("user", "ann")])])).await;
}

#[tokio::test]
async fn incomplete_call_times_out_without_closing_connection() {
    let server = Server::start_with_grpc(POLICY, &["--client-timeout", "1s"]);
    let client = RawGrpcConnection::connect(server.grpc_address()).await;
    let silent = client.start_call(SHOULD_RATE_LIMIT_PATH).await.unwrap();
    let mut slow = client.start_call(SHOULD_RATE_LIMIT_PATH).await.unwrap();
    slow.body.send_data(vec![0, 0].into(), false).unwrap();
    for call in [silent, slow] {
        let outcome = timeout(RESPONSE_TIMEOUT, call.finish()).await.unwrap().unwrap();
        assert_eq!(outcome.code, GRPC_CANCELLED_CODE, "{outcome:?}");
    }
    client.check(&new_request([new_descriptor(&[("user", "ann")])])).await;
}

#[tokio::test]
async fn call_ends_after_its_grpc_timeout() {
    let server = Server::start_with_grpc(POLICY, &[]);
    let client = RawGrpcConnection::connect(server.grpc_address()).await;
    let headers = [("grpc-timeout", "50m")];
    let call = client.start_call_with_headers(SHOULD_RATE_LIMIT_PATH, &headers).await.unwrap();
    let outcome = timeout(RESPONSE_TIMEOUT, call.finish()).await.unwrap().unwrap();
    assert_eq!(outcome.code, GRPC_CANCELLED_CODE, "{outcome:?}");
    client.check(&new_request([new_descriptor(&[("user", "ann")])])).await;
}

/// A client that responds to pings cannot occupy one of the connections of a listener forever.
#[tokio::test]
async fn connection_without_calls_closes() {
    let server = Server::start_with_grpc(POLICY, &["--max-connection-idle", "1s"]);
    let io = TcpStream::connect(server.grpc_address()).await.unwrap();
    let (_requests, connection) = h2::client::handshake(io).await.unwrap();
    timeout(RESPONSE_TIMEOUT, connection).await.unwrap().unwrap();
}

#[tokio::test]
async fn old_connection_closes_although_a_call_is_open() {
    let flags = ["--max-connection-age", "1s", "--client-timeout", "1s"];
    let server = Server::start_with_grpc(POLICY, &flags);
    let io = TcpStream::connect(server.grpc_address()).await.unwrap();
    let (requests, connection) = h2::client::handshake(io).await.unwrap();
    let watch = async {
        let requests = &mut requests.ready().await.unwrap();
        let head = Request::post("http://slidegate/grpc.health.v1.Health/Watch");
        let head = head.header("content-type", "application/grpc").header("te", "trailers");
        let (response, mut body) = requests.send_request(head.body(()).unwrap(), false).unwrap();
        body.send_data(frame_message(&[]).into(), true).unwrap();
        response.await
    };
    // The connection ends while the server sends the statuses of the call.
    let (watched, closed) = timeout(RESPONSE_TIMEOUT, join(watch, connection)).await.unwrap();
    assert!(watched.is_ok(), "{watched:?}");
    drop(closed);
}

#[tokio::test]
async fn idle_grpc_connection_stays_open() {
    let server = Server::start_with_grpc(POLICY, &["--client-timeout", "1s"]);
    let client = RawGrpcConnection::connect(server.grpc_address()).await;
    // No event to wait for: the test is that an idle time above the client timeout is harmless.
    sleep(Duration::from_millis(2_500)).await;
    client.check(&new_request([new_descriptor(&[("user", "ann")])])).await;
}
