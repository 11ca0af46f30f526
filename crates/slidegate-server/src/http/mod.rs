//! The HTTP listeners: dispatch of paths to handlers, and limits on requests.
//!
//! To add a path, add it to [`health_and_openapi_routes`] or [`Endpoint`], and describe it in `openapi`. A test checks
//! that `openapi` describes every path. Paths for operators belong in [`admin`].

pub mod admin;
mod auth;
mod body;
mod check_request;
mod endpoints;
mod fast_path;
mod health;
mod hyper_errors;
mod json;
mod openapi;
mod paths;
mod protocol;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderValue, Request, header};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{MethodRouter, get};
use hyper::body::Incoming;

pub use self::auth::ProxyTrust;
pub use self::check_request::{PermitRequest, ReserveRequest, SettleRequest};
use self::endpoints::{DecisionEndpoints, Endpoint};
use self::fast_path::CompleteRequest;
pub use self::protocol::{HttpClient, HttpHandler, HttpProtocol};
pub use self::stream::ClientDisconnect;
use crate::rendering::ResponseRenderer;
use crate::request_handler::RequestHandler;
use crate::service::Service;
use crate::telemetry::metrics::ListenerKind;

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
            .method_not_allowed_fallback(paths::method_not_allowed)
            .fallback(paths::http_not_found)
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
    async fn respond(&self, request: Request<Incoming>, client: &HttpClient) -> Response {
        let mut response = match Endpoint::from_request(&request) {
            Some(endpoint) => self.endpoints.handle(endpoint, request, client, &self.service).await,
            // Boxed, because this future is large and rarely used.
            None => Box::pin(self.router.respond(request, client)).await,
        };
        if self.service.health().is_draining() {
            add_connection_close_header(&mut response);
        }
        response
    }

    fn try_respond(&self, request: &CompleteRequest<'_>, message: &mut Vec<u8>) -> bool {
        request.path == Endpoint::Check.as_str()
            && !self.service.health().is_draining()
            && self.endpoints.try_check(request.body, message)
    }
}

/// Adds the header `Connection: close`, so that the client opens another connection for its next request. If the
/// connection closed without this header, the client could not know whether its last request was processed.
fn add_connection_close_header(response: &mut Response) {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
}

/// Returns the routes for health checks and the OpenAPI document, which return no decisions. Each path is described in
/// [`openapi`].
fn health_and_openapi_routes() -> [(&'static str, MethodRouter<Arc<Service>>); 3] {
    [
        ("/v1/openapi.json", get(openapi::handler())),
        ("/healthz", get(health::healthz)),
        ("/readyz", get(health::readyz)),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn openapi_document_describes_every_path() {
        let document = openapi::document();
        let described: BTreeSet<&str> =
            document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
        let paths = Endpoint::ALL.into_iter().map(Endpoint::as_str);
        assert_eq!(
            described,
            paths.chain(health_and_openapi_routes().map(|(path, _)| path)).collect()
        );
    }
}
