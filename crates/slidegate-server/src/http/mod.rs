//! The HTTP faces: which path leads where.

pub mod admin;
mod answer;
mod ask;
mod auth;
mod body;
mod caller;
mod check;
mod counts;
mod farewell;
mod health;
mod json;
mod openapi;
mod problem;
mod protocol;
mod refusal;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use axum::middleware::{from_fn_with_state, map_response_with_state};
use axum::routing::{MethodRouter, any, get, post};
use axum::{Extension, Router};

pub use self::answer::Answers;
pub use self::ask::{MAX_ATTRIBUTES, MAX_NAME, MAX_VALUE};
pub use self::auth::Believed;
pub use self::protocol::Http;
use crate::decisions::Decisions;
use crate::service::Service;
use crate::watch::metrics::Face;

/// Bytes that a request's body may have.
pub const MAX_BODY: usize = 64 * 1024;

/// Bytes that a request's head may have: its first line and its headers.
pub const MAX_HEAD: usize = 16 * 1024;

type Path<S> = (&'static str, MethodRouter<Arc<S>>);

/// The paths that decide. `openapi` describes them.
fn deciding(believed: Believed) -> [Path<Decisions>; 4] {
    [
        ("/v1/check", post(check::check)),
        ("/v1/peek", post(check::peek)),
        ("/v1/auth", any(auth::auth).layer(Extension(Arc::new(believed)))),
        ("/json", post(json::json)),
    ]
}

/// All others. `openapi` describes them.
fn telling() -> [Path<Service>; 3] {
    [
        ("/v1/openapi.json", get(openapi::served())),
        ("/healthz", get(health::healthz)),
        ("/readyz", get(health::readyz)),
    ]
}

/// `patience` is how long a body may take.
pub fn router(
    service: Arc<Service>,
    answers: Answers,
    believed: Believed,
    patience: Duration,
) -> Router {
    let decisions = Arc::new(Decisions::new(service.clone(), answers, Face::Http));
    // A body is read also where nobody wants it: what is left unread would end the connection.
    let deciding = routes(deciding(believed))
        .layer(from_fn_with_state(patience, body::read_whole))
        .layer(from_fn_with_state(decisions.clone(), counts::count))
        .with_state(decisions);
    let telling = routes(telling())
        .fallback(problem::not_found)
        .layer(from_fn_with_state(patience, body::read_whole))
        .with_state(service.clone());
    deciding.merge(telling).layer(map_response_with_state(service, farewell::say))
}

fn routes<S: Send + Sync + 'static>(paths: impl IntoIterator<Item = Path<S>>) -> Router<Arc<S>> {
    let routes = paths
        .into_iter()
        .fold(Router::new(), |router, (path, methods)| router.route(path, methods));
    routes.method_not_allowed_fallback(problem::method_not_allowed)
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
        let believed = Believed::new("none".parse().unwrap());
        let paths = deciding(believed).map(|(path, _)| path).into_iter();
        assert_eq!(described, paths.chain(telling().map(|(path, _)| path)).collect());
    }
}
