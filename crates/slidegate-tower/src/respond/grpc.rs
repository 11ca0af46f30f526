//! The response to denied gRPC calls: status headers without a body.

use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Response, StatusCode};

use super::{Denial, Respond};
use crate::extract::RequestHead;

/// A responder for gRPC calls.
///
/// The response consists of headers without a body: with the status `RESOURCE_EXHAUSTED`, with `UNAVAILABLE` if the
/// store is unavailable, or with `INVALID_ARGUMENT` if the request is malformed. The rate-limit headers of the layer,
/// including `retry-after`, are metadata of the call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Grpc;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_MEDIA_TYPE: &str = "application/grpc";

impl<B: Default> Respond<B> for Grpc {
    fn respond(&self, denial: &Denial<'_>) -> Response<B> {
        grpc_response(denial)
    }
}

pub fn is_grpc(head: RequestHead<'_>) -> bool {
    let media_type = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    media_type.is_some_and(|media_type| media_type.starts_with(GRPC_MEDIA_TYPE.as_bytes()))
}

pub fn grpc_response<B: Default>(denial: &Denial<'_>) -> Response<B> {
    let (code, message) = match denial.status() {
        StatusCode::TOO_MANY_REQUESTS => (8, "quota%20exceeded"),
        StatusCode::SERVICE_UNAVAILABLE => (14, "temporary%20reduced%20capacity"),
        _ => (3, "the%20cost%20is%20not%20a%20whole%20number"),
    };
    let mut response = Response::new(B::default());
    let headers = response.headers_mut();
    let content_type = denial.head().headers.get(CONTENT_TYPE).cloned();
    headers.insert(CONTENT_TYPE, content_type.unwrap_or(HeaderValue::from_static(GRPC_MEDIA_TYPE)));
    headers.insert(GRPC_STATUS, HeaderValue::from(code));
    headers.insert(GRPC_MESSAGE, HeaderValue::from_static(message));
    response
}
