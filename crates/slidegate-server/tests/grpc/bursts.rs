//! Tests of bursts of calls on one connection, which a client such as Envoy sends before it has received the settings
//! of the server.

use axum::body::Bytes;
use h2::Reason;
use prost::Message;
use tokio::task::yield_now;

use crate::client::{SHOULD_RATE_LIMIT_PATH, new_descriptor, new_request};
use crate::common::Server;
use crate::hostile::resident_memory_kb;
use crate::raw::{Call, RawGrpcConnection, frame_message};

const POLICY: &str = "rules: [{ name: per-user, domain: api, per: [user], limits: [1000000/h] }]";

/// The documented maximum number of open calls on a connection.
const MAX_OPEN_CALLS: usize = 4096;

/// The documented maximum number of calls of a connection that are handled at the same time.
const MAX_HANDLED_CALLS: usize = 512;

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
    let before = resident_memory_kb(&server);
    let mut open = open_calls_at_once(&server, 6_000).await;
    for call in open.split_off(MAX_OPEN_CALLS) {
        let error = call.finish().await.unwrap_err();
        assert_eq!(error.reason(), Some(Reason::REFUSED_STREAM), "{error}");
    }
    let growth_kb = resident_memory_kb(&server).saturating_sub(before);
    assert!(growth_kb < 64 * 1024, "open calls use {growth_kb} kB");
    // The last calls wait until the first ones have ended, also if their messages arrive earlier.
    send_checks(&mut open[MAX_HANDLED_CALLS..], "ann");
    flush_client().await;
    send_checks(&mut open[..MAX_HANDLED_CALLS], "ann");
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

/// Calls that wait must not use up the flow control window of the connection: the others could then never end.
#[tokio::test]
async fn waiting_messages_leave_window_to_handled_calls() {
    let server = Server::start_with_grpc(POLICY, &[]);
    let client = RawGrpcConnection::with_open_calls(server.grpc_address(), 1_000).await;
    let mut calls = open_calls(&client, 1_000).await;
    flush_client().await;
    let user = "x".repeat(40_000);
    send_checks(&mut calls[MAX_HANDLED_CALLS..], &user);
    flush_client().await;
    send_checks(&mut calls[..MAX_HANDLED_CALLS], &user);
    wait_for_responses(calls).await;
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
