//! Tells clients of a server that stops which answer of a connection is its last.

use axum::http::{HeaderValue, header};
use axum::response::Response;

use crate::service::Service;

/// Lets a client that asks once more, while the server stops, ask elsewhere after this answer. Were its connection just
/// closed, it could not know whether its question was heard.
pub fn say(service: &Service, response: &mut Response) {
    if service.health().is_draining() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
}
