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
use axum::routing::{MethodRouter, get, post};
use slidegate::Gate;

pub use self::answer::Answers;
pub use self::connections::Connections;
use crate::wire::Store;

/// Bytes that a request's body may have.
const MAX_BODY: usize = 64 * 1024;

/// Bytes that a request's head may have: its first line and its headers.
const MAX_HEAD: usize = 16 * 1024;

/// What the paths share: who decides, and how that is told.
struct Face {
    gate: Gate<Store>,
    answers: Answers,
}

/// Every path that the server answers. `openapi` describes them.
fn paths() -> [(&'static str, MethodRouter<Arc<Face>>); 4] {
    [
        ("/v1/check", post(check::check)),
        ("/v1/peek", post(check::peek)),
        ("/v1/openapi.json", get(openapi::served())),
        ("/healthz", get(health::healthz)),
    ]
}

/// `patience` is how long a body may take.
pub fn router(gate: Gate<Store>, answers: Answers, patience: Duration) -> Router {
    paths()
        .into_iter()
        .fold(Router::new(), |router, (path, methods)| router.route(path, methods))
        .fallback(problem::not_found)
        .method_not_allowed_fallback(problem::method_not_allowed)
        // Also where nobody wants it: what is left unread would end the connection.
        .layer(from_fn_with_state(patience, body::read_whole))
        .with_state(Arc::new(Face { gate, answers }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_path_is_described_and_no_other() {
        let document = openapi::document();
        let described: BTreeSet<&str> =
            document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(described, paths().map(|(path, _)| path).into());
    }
}
