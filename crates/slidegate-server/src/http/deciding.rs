//! The paths that decide. Below axum's router, which makes several boxes of each layer for each request: beside a
//! decision in memory that is much.

use std::net::SocketAddr;
use std::time::Duration;

use axum::http::{Method, Request};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;

use super::answer::Reply;
use super::auth::Believed;
use super::problem::{self, Problem};
use super::{auth, body, check, json};
use crate::decisions::{Decisions, Told};

/// A path that decides. `openapi` describes them.
#[derive(Clone, Copy)]
pub enum Path {
    Check,
    Peek,
    Report,
    Auth,
    Json,
}

impl Path {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Check, Self::Peek, Self::Report, Self::Auth, Self::Json];

    /// As it stands in a request.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Check => "/v1/check",
            Self::Peek => "/v1/peek",
            Self::Report => "/v1/report",
            Self::Auth => "/v1/auth",
            Self::Json => "/json",
        }
    }

    /// The path that a request is for, if it is one of these.
    pub fn of<B>(request: &Request<B>) -> Option<Self> {
        Self::ALL.into_iter().find(|path| path.as_str() == request.uri().path())
    }

    /// Whether the path knows the method. Proxies ask with that of their client.
    fn takes(self, method: &Method) -> bool {
        matches!(self, Self::Auth) || method == Method::POST
    }
}

/// Answers on them.
pub struct Deciding {
    decisions: Decisions,
    believed: Believed,
    patience: Duration,
}

impl Deciding {
    /// `patience` is how long a body may take.
    pub fn new(decisions: Decisions, believed: Believed, patience: Duration) -> Self {
        Self { decisions, believed, patience }
    }

    /// Answers a request for the path, and counts that. A body is read also where nobody wants it: what is left unread
    /// would end the connection.
    pub async fn answer(
        &self,
        path: Path,
        request: Request<Incoming>,
        peer: SocketAddr,
    ) -> Response {
        let answer = self.decide(path, request, peer).await;
        if let Some(metrics) = self.decisions.metrics() {
            metrics.answered(answer.answered());
        }
        answer.map_or_else(IntoResponse::into_response, |reply| reply.response)
    }

    async fn decide(
        &self,
        path: Path,
        request: Request<Incoming>,
        peer: SocketAddr,
    ) -> Result<Reply, Problem> {
        let (head, body) = request.into_parts();
        let body = body::whole(&head.headers, body, self.patience).await?;
        if !path.takes(&head.method) {
            let refusal = problem::method_not_allowed(head.method, head.uri).await;
            return Err(refusal.allowing("POST"));
        }
        let face = &self.decisions;
        let caller = match path {
            Path::Auth => face.forwarded_caller(&head.headers),
            Path::Check | Path::Peek | Path::Report | Path::Json => face.caller(&head.headers),
        };
        match path {
            Path::Check => check::check(face, caller, &body).await,
            Path::Peek => check::peek(face, caller, &body).await,
            Path::Report => check::report(face, caller, &body).await,
            Path::Auth => auth::auth(face, &self.believed, caller, peer, &head).await,
            Path::Json => json::json(face, caller, &body).await,
        }
    }
}
