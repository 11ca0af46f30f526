//! A collector that does not take what it is sent: decisions go on.

use std::net::TcpListener;
use std::time::Duration;

use crate::client::Client;
use crate::collector::{Collector, Manner};
use crate::common::Server;
use crate::traces::traced;

/// Room for eight spans, so that there is soon none.
const NARROW: [(&str, &str); 2] =
    [("OTEL_BSP_MAX_QUEUE_SIZE", "8"), ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")];

const FLAGS: [&str; 4] = ["--trace-sample", "100%", "--shutdown-grace", "1s"];

/// Asks far more than there is room for, and has every answer; then ends the server.
fn goes_on(server: Server, told: &str) {
    let client = Client::of(&server);
    for nth in 0..200 {
        let answer = client.post("/v1/check", format!(r#"{{"attributes":{{"tenant":"{nth}"}}}}"#));
        assert_eq!(answer.status, 200);
    }
    server.wait_for_log(told);
    // Once in a minute: what comes until the end is not that again.
    server.signal("TERM");
    let mut lines = Vec::new();
    while let Some(line) = server.next_log(Duration::from_secs(20)) {
        lines.push(line);
    }
    assert!(!lines.iter().any(|line| line.contains("the collector did not")), "{lines:#?}");
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn decisions_continue_without_reachable_collector() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = traced(&format!("http://{nobody}"), &FLAGS, &NARROW);
    goes_on(server, "the collector did not take them: Connection refused");
}

#[test]
fn decisions_continue_while_collector_fails() {
    let collector = Collector::that(Manner::Fails);
    let server = traced(&collector.url(), &FLAGS, &NARROW);
    goes_on(server, "the collector did not take them: it answers 500 Internal Server Error");
}

#[test]
fn decisions_continue_while_collector_hangs() {
    let collector = Collector::that(Manner::NeverAnswers);
    let server = traced(&collector.url(), &FLAGS, &NARROW);
    goes_on(server, "dropped a Span due to queue full");
}
