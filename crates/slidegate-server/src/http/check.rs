//! `/v1/check` and `/v1/peek`: may this request pass?

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;

use super::Decisions;
use super::ask::Ask;
use super::caller::Caller;
use super::problem::Problem;

// `Bytes`, not `Json`: that would insist on a content type, and `curl -d` sends another.

/// Charges what the request costs, if it may pass.
pub async fn check(
    State(face): State<Arc<Decisions>>,
    caller: Caller,
    body: Bytes,
) -> Result<Response, Problem> {
    let _timer = face.counts.timer();
    let span = face.span("slidegate.check", caller);
    let decide = async {
        let ask = Ask::read(&body)?;
        let ruling = face.service.check(&ask.request()).await;
        span.ruled(ask.domain(), &ruling);
        face.answers.respond(&ruling)
    };
    face.told(&span, span.around(decide).await)
}

/// Says what `check` would say, and charges nothing.
pub async fn peek(
    State(face): State<Arc<Decisions>>,
    caller: Caller,
    body: Bytes,
) -> Result<Response, Problem> {
    let _timer = face.counts.timer();
    let span = face.span("slidegate.peek", caller);
    let decide = async {
        let ask = Ask::read(&body)?;
        let ruling = face.service.peek(&ask.request()).await;
        span.ruled(ask.domain(), &ruling);
        face.answers.respond(&ruling)
    };
    face.told(&span, span.around(decide).await)
}
