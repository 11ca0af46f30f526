//! The HTTP face: which path leads where.

mod answer;
mod ask;
mod body;
mod check;
mod connections;
mod health;
mod openapi;
mod problem;
mod refusal;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use slidegate::Gate;

pub use self::connections::Connections;
use crate::wire::Store;

/// Bytes that a request's body may have.
const MAX_BODY: usize = 64 * 1024;

/// Bytes that a request's head may have: its first line and its headers.
const MAX_HEAD: usize = 16 * 1024;

/// Every path that the server answers. `openapi` describes them.
pub fn router(gate: Gate<Store>, patience: Duration) -> Router {
    Router::new()
        .route("/v1/check", post(check::check))
        .route("/v1/peek", post(check::peek))
        .route("/v1/openapi.json", get(openapi::served()))
        .route("/healthz", get(health::healthz))
        .fallback(problem::not_found)
        .method_not_allowed_fallback(problem::method_not_allowed)
        // Also where nobody wants it: what is left unread would end the connection.
        .layer(from_fn_with_state(patience, body::read_whole))
        .with_state(Arc::new(gate))
}
