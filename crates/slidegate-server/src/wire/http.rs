//! The HTTP listeners: the way of a call from its request to its response, and the paths.
//!
//! Requests for an [`Endpoint`] do not pass through axum's router. The router allocates several boxes per layer and
//! request, which takes long compared with a decision in memory. Other paths use the router.
//!
//! To add a path, add it to [`health_and_openapi_routes`] or [`Endpoint`], and describe it in [`AVAILABLE_PATHS_TEXT`]
//! and in `docs/reference/openapi.json`. A test checks that they contain every path. Paths for operators belong in
//! [`admin`].

pub mod admin;
mod auth;
mod body;
mod connection;
mod json;

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{HeaderName, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};

use self::auth::ForwardAuthRequest;
pub use self::auth::{ProxyTrust, RepeatedHeaders};
use self::body::CallBody;
use self::connection::add_connection_close_header;
pub use self::connection::{HttpHandler, HttpProtocol};
use super::rls::{self, ParsedMessage};
use crate::connections::LargeCallThread;
use crate::connections::bodies::BufferedBody;
use crate::decide::Service;
use crate::json::{parse, repair_json};
use crate::permits::body::{PermitBody, ReleaseResponse, RenewResponse};
use crate::render::problem::{HttpProblem, method_not_allowed, path_not_found};
use crate::render::{JsonResponse, ResponseRenderer, render_json};
use crate::reservations::body::{SettleBody, SettleResponse};
use crate::telemetry::metrics::ListenerKind;
use crate::telemetry::recorder::{RequestRecorder, TraceHeaders};
use crate::telemetry::results::ResponseWithResult;

/// The OpenAPI document of the HTTP listener. The file is a link to `docs/reference/openapi.json`, because the package
/// of this crate contains only files below the folder of the crate.
const OPENAPI_DOCUMENT: &str = include_str!("http/openapi.json");

/// The paths of both listeners, for a response to a request for another path.
const AVAILABLE_PATHS_TEXT: &str = "--http serves POST /v1/check, /v1/peek, /v1/report, /v1/reserve, /v1/settle, /v1/release, \
    /v1/renew and /json, any method of /v1/auth, and GET /v1/openapi.json, /healthz, /readyz and /healthcheck; --admin \
    serves GET /metrics, /v1/top, /v1/cluster, /healthz, /readyz and /healthcheck, and POST /v1/explain";

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

    /// Returns the maximum size of a body in bytes whose request is handled on the thread of its connection. Such a
    /// request takes less time than a few small requests.
    pub fn max_small_body_bytes(self) -> usize {
        match self {
            // The bound is low, because a descriptor takes only 40 bytes, and is decided like a request of its own.
            Self::Json => 1024,
            _ => 16 * 1024,
        }
    }

    /// Returns `true` if the endpoint accepts the method. `/v1/auth` accepts every method, since proxies use the method
    /// of their client.
    pub fn allows_method(self, method: &Method) -> bool {
        matches!(self, Self::Auth) || method == Method::POST
    }

    /// Returns the name of the trace span of a request.
    pub fn span_name(self) -> &'static str {
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

/// The handler of all requests to the HTTP listener: decisions, health and the OpenAPI document. A large call shares
/// the state on another thread.
pub struct HttpService(Arc<HttpServiceState>);

struct HttpServiceState {
    service: Arc<Service>,
    renderer: ResponseRenderer,
    recorder: RequestRecorder,
    proxy_trust: ProxyTrust,
    large_calls: LargeCallThread,
    router: Router,
}

impl HttpServiceState {
    /// Responds to a call: parses it, decides, and renders the decision. Bodies are parsed as JSON whatever the
    /// `Content-Type` says, since `curl -d` sends a different type.
    async fn respond(
        &self,
        endpoint: Endpoint,
        head: &Parts,
        body: &[u8],
        peer: SocketAddr,
    ) -> Result<ResponseWithResult<Response>, HttpProblem> {
        let (service, renderer) = (&self.service, &self.renderer);
        let policy = service.active_policy();
        // Invalid UTF-8 is replaced here, because the parsed call borrows the text.
        let text = &*repair_json(body);
        match endpoint {
            Endpoint::Check | Endpoint::Peek | Endpoint::Report | Endpoint::Reserve => {
                let body = CallBody::parse(endpoint, text)?;
                let decided = service.decide(&policy, &body.to_call(endpoint)).await?;
                if matches!(endpoint, Endpoint::Reserve) {
                    renderer.render_reservation(&decided)
                } else {
                    renderer.render_check(&decided)
                }
            }
            Endpoint::Auth => {
                let request = ForwardAuthRequest::parse(head, peer, &self.proxy_trust, &policy)?;
                let decided = service.decide(&policy, &request.to_call()).await?;
                renderer.render_forward_auth(&decided, request.deny_status())
            }
            Endpoint::Json => {
                let message = ParsedMessage::parse(rls::json::parse(text)?)?;
                let decided = service.decide(&policy, &message.to_call()).await?;
                json::render(renderer, &message, &decided)
            }
            // Boxed, so that the futures of these rare calls do not enlarge the future of every call.
            Endpoint::Settle => {
                let body: SettleBody<'_> = parse(text)?;
                Box::pin(service.settle(&body.reservation, &body.actual_costs())).await?;
                renderer.render_success(&SettleResponse { settled: true })
            }
            Endpoint::Release => {
                let body: PermitBody<'_> = parse(text)?;
                let released = Box::pin(service.release_permit(&body.permit)).await?;
                renderer.render_success(&ReleaseResponse { released })
            }
            Endpoint::Renew => {
                let body: PermitBody<'_> = parse(text)?;
                let ttl = Box::pin(service.renew_permit(&body.permit)).await?;
                renderer.render_success(&RenewResponse::new(ttl))
            }
        }
    }

