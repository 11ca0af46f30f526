//! A gateway to a language model that streams its responses, with all limits that such a service needs: requests per
//! second, streams in flight, tokens per minute, and a budget of tokens per calendar month.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Extension;
use axum::http::HeaderMap;
use axum::routing::post;
use http_body::Frame;
use slidegate::{Gate, MemoryStore, Policy, PolicyErrors};
use slidegate_tower::{Attributes, RateLimitLayer, RequestReservation, Settlement, extract};
use tokio::time::Interval;

const POLICY: &str = "
rules:
  - name: requests
    per: [team]
    when_missing: deny
    cost: 1
    limits:
      - { name: rate, max: 10, window: 1s }
      - { name: streams, concurrent: 2, permit_ttl: 30s }
  - name: tokens
    per: [team]
    cost: tokens                      # the estimate, until the response has ended
    limits:
      - { name: minute, max: 100000, window: 1m }
      - { name: month, max: 10000000, calendar: month, timezone: Europe/Berlin }
";

/// The estimate for a request that does not state a number of tokens.
const DEFAULT_MAX_TOKENS: u64 = 1_000;

/// The time that the model needs for a token.
const TIME_PER_TOKEN: Duration = Duration::from_millis(2);

/// The response of the model. After each token, it sets the number of tokens so far as the cost of the request, so a client
/// that disconnects pays for the tokens that it has received.
struct ModelResponse {
    reservation: RequestReservation,
    tokens: u64,
    end: u64,
    model: Interval,
}

impl HttpBody for ModelResponse {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.tokens == self.end {
            return Poll::Ready(None);
        }
        ready!(self.model.poll_tick(context));
        self.tokens += 1;
        self.reservation.set(Settlement::NamedCost { cost: "tokens", units: self.tokens });
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"word ")))))
    }
}

/// Returns the largest number of tokens that a request may use. A real service reads it from the body.
fn max_tokens(headers: &HeaderMap) -> u64 {
    let text = headers.get("x-max-tokens").and_then(|value| value.to_str().ok());
    text.and_then(|text| text.parse().ok()).unwrap_or(DEFAULT_MAX_TOKENS)
}

/// Streams a response that needs half of the tokens that were reserved.
async fn complete(
    Extension(reservation): Extension<RequestReservation>,
    headers: HeaderMap,
) -> Body {
    let model = tokio::time::interval(TIME_PER_TOKEN);
    Body::new(ModelResponse { reservation, tokens: 0, end: max_tokens(&headers) / 2, model })
}

pub fn new_gate() -> Result<Arc<Gate<MemoryStore>>, PolicyErrors> {
    Ok(Arc::new(Gate::new(Policy::from_yaml(POLICY)?, MemoryStore::new())))
}

pub fn app(gate: Arc<Gate<MemoryStore>>) -> Router {
    // A real service authenticates its clients, and takes the team from their credentials.
    let attributes = Attributes::new()
        .with("team", extract::header("x-team"))
        .named_cost("tokens", |request| Some(max_tokens(request.headers)));
    let layer = RateLimitLayer::new(gate, attributes)
        .reserve() // the tokens are settled when the response has ended
        .hold_permits(); // a stream is in flight until its response has ended
    Router::new().route("/v1/completions", post(complete)).layer(layer)
}
