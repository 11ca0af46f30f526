//! The paths that decide. Below axum's router, which makes several boxes of each layer for each request: beside a
//! decision in memory that is much.

use std::net::SocketAddr;
use std::time::Duration;

use axum::http::{Method, Request};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;

use super::auth::ProxyTrust;
use super::problem::{self, Problem};
use super::response::CountedResponse;
use super::{auth, body, check, json};
use crate::request_handler::{ClassifyResponse, RequestHandler};

/// A path that decides. `openapi` describes them.
#[derive(Clone, Copy)]
pub enum Endpoint {
    Check,
    Peek,
    Report,
    Auth,
    Json,
}

impl Endpoint {
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
    pub fn from_request<B>(request: &Request<B>) -> Option<Self> {
        Self::ALL.into_iter().find(|endpoint| endpoint.as_str() == request.uri().path())
    }

    /// Whether the path knows the method. Proxies ask with that of their client.
    fn allows_method(self, method: &Method) -> bool {
        matches!(self, Self::Auth) || method == Method::POST
    }
}

/// Answers on them.
pub struct DecisionEndpoints {
    handler: RequestHandler,
    proxy_trust: ProxyTrust,
    client_timeout: Duration,
}

impl DecisionEndpoints {
    /// `client_timeout` is how long a body may take.
    pub fn new(handler: RequestHandler, proxy_trust: ProxyTrust, client_timeout: Duration) -> Self {
        Self { handler, proxy_trust, client_timeout }
    }

    /// Answers a request for the path, and counts that. A body is read also where nobody wants it: what is left unread
    /// would end the connection.
    pub async fn handle(
        &self,
        endpoint: Endpoint,
        request: Request<Incoming>,
        peer: SocketAddr,
    ) -> Response {
        let result = self.decide(endpoint, request, peer).await;
        if let Some(metrics) = self.handler.metrics() {
            metrics.count_result(result.result());
        }
        result.map_or_else(IntoResponse::into_response, |counted| counted.response)
    }

    async fn decide(
        &self,
        endpoint: Endpoint,
        request: Request<Incoming>,
        peer: SocketAddr,
    ) -> Result<CountedResponse, Problem> {
        let (head, body) = request.into_parts();
        let body = body::read_body(&head.headers, body, self.client_timeout).await?;
        if !endpoint.allows_method(&head.method) {
            let problem = problem::method_not_allowed(head.method, head.uri).await;
            return Err(problem.with_allow("POST"));
        }
        let handler = &self.handler;
        let trace = match endpoint {
            Endpoint::Auth => handler.forwarded_trace_context(&head.headers),
            Endpoint::Check | Endpoint::Peek | Endpoint::Report | Endpoint::Json => {
                handler.trace_context(&head.headers)
            }
        };
        match endpoint {
            Endpoint::Check => check::check(handler, trace, &body).await,
            Endpoint::Peek => check::peek(handler, trace, &body).await,
            Endpoint::Report => check::report(handler, trace, &body).await,
            Endpoint::Auth => auth::auth(handler, &self.proxy_trust, trace, peer, &head).await,
            Endpoint::Json => json::json(handler, trace, &body).await,
        }
    }
}
