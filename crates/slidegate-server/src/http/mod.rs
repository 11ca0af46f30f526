//! The HTTP listeners: dispatch of paths to handlers, and limits on requests.
//!
//! To add a path, add it to [`health_and_openapi_routes`] or [`Endpoint`], and describe it in [`PATHS`] and in
//! `docs/reference/openapi.json`. A test checks that they contain every path. Paths for operators belong in [`admin`].

pub mod admin;
mod auth;
mod body;
mod endpoints;
mod health;
mod json;
mod protocol;
mod request_body;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::http::request::Parts;
use axum::http::{HeaderName, header};
use axum::response::Response;
use axum::routing::{MethodRouter, get};

pub use self::auth::ProxyTrust;
use self::endpoints::{DecisionEndpoints, Endpoint};
use self::protocol::add_connection_close_header;
pub use self::protocol::{HttpHandler, HttpProtocol};
pub use self::request_body::{PermitRequest, ReserveRequest, SettleRequest};
use crate::body_budget::BufferedBody;
use crate::connections::LargeCalls;
use crate::rendering::ResponseRenderer;
use crate::rendering::problem::{HttpProblem, method_not_allowed, path_not_found};
use crate::service::Service;

/// The OpenAPI document of the HTTP listener. The file is a link to `docs/reference/openapi.json`, because the package of
/// this crate contains only files below the folder of the crate.
const OPENAPI_DOCUMENT: &str = include_str!("openapi.json");

/// The paths of both listeners, for a response to a request for another path.
const PATHS: &str = "--http serves POST /v1/check, /v1/peek, /v1/report, /v1/reserve, /v1/settle, /v1/release, \
    /v1/renew and /json, any method of /v1/auth, and GET /v1/openapi.json, /healthz and /readyz; --admin serves GET \
    /metrics, /v1/top, /v1/cluster, /healthz and /readyz, and POST /v1/explain";

/// The handler of all requests to the HTTP listener: decisions, health and the OpenAPI document.
pub struct HttpService {
    service: Arc<Service>,
    endpoints: Arc<DecisionEndpoints>,
    router: Router,
}

impl HttpService {
    /// Creates the service.
    pub fn new(
        service: Arc<Service>,
        renderer: ResponseRenderer,
        proxy_trust: ProxyTrust,
        large_calls: LargeCalls,
    ) -> Self {
        let router = health_and_openapi_routes()
            .into_iter()
            .fold(Router::new(), |router, (path, methods)| router.route(path, methods))
            .method_not_allowed_fallback(method_not_allowed)
            .fallback(async |uri| path_not_found(&uri, PATHS))
            .with_state(service.clone());
        let endpoints = DecisionEndpoints::new(service.clone(), renderer, proxy_trust, large_calls);
        Self { service, endpoints: Arc::new(endpoints), router }
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
            Some(endpoint) => self.endpoints.handle(endpoint, head, body, peer).await,
            // Boxed, because this future is large and rarely used.
            None => Box::pin(self.router.respond(head, body, peer)).await,
        };
        if self.service.health().is_draining() {
            add_connection_close_header(&mut response);
        }
        response
    }
}

/// Returns the routes for health checks and the OpenAPI document, which return no decisions.
fn health_and_openapi_routes() -> [(&'static str, MethodRouter<Arc<Service>>); 3] {
    [
        ("/v1/openapi.json", get(openapi_document)),
        ("/healthz", get(health::healthz)),
        ("/readyz", get(health::readyz)),
    ]
}

async fn openapi_document() -> ([(HeaderName, &'static str); 1], &'static str) {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI_DOCUMENT)
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
            assert!(PATHS.contains(path), "{path}");
        }
    }
}
