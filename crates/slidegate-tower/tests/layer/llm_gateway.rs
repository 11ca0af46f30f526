//! Tests of a service with all limits of a gateway to language models, which streams its responses. The how-to page about
//! LLM tokens describes it.

mod service;

use std::time::Duration;

use slidegate::{Descriptor, Gate, MemoryStore, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::layer::fixture::{TestClient, serve};

/// Maximum number of attempts until a background task has settled a charge or released a permit.
const MAX_ATTEMPTS: u32 = 1_000;

const TIME_BETWEEN_ATTEMPTS: Duration = Duration::from_millis(5);

/// Returns the tokens that remain in this minute and in this month.
fn remaining_tokens(gate: &Gate<MemoryStore>, team: &str) -> [u64; 2] {
    let descriptor = Descriptor::new([("team", team)]).with_cost("tokens", 1);
    let decision = gate.peek(&Request::new("default", descriptor));
    let tokens = decision.limits().filter(|status| status.rule_name() == "tokens");
    let remaining: Vec<u64> = tokens.map(|status| status.remaining()).collect();
    remaining.try_into().unwrap()
}

async fn wait_for_remaining_tokens(gate: &Gate<MemoryStore>, team: &str, expected: [u64; 2]) {
    for _ in 0..MAX_ATTEMPTS {
        if remaining_tokens(gate, team) == expected {
            return;
        }
        tokio::time::sleep(TIME_BETWEEN_ATTEMPTS).await;
    }
    assert_eq!(remaining_tokens(gate, team), expected);
}

async fn complete(http: &TestClient, team: &str, max_tokens: u64) -> (u16, String) {
    let request = http.request("/v1/completions").method("POST");
    let request = request.header("x-team", team).header("x-max-tokens", max_tokens);
    let response = http.send(request).await;
    (response.status, response.body.to_string())
}

/// Begins a stream, and reads its first token.
async fn begin_stream(http: &TestClient, team: &str, max_tokens: u64) -> TcpStream {
    let mut connection = TcpStream::connect(http.address).await.unwrap();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: a\r\nx-team: {team}\r\nx-max-tokens: {max_tokens}\r\n\r\n"
    );
    connection.write_all(head.as_bytes()).await.unwrap();
    let mut received = Vec::new();
    while !received.windows(5).any(|window| window == b"word ") {
        assert!(connection.read_buf(&mut received).await.unwrap() > 0);
    }
    connection
}

#[tokio::test]
async fn used_tokens_are_charged_when_response_has_ended() {
    let gate = service::new_gate().unwrap();
    let http = serve(service::app(gate.clone())).await;
    let (status, words) = complete(&http, "a", 40).await;
    assert_eq!((status, words.matches("word").count()), (200, 20));
    wait_for_remaining_tokens(&gate, "a", [100_000 - 20, 10_000_000 - 20]).await;
    let (status, problem) = complete(&http, "a", 100_000).await;
    assert_eq!(status, 429, "the estimate exceeds the tokens of this minute: {problem}");
    assert_eq!(complete(&http, "", 40).await.0, 429, "without a team");
}

#[tokio::test]
async fn third_stream_waits_until_another_has_ended() {
    let gate = service::new_gate().unwrap();
    let http = serve(service::app(gate.clone())).await;
    let first = begin_stream(&http, "a", 40_000).await;
    let _second = begin_stream(&http, "a", 40_000).await;
    assert_eq!(remaining_tokens(&gate, "a")[0], 20_000, "both estimates are charged");
    let (status, problem) = complete(&http, "a", 2).await;
    assert_eq!(status, 429, "{problem}");
    assert_eq!(complete(&http, "b", 2).await.0, 200, "another team");
    drop(first);
    for attempt in 0.. {
        // A second has ten requests.
        tokio::time::sleep(Duration::from_millis(150)).await;
        if complete(&http, "a", 2).await.0 == 200 {
            break;
        }
        assert!(attempt < 60, "the stream of a disconnected client stays in flight");
    }
    assert!(remaining_tokens(&gate, "a")[0] > 40_000, "the first client pays for its tokens only");
}
