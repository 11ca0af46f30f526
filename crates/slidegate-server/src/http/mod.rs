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
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderName, HeaderValue, Request, header};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{MethodRouter, get};
use hyper::body::Incoming;

pub use self::auth::ProxyTrust;
use self::endpoints::{DecisionEndpoints, Endpoint};
pub use self::protocol::{HttpHandler, HttpProtocol};
pub use self::request_body::{PermitRequest, ReserveRequest, SettleRequest};
use crate::rendering::ResponseRenderer;
use crate::rendering::problem::{method_not_allowed, path_not_found};
use crate::request_handler::RequestHandler;
use crate::service::Service;
use crate::telemetry::metrics::ListenerKind;

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
    endpoints: DecisionEndpoints,
    router: Router,
}

impl HttpService {
    /// Creates the service. `client_timeout` is the maximum time to read a request body.
    pub fn new(
        service: Arc<Service>,
        renderer: ResponseRenderer,
        proxy_trust: ProxyTrust,
        client_timeout: Duration,
    ) -> Self {
        let handler = RequestHandler::new(service.clone(), renderer, ListenerKind::Http);
        let router = health_and_openapi_routes()
            .into_iter()
            .fold(Router::new(), |router, (path, methods)| router.route(path, methods))
            .method_not_allowed_fallback(method_not_allowed)
            .fallback(async |uri| path_not_found(&uri, PATHS))
            .layer(from_fn_with_state(client_timeout, body::buffer_body))
            .with_state(service.clone());
        Self {
            service,
            endpoints: DecisionEndpoints::new(handler, proxy_trust, client_timeout),
            router,
        }
    }
}

impl HttpHandler for HttpService {
    async fn respond(&self, request: Request<Incoming>, peer: SocketAddr) -> Response {
        let mut response = match Endpoint::from_request(&request) {
            Some(endpoint) => self.endpoints.handle(endpoint, request, peer, &self.service).await,
            // Boxed, because this future is large and rarely used.
            None => Box::pin(self.router.respond(request, peer)).await,
        };
        if self.service.health().is_draining() {
            add_connection_close_header(&mut response);
        }
        response
    }
}

/// Adds the header `Connection: close`, so that the client opens another connection for its next request. If the
/// connection closed without this header, the client could not know whether its last request was processed.
fn add_connection_close_header(response: &mut Response) {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
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
