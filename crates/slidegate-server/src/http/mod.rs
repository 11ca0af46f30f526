//! The HTTP faces: which path leads where.

pub mod admin;
mod answer;
mod ask;
mod auth;
mod body;
mod check;
mod counts;
mod deciding;
mod farewell;
mod health;
mod json;
mod openapi;
mod problem;
mod protocol;
mod refusal;
mod stream;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{MethodRouter, get};
use hyper::body::Incoming;

pub use self::answer::Answers;
pub use self::auth::{Believed, RepeatedHeaders};
use self::deciding::Deciding;
pub use self::protocol::{Answering, Http};
use crate::decisions::Decisions;
use crate::service::Service;
use crate::watch::metrics::Face;

/// Longest body of a request, in bytes. End clients choose the values in it: it exceeds all that a proxy accepts from
/// them, since a caller may let pass what is refused here.
pub const MAX_BODY: usize = 1024 * 1024;

/// Longest head of a request, in bytes: its first line and its headers. A proxy may hand on all headers of its client.
pub const MAX_HEAD: usize = 64 * 1024;

/// Most headers of a request.
pub const MAX_HEADERS: usize = 500;

/// Answers whoever asks whether a request may pass, and tells how the server is.
pub struct Paths {
    service: Arc<Service>,
    deciding: Deciding,
    telling: Router,
}

impl Paths {
    /// `patience` is how long a body may take.
    pub fn new(
        service: Arc<Service>,
        answers: Answers,
        believed: Believed,
        patience: Duration,
    ) -> Self {
        let decisions = Decisions::new(service.clone(), answers, Face::Http);
        let telling = telling()
            .into_iter()
            .fold(Router::new(), |router, (path, methods)| router.route(path, methods))
            .method_not_allowed_fallback(problem::method_not_allowed)
            .fallback(problem::not_found)
            .layer(from_fn_with_state(patience, body::read_whole))
            .with_state(service.clone());
        Self { service, deciding: Deciding::new(decisions, believed, patience), telling }
    }
}

impl Answering for Paths {
    async fn answer(&self, request: Request<Incoming>, peer: SocketAddr) -> Response {
        let mut response = match deciding::Path::of(&request) {
            Some(path) => self.deciding.answer(path, request, peer).await,
            // In a box: it is large, and rarely asked.
            None => Box::pin(self.telling.answer(request, peer)).await,
        };
        farewell::say(&self.service, &mut response);
        response
    }
}

/// All paths that do not decide. `openapi` describes them.
fn telling() -> [(&'static str, MethodRouter<Arc<Service>>); 3] {
    [
        ("/v1/openapi.json", get(openapi::served())),
        ("/healthz", get(health::healthz)),
        ("/readyz", get(health::readyz)),
    ]
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
        let paths = deciding::Path::ALL.into_iter().map(deciding::Path::as_str);
        assert_eq!(described, paths.chain(telling().map(|(path, _)| path)).collect());
    }
}
