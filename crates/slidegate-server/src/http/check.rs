//! `/v1/check` and `/v1/peek`: may this request pass?

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use slidegate::Gate;

use super::answer;
use super::ask::Ask;
use super::problem::Problem;
use crate::wire::Store;

// `Bytes`, not `Json`: that would insist on a content type, and `curl -d` sends another.

/// Charges what the request costs, if it may pass.
pub async fn check(State(gate): State<Arc<Gate<Store>>>, body: Bytes) -> Result<Response, Problem> {
    let ask = Ask::read(&body)?;
    answer::respond(&gate.check(&ask.request()).await)
}

/// Says what `check` would say, and charges nothing.
pub async fn peek(State(gate): State<Arc<Gate<Store>>>, body: Bytes) -> Result<Response, Problem> {
    let ask = Ask::read(&body)?;
    answer::respond(&gate.peek(&ask.request()).await)
}
