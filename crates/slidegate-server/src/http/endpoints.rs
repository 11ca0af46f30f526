//! The HTTP paths that return decisions.
//!
//! Requests for these paths do not pass through axum's router. The router allocates several boxes per layer and
//! request, which takes long compared with a decision in memory. Other paths use the router.

use std::net::SocketAddr;
use std::time::Duration;

use axum::http::{Method, Request};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;

use super::auth::ProxyTrust;
use super::{auth, body, check, json};
use crate::rendering::CountedResponse;
use crate::rendering::problem::{self, HttpProblem};
use crate::request_handler::RequestHandler;
use crate::telemetry::request_result::ClassifyResponse;

/// An HTTP path that returns decisions. The module [`super::openapi`] describes every endpoint.
#[derive(Clone, Copy)]
pub enum Endpoint {
    Check,
    Peek,
    Report,
    Auth,
    Json,
}

impl Endpoint {
    /// All endpoints.
    pub const ALL: [Self; 5] = [Self::Check, Self::Peek, Self::Report, Self::Auth, Self::Json];

    /// Returns the URL path of the endpoint.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Check => "/v1/check",
            Self::Peek => "/v1/peek",
            Self::Report => "/v1/report",
            Self::Auth => "/v1/auth",
            Self::Json => "/json",
        }
    }

    /// Returns the endpoint for the path of a request, or `None` if no endpoint has this path.
    pub fn from_request<B>(request: &Request<B>) -> Option<Self> {
        Self::ALL.into_iter().find(|endpoint| endpoint.as_str() == request.uri().path())
    }

    /// Returns `true` if the endpoint accepts the method. `/v1/auth` accepts every method, since proxies use the method
    /// of their client.
    fn allows_method(self, method: &Method) -> bool {
        matches!(self, Self::Auth) || method == Method::POST
    }
}

/// The handler of all requests for an [`Endpoint`].
pub struct DecisionEndpoints {
    handler: RequestHandler,
    proxy_trust: ProxyTrust,
    client_timeout: Duration,
}

impl DecisionEndpoints {
    /// Creates the handler. `client_timeout` is the maximum time to read a request body.
    pub fn new(handler: RequestHandler, proxy_trust: ProxyTrust, client_timeout: Duration) -> Self {
        Self { handler, proxy_trust, client_timeout }
    }

    /// Handles a request and counts its result. Reads the body even if the endpoint does not use it, because hyper
    /// closes a connection with an unread body.
    pub async fn handle(
        &self,
        endpoint: Endpoint,
        request: Request<Incoming>,
        peer: SocketAddr,
    ) -> Response {
        let result = self.call_endpoint_handler(endpoint, request, peer).await;
        if let Some(metrics) = self.handler.metrics() {
            metrics.count_result(result.request_result());
        }
        result.map_or_else(IntoResponse::into_response, |counted| counted.response)
    }

    async fn call_endpoint_handler(
        &self,
        endpoint: Endpoint,
        request: Request<Incoming>,
        peer: SocketAddr,
    ) -> Result<CountedResponse, HttpProblem> {
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
