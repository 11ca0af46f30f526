//! The HTTP face: which path leads where.

mod answer;
mod ask;
mod check;
mod health;
mod problem;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use slidegate::Gate;

use crate::wire::Store;

pub use answer::Answers;

/// Bytes that a request's body may have.
const MAX_BODY: usize = 64 * 1024;

/// What the paths share: who decides, and how that is told.
struct Face {
    gate: Gate<Store>,
    answers: Answers,
}

/// Every path that the server answers.
pub fn router(gate: Gate<Store>, answers: Answers) -> Router {
    Router::new()
        .route("/v1/check", post(check::check))
        .route("/v1/peek", post(check::peek))
        .route("/healthz", get(health::healthz))
        .fallback(problem::not_found)
        .method_not_allowed_fallback(problem::method_not_allowed)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(Arc::new(Face { gate, answers }))
}
