//! Tells clients of a server that stops which answer of a connection is its last.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::Response;

use crate::service::Service;

/// A layer by which a client that asks once more, while the server stops, is answered and then asks elsewhere.
/// Were its connection just closed, it could not know whether its question was heard.
pub async fn say(State(service): State<Arc<Service>>, mut response: Response) -> Response {
    if service.health().is_draining() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