    /// Responds to a call, and records it in metrics and traces.
    async fn respond_and_record(
        &self,
        endpoint: Endpoint,
        head: &Parts,
        body: &[u8],
        peer: SocketAddr,
    ) -> Result<ResponseWithResult<Response>, HttpProblem> {
        let headers = if matches!(endpoint, Endpoint::Auth) {
            TraceHeaders::Forwarded(&head.headers)
        } else {
            TraceHeaders::Direct(&head.headers)
        };
        let response = pin!(self.respond(endpoint, head, body, peer));
        self.recorder.record(endpoint.span_name(), headers, response).await
    }
}

impl HttpService {
    /// Creates the service.
    pub fn new(
        service: Arc<Service>,
        renderer: ResponseRenderer,
        proxy_trust: ProxyTrust,
        large_calls: LargeCallThread,
    ) -> Self {
        let router = health_and_openapi_routes()
            .into_iter()
            .fold(Router::new(), |router, (path, methods)| router.route(path, methods))
            .method_not_allowed_fallback(method_not_allowed)
            .fallback(async |uri| path_not_found(&uri, AVAILABLE_PATHS_TEXT))
            .with_state(service.clone());
        let recorder = RequestRecorder::new(service.telemetry(), ListenerKind::Http);
        let state =
            HttpServiceState { service, renderer, recorder, proxy_trust, large_calls, router };
        Self(Arc::new(state))
    }

    /// Responds to a request for an endpoint. A large call is handled on another thread.
    async fn respond_to_call(
        &self,
        endpoint: Endpoint,
        head: Parts,
        body: Result<BufferedBody, HttpProblem>,
        peer: SocketAddr,
    ) -> Response {
        let state = &self.0;
        let body = match body {
            Ok(_) if !endpoint.allows_method(&head.method) => {
                let problem = method_not_allowed(head.method.clone(), head.uri.clone()).await;
                Err(problem.with_allow_header("POST"))
            }
            body => body,
        };
        let response = match body {
            Ok(body) if body.bytes.len() > endpoint.max_small_body_bytes() => {
                let owned = state.clone();
                let call = async move {
                    owned.respond_and_record(endpoint, &head, &body.bytes, peer).await
                };
                let response = Box::pin(state.large_calls.handle(call)).await;
                response.unwrap_or_else(|panicked| {
                    let problem = HttpProblem::internal(panicked);
                    state.recorder.count_rejected(problem.result());
                    Err(problem)
                })
            }
            Ok(body) => state.respond_and_record(endpoint, &head, &body.bytes, peer).await,
            Err(problem) => {
                state.recorder.count_rejected(problem.result());
                Err(problem)
            }
        };
        response.map_or_else(IntoResponse::into_response, |counted| counted.response)
    }
}

impl HttpHandler for HttpService {
    async fn respond(
        &self,
        head: Parts,
        body: Result<BufferedBody, HttpProblem>,
        peer: SocketAddr,
    ) -> Response {
        let mut response = match Endpoint::from_path(head.uri.path()) {
            Some(endpoint) => self.respond_to_call(endpoint, head, body, peer).await,
            // Boxed, because this future is large and rarely used.
            None => Box::pin(self.0.router.respond(head, body, peer)).await,
        };
        if self.0.service.health().is_draining() {
            add_connection_close_header(&mut response);
        }
        response
    }
}

/// Returns the routes for health checks and the OpenAPI document, which return no decisions.
fn health_and_openapi_routes() -> [(&'static str, MethodRouter<Arc<Service>>); 4] {
    [
        ("/v1/openapi.json", get(openapi_document)),
        ("/healthz", get(healthz)),
        ("/readyz", get(readyz)),
        ("/healthcheck", get(healthcheck)),
    ]
}

async fn openapi_document() -> ([(HeaderName, &'static str); 1], &'static str) {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI_DOCUMENT)
}

/// Responds with status 200 while the server is alive.
async fn healthz() -> &'static str {
    "ok"
}

/// Responds with status 200 if the server is ready, else with 503. The body contains the reasons.
async fn readyz(
    State(service): State<Arc<Service>>,
) -> Result<(StatusCode, JsonResponse), HttpProblem> {
    let readiness = service.readiness();
    let is_ready = readiness.is_ready();
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Ok((status, render_json(&readiness)?))
}

/// Responds as `/healthcheck` of Envoy's reference server, for probes that were written for it: with `OK` and status
/// 200 if the server is ready, else with 500.
async fn healthcheck(State(service): State<Arc<Service>>) -> (StatusCode, &'static str) {
    if service.readiness().is_ready() {
        (StatusCode::OK, "OK")
    } else {
        (StatusCode::INTERNAL_SERVER_ERROR, "not ready; GET /readyz has the reasons")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn openapi_document_describes_every_path() {
        let document: Value = serde_json::from_str(OPENAPI_DOCUMENT).unwrap();
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
        let described: BTreeSet<&str> =
            document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
        let paths = Endpoint::ALL.into_iter().map(Endpoint::as_str);
        assert_eq!(
            described,
            paths.chain(health_and_openapi_routes().map(|(path, _)| path)).collect()
        );
        for path in described {
            assert!(AVAILABLE_PATHS_TEXT.contains(path), "{path}");
        }
    }
}
