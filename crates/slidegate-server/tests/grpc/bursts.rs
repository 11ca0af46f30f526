//! Tests of bursts of calls on one connection, which a client such as Envoy sends before it has received the settings
//! of the server.

use std::time::Duration;

use axum::body::Bytes;
use h2::Reason;
use prost::Message;
use tokio::task::yield_now;
use tokio::time::sleep;

use crate::common::Server;
use crate::grpc::client::{SHOULD_RATE_LIMIT_PATH, new_descriptor, new_request};
use crate::grpc::raw::{Call, RawGrpcConnection, frame_message};

const POLICY: &str = "rules: [{ name: per-user, domain: api, per: [user], limits: [1000000/h] }]";

/// The documented maximum number of open calls on a connection.
const MAX_OPEN_CALLS: usize = 4096;

/// Returns a check of one user, as the body of a call.
fn check_body(user: &str) -> Bytes {
    frame_message(&new_request([new_descriptor(&[("user", user)])]).encode_to_vec()).into()
}

/// Opens calls, and leaves their request bodies open.
async fn open_calls(client: &RawGrpcConnection, count: usize) -> Vec<Call> {
    let mut calls = Vec::new();
    for _ in 0..count {
        calls.push(client.start_call(SHOULD_RATE_LIMIT_PATH).await.unwrap());
    }
    calls
}

/// Sends a check on each call.
fn send_checks(calls: &mut [Call], user: &str) {
    let body = check_body(user);
    for call in calls {
        call.body.send_data(body.clone(), true).unwrap();
    }
}

/// Waits for successful responses to all calls.
async fn wait_for_responses(calls: Vec<Call>) {
    for call in calls {
        let outcome = call.finish().await.unwrap();
        assert_eq!(outcome.code, "0", "{outcome:?}");
    }
}

/// Lets the connection of a client write everything that it has to send.
async fn flush_client() {
    for _ in 0..100 {
        yield_now().await;
    }
}

/// Opens calls on a new connection, before the client can receive the maximum number of the server.
async fn open_calls_at_once(server: &Server, count: usize) -> Vec<Call> {
    server.pause();
    let client = RawGrpcConnection::with_open_calls(server.grpc_address(), count).await;
    let calls = open_calls(&client, count).await;
    server.resume();
    calls
}

#[tokio::test]
async fn open_calls_wait_with_bounded_memory() {
    let server = Server::start_with_grpc(POLICY, &[]);
    let before = server.resident_memory_kb();
    let mut open = open_calls_at_once(&server, 6_000).await;
    for call in open.split_off(MAX_OPEN_CALLS) {
        let error = call.finish().await.unwrap_err();
        assert_eq!(error.reason(), Some(Reason::REFUSED_STREAM), "{error}");
    }
    let growth_kb = server.resident_memory_kb().saturating_sub(before);
    assert!(growth_kb < 64 * 1024, "open calls use {growth_kb} kB");
    send_checks(&mut open, "ann");
    wait_for_responses(open).await;
}

#[tokio::test]
async fn flood_of_calls_closes_connection() {
    let server = Server::start_with_grpc(POLICY, &[]);
    let flood = open_calls_at_once(&server, 20_000).await;
    for call in flood {
        assert!(call.finish().await.is_err());
    }
    let client = RawGrpcConnection::connect(server.grpc_address()).await;
    client.check(&new_request([new_descriptor(&[("user", "ann")])])).await;
}

/// Incomplete messages must not use up the flow control window of the connection: the others could then never end.
#[tokio::test]
async fn incomplete_messages_leave_window_to_others() {
    let server = Server::start_with_grpc(POLICY, &[]);
    let client = RawGrpcConnection::with_open_calls(server.grpc_address(), 1_000).await;
    let mut incomplete = open_calls(&client, 500).await;
    let body = check_body(&"x".repeat(40_000));
    let (start, end) = body.split_at(30_000);
    for call in &mut incomplete {
        call.body.send_data(Bytes::copy_from_slice(start), false).unwrap();
    }
    let mut calls = open_calls(&client, 500).await;
    send_checks(&mut calls, &"x".repeat(40_000));
    wait_for_responses(calls).await;
    for call in &mut incomplete {
        call.body.send_data(Bytes::copy_from_slice(end), true).unwrap();
    }
    wait_for_responses(incomplete).await;
}

/// Above the memory for messages, the server stops reading.
#[tokio::test]
async fn incomplete_messages_use_bounded_memory() {
    /// The start of a message of 1 MiB.
    const FRAMED_MESSAGE: [u8; 5] = [0, 0, 0x0f, 0xff, 0xff];
    let server = Server::start_with_grpc(POLICY, &["--max-buffered", "8MiB"]);
    let before = server.resident_memory_kb();
    let start = Bytes::from([&FRAMED_MESSAGE[..], &vec![0; 1_000_000]].concat());
    let mut open = Vec::new();
    for _ in 0..4 {
        let client = RawGrpcConnection::with_open_calls(server.grpc_address(), 100).await;
        let mut calls = open_calls(&client, 100).await;
        for call in &mut calls {
            call.body.send_data(start.clone(), false).unwrap();
        }
        open.push((client, calls));
    }
    wait_until_memory_is_stable(&server).await;
    let growth_kb = server.resident_memory_kb().saturating_sub(before);
    assert!(growth_kb < 48 * 1024, "incomplete messages use {growth_kb} kB");
    // Small messages do not wait for the others.
    let client = RawGrpcConnection::connect(server.grpc_address()).await;
    client.check(&new_request([new_descriptor(&[("user", "ann")])])).await;
}

/// Waits until the server reads no further, so that its memory does not grow any more.
async fn wait_until_memory_is_stable(server: &Server) {
    let mut before = 0;
    while before != server.resident_memory_kb() {
        before = server.resident_memory_kb();
        sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn reset_calls_leave_connection_open() {
    let server = Server::start_with_grpc(POLICY, &[]);
    let client = RawGrpcConnection::with_open_calls(server.grpc_address(), 1_000).await;
    client.call(SHOULD_RATE_LIMIT_PATH, check_body("ann")).await;
    // The server reads the calls together with their resets, as after a pause that is longer than Envoy's timeout.
    server.pause();
    let mut timed_out = open_calls(&client, 900).await;
    flush_client().await;
    timed_out.iter_mut().for_each(|call| call.body.send_reset(Reason::CANCEL));
    flush_client().await;
    let mut next = open_calls(&client, 1).await;
    send_checks(&mut next, "ann");
    flush_client().await;
    server.resume();
    wait_for_responses(next).await;
}
