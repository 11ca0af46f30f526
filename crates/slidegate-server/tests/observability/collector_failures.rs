//! Tests that the server continues to decide requests while the trace collector fails, and logs that traces are lost.

use std::net::TcpListener;
use std::time::Duration;

use crate::common::Server;
use crate::http::client::Client;
use crate::observability::collector::{CollectorMode, FakeCollector};
use crate::observability::traces::start_traced_server;

/// Environment variables that limit the queue of unexported spans to eight, so that a few requests fill the queue.
const SMALL_QUEUE_ENVIRONMENT: [(&str, &str); 2] =
    [("OTEL_BSP_MAX_QUEUE_SIZE", "8"), ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")];

const TRACE_ALL_WITH_SHORT_SHUTDOWN_GRACE_FLAGS: [&str; 4] =
    ["--trace-sample", "100%", "--shutdown-grace", "1s"];

/// Sends many more requests than the export queue can hold, and asserts that all are allowed. Then waits for a log line
/// that contains `expected_log`, stops the server, and asserts that the server does not log the loss of spans again.
fn assert_decisions_continue_despite_lost_spans(server: Server, expected_log: &str) {
    let client = Client::new(&server);
    for nth in 0..200 {
        let response =
            client.post("/v1/check", format!(r#"{{"attributes":{{"tenant":"{nth}"}}}}"#));
        assert_eq!(response.status, 200);
    }
    server.wait_for_log(expected_log);
    // The loss is logged once per minute, so it is not logged again until the end.
    server.send_signal("TERM");
    let mut lines = Vec::new();
    while let Some(line) = server.next_log_line(Duration::from_secs(20)) {
        lines.push(line);
    }
    assert!(!lines.iter().any(|line| line.contains("the collector did not")), "{lines:#?}");
    assert_eq!(server.wait_for_exit_code(), Some(0));
}

#[test]
fn decisions_continue_without_reachable_collector() {
    let unused_address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = start_traced_server(
        &format!("http://{unused_address}"),
        &TRACE_ALL_WITH_SHORT_SHUTDOWN_GRACE_FLAGS,
        &SMALL_QUEUE_ENVIRONMENT,
    );
    assert_decisions_continue_despite_lost_spans(server, r#"problem="Connection refused"#);
}

#[test]
fn decisions_continue_while_collector_fails() {
    let collector = FakeCollector::with_mode(CollectorMode::Fail);
    let server = start_traced_server(
        &collector.url(),
        &TRACE_ALL_WITH_SHORT_SHUTDOWN_GRACE_FLAGS,
        &SMALL_QUEUE_ENVIRONMENT,
    );
    assert_decisions_continue_despite_lost_spans(
        server,
        r#"problem="request failed with status 500 Internal Server Error""#,
    );
}

#[test]
fn decisions_continue_while_collector_hangs() {
    let collector = FakeCollector::with_mode(CollectorMode::Hang);
    let server = start_traced_server(
        &collector.url(),
        &TRACE_ALL_WITH_SHORT_SHUTDOWN_GRACE_FLAGS,
        &SMALL_QUEUE_ENVIRONMENT,
    );
    assert_decisions_continue_despite_lost_spans(server, "dropped a Span due to queue full");
}
