//! The HTTP paths that return decisions.
//!
//! Requests for these paths do not pass through axum's router. The router allocates several boxes per layer and
//! request, which takes long compared with a decision in memory. Other paths use the router.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::http::Method;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use slidegate::{Decision, PermitChange};

use super::auth::{ForwardAuthRequest, ProxyTrust};
use super::json;
use super::request_body::{CheckRequest, PeekRequest, ReportRequest, parse};
use crate::body_budget::BufferedBody;
use crate::client_text::repair_json;
use crate::connections::LargeCalls;
use crate::rendering::problem::{HttpProblem, method_not_allowed};
use crate::rendering::{CountedResponse, ResponseRenderer};
use crate::request_handler::{Call, Operation, RequestHandler, TraceHeaders};
use crate::service::Service;
use crate::service::permits::PermitToken;
use crate::telemetry::metrics::ListenerKind;

/// An HTTP path that returns decisions. `docs/reference/openapi.json` describes every endpoint.
#[derive(Clone, Copy)]
pub enum Endpoint {
    Check,
    Peek,
    Report,
    Reserve,
    Settle,
    Release,
    Renew,
    Auth,
    Json,
}

impl Endpoint {
    /// All endpoints.
    pub const ALL: [Self; 9] = [
        Self::Check,
        Self::Peek,
        Self::Report,
        Self::Reserve,
        Self::Settle,
        Self::Release,
        Self::Renew,
        Self::Auth,
        Self::Json,
    ];

    /// Returns the URL path of the endpoint.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Check => "/v1/check",
            Self::Peek => "/v1/peek",
            Self::Report => "/v1/report",
            Self::Reserve => "/v1/reserve",
            Self::Settle => "/v1/settle",
            Self::Release => "/v1/release",
            Self::Renew => "/v1/renew",
            Self::Auth => "/v1/auth",
            Self::Json => "/json",
        }
    }

    /// Returns the endpoint with this path, or `None` if there is none.
    pub fn from_path(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|endpoint| endpoint.as_str() == path)
    }

    /// Returns the maximum size of a body in bytes whose request is handled on the thread of its connection. It takes
    /// less time than a few small requests.
    fn max_small_body_bytes(self) -> usize {
        match self {
            // A descriptor takes 40 bytes, and is decided like a request of its own.
            Self::Json => 1024,
            _ => 16 * 1024,
        }
    }

    /// Returns `true` if the endpoint accepts the method. `/v1/auth` accepts every method, since proxies use the method
    /// of their client.
    fn allows_method(self, method: &Method) -> bool {
        matches!(self, Self::Auth) || method == Method::POST
    }

    /// Returns the name of the trace span of a request.
    fn span_name(self) -> &'static str {
        match self {
            Self::Check => "slidegate.check",
            Self::Peek => "slidegate.peek",
            Self::Report => "slidegate.report",
            Self::Reserve => "slidegate.reserve",
            Self::Settle => "slidegate.settle",
            Self::Release => "slidegate.release",
            Self::Renew => "slidegate.renew",
            Self::Auth => "slidegate.auth",
            Self::Json => "slidegate.should_rate_limit",
        }
    }
}

/// The handler of all requests for an [`Endpoint`].
pub struct DecisionEndpoints {
    handler: RequestHandler,
    service: Arc<Service>,
    proxy_trust: ProxyTrust,
    large_calls: LargeCalls,
}

impl DecisionEndpoints {
    /// Creates the handler.
    pub fn new(
        service: Arc<Service>,
        renderer: ResponseRenderer,
        proxy_trust: ProxyTrust,
        large_calls: LargeCalls,
    ) -> Self {
        let handler = RequestHandler::new(service.clone(), renderer, ListenerKind::Http);
        Self { handler, service, proxy_trust, large_calls }
    }

