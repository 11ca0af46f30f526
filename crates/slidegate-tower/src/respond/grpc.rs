//! Denials of gRPC calls.

use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Response, StatusCode};

use super::{Denial, Respond};
use crate::extract::Head;

/// Answers gRPC calls: `RESOURCE_EXHAUSTED`, `UNAVAILABLE` if only the lack of a store denies, or
/// `INVALID_ARGUMENT`, in headers without a body. The headers that the layer adds are metadata of the call,
/// `retry-after` among them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Grpc;

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const MEDIA_TYPE: &str = "application/grpc";

impl<B: Default> Respond<B> for Grpc {
    fn respond(&self, denial: &Denial<'_>) -> Response<B> {
        respond(denial)
    }
}

pub fn is_grpc(head: Head<'_>) -> bool {
    let media_type = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    media_type.is_some_and(|media_type| media_type.starts_with(MEDIA_TYPE.as_bytes()))
}

pub fn respond<B: Default>(denial: &Denial<'_>) -> Response<B> {
    let (code, message) = match denial.status() {
        StatusCode::TOO_MANY_REQUESTS => (8, "quota%20exceeded"),
        StatusCode::SERVICE_UNAVAILABLE => (14, "temporary%20reduced%20capacity"),
        _ => (3, "the%20cost%20is%20no%20whole%20number"),
    };
    let mut response = Response::new(B::default());
    let headers = response.headers_mut();
    let asked = denial.head().headers.get(CONTENT_TYPE).cloned();
    headers.insert(CONTENT_TYPE, asked.unwrap_or(HeaderValue::from_static(MEDIA_TYPE)));
    headers.insert(STATUS, HeaderValue::from(code));
    headers.insert(MESSAGE, HeaderValue::from_static(message));
    response
}
