//! Tests of reservations, which are settled when the response body has ended.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Extension;
use axum::http::StatusCode;
use axum::routing::get;
use http_body::Frame;
use slidegate::{Descriptor, Gate, Request, Store};
use slidegate_tower::{Attributes, OnDrop, RateLimitLayer, RequestReservation, Settlement};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::layer::fixture::serve;

const POLICY: &str = "
defaults: { algorithm: sliding_log }
rules:
  - { name: requests, limits: [10/min], cost: 1 }
  - { name: tokens, limits: [10000/min], cost: tokens }
";

/// Maximum number of polls until a background task has settled a charge.
const MAX_POLLS: u32 = 1_000;

/// A body of parts of ten tokens. It sets the number of tokens so far.
struct TokenStream {
    reservation: RequestReservation,
    tokens: u64,
    /// The number of tokens at which the stream ends, or at which it stops without an end.
    end: Result<u64, u64>,
}

impl HttpBody for TokenStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.end {
            Ok(end) if self.tokens == end => return Poll::Ready(None),
            Err(end) if self.tokens == end => return Poll::Pending,
            _ => self.tokens += 10,
        }
        self.reservation.set(Settlement::NamedCost { cost: "tokens", units: self.tokens });
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"part ")))))
    }
}

/// Returns a service that reserves 1,000 tokens for each request.
fn new_app<S: Store>(gate: std::sync::Arc<Gate<S>>, on_drop: OnDrop) -> Router {
    let stream = |end| {
        async move |Extension(reservation): Extension<RequestReservation>| {
            Body::new(TokenStream { reservation, tokens: 0, end })
        }
    };
    let attributes = Attributes::new().named_cost("tokens", |_| Some(1_000));
    let layer = RateLimitLayer::new(gate, attributes).on_drop(on_drop).reserve();
    Router::new()
        .route("/ends", get(stream(Ok(30))))
        .route("/stops", get(stream(Err(20))))
        .route("/ignores", get(async || StatusCode::NO_CONTENT))
        .layer(layer)
}

/// Waits until these numbers of requests and tokens remain.
async fn wait_for_remaining<S: Store>(gate: &Gate<S>, expected: [u64; 2]) {
    let request = || Request::new("default", Descriptor::new([]).with_cost("tokens", 1));
    for _ in 0..MAX_POLLS {
        let decision = gate.peek_async(&request()).await;
        let remaining: Vec<u64> = decision.limits().map(|limit| limit.remaining()).collect();
        if remaining == expected {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("{:?}", gate.peek_async(&request()).await);
}

#[tokio::test]
async fn streamed_response_is_settled_at_its_end() {
    with_both_stores!(|fixture| {
        let gate = fixture.gate(POLICY);
        let http = serve(new_app(gate.clone(), OnDrop::Keep)).await;
        let response = http.get("/ends").await;
        assert_eq!((response.status, &*response.body), (200, "part part part "), "{fixture:?}");
        wait_for_remaining(&gate, [9, 9_970]).await;
    });
}

#[tokio::test]
async fn disconnecting_client_pays_for_streamed_tokens() {
    with_both_stores!(|fixture| {
        let gate = fixture.gate(POLICY);
        let http = serve(new_app(gate.clone(), OnDrop::Keep)).await;
        let mut connection = TcpStream::connect(http.address).await.unwrap();
        connection.write_all(b"GET /stops HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        let mut received = Vec::new();
        while received.windows(5).filter(|window| window == b"part ").count() < 2 {
            assert!(connection.read_buf(&mut received).await.unwrap() > 0);
        }
        // While the response is streamed, the estimate is charged.
        wait_for_remaining(&gate, [9, 9_000]).await;
        drop(connection);
        wait_for_remaining(&gate, [9, 9_980]).await;
    });
}

#[tokio::test]
async fn ignored_reservation_is_kept_or_reverted() {
    with_both_stores!(|fixture| {
        for (on_drop, expected) in [(OnDrop::Keep, [9, 9_000]), (OnDrop::Revert, [10, 10_000])] {
            fixture.clock.advance(crate::layer::fixture::MINUTE * 2);
            let gate = fixture.gate(POLICY);
            let http = serve(new_app(gate.clone(), on_drop)).await;
            assert_eq!(http.get("/ignores").await.status, 204);
            wait_for_remaining(&gate, expected).await;
        }
    });
}