    /// Handles a request and counts its result.
    pub async fn handle(
        self: &Arc<Self>,
        endpoint: Endpoint,
        head: Parts,
        body: Result<BufferedBody, HttpProblem>,
        peer: SocketAddr,
    ) -> Response {
        let body = match body {
            Ok(_) if !endpoint.allows_method(&head.method) => {
                let problem = method_not_allowed(head.method.clone(), head.uri.clone()).await;
                Err(problem.with_allow("POST"))
            }
            body => body,
        };
        let result = match body {
            Ok(body) if body.bytes.len() > endpoint.max_small_body_bytes() => {
                let endpoints = self.clone();
                let call =
                    async move { endpoints.decide(endpoint, &head, &body.bytes, peer).await };
                let result = Box::pin(self.large_calls.handle(call)).await;
                result.unwrap_or_else(|panicked| Err(HttpProblem::internal(panicked)))
            }
            Ok(body) => self.decide(endpoint, &head, &body.bytes, peer).await,
            Err(problem) => {
                self.handler.count_rejected(problem.result());
                Err(problem)
            }
        };
        result.map_or_else(IntoResponse::into_response, |counted| counted.response)
    }

    // Bodies are parsed as JSON whatever the `Content-Type` says, since `curl -d` sends a different type.
    async fn decide(
        &self,
        endpoint: Endpoint,
        head: &Parts,
        body: &[u8],
        peer: SocketAddr,
    ) -> Result<CountedResponse, HttpProblem> {
        // Repaired here, because the parsed request borrows the text.
        let text = &*repair_json(body);
        let call = |operation, trace| Call::new(operation, endpoint.span_name(), trace);
        let trace = TraceHeaders::Direct(&head.headers);
        match endpoint {
            Endpoint::Check => {
                let call = call(Operation::CheckWithin, trace).returning_permit();
                self.handler.handle(call, || parse::<CheckRequest<'_>>(text), render_check).await
            }
            Endpoint::Peek => {
                let call = call(Operation::Peek, trace);
                self.handler.handle(call, || parse::<PeekRequest<'_>>(text), render_check).await
            }
            // Boxed, because these futures are larger than the others, and rarer.
            Endpoint::Reserve => {
                let reserve = self.handler.reserve(endpoint.span_name(), trace, || parse(text));
                Box::pin(reserve).await
            }
            Endpoint::Settle => {
                let settle = self.handler.settle(endpoint.span_name(), trace, || parse(text));
                Box::pin(settle).await
            }
            Endpoint::Release | Endpoint::Renew => {
                let change = match endpoint {
                    Endpoint::Release => PermitChange::Release,
                    _ => PermitChange::Renew,
                };
                let change =
                    self.handler.change_permit(change, endpoint.span_name(), trace, || parse(text));
                Box::pin(change).await
            }
            Endpoint::Report => {
                let call = call(Operation::Report, trace);
                self.handler.handle(call, || parse::<ReportRequest<'_>>(text), render_check).await
            }
            Endpoint::Auth => {
                let policy = self.service.active_policy();
                let call = call(
                    Operation::CheckWithPolicy(&policy),
                    TraceHeaders::Forwarded(&head.headers),
                );
                let parse =
                    || ForwardAuthRequest::parse(head, peer, &self.proxy_trust, policy.headers());
                let render = |renderer: &ResponseRenderer,
                              request: &ForwardAuthRequest<'_>,
                              decision: &Decision<'_>,
                              _: Option<&PermitToken>| {
                    renderer.render_auth(decision, request.deny_status())
                };
                self.handler.handle(call, parse, render).await
            }
            Endpoint::Json => {
                let call = call(Operation::Check, trace).returning_permit();
                self.handler.handle(call, || json::parse(text), json::render).await
            }
        }
    }
}

fn render_check<Q>(
    renderer: &ResponseRenderer,
    _: &Q,
    decision: &Decision<'_>,
    permit: Option<&PermitToken>,
) -> Result<CountedResponse, HttpProblem> {
    renderer.render_check(decision, permit)
}
