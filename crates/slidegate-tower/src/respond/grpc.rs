//! Denials of gRPC calls, as status headers without a body.

use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Response, StatusCode};

use super::{Denial, Respond};
use crate::extract::RequestHead;

/// Responds to gRPC calls in headers without a body: with `RESOURCE_EXHAUSTED`, with `UNAVAILABLE` if the store is
/// unavailable, or with `INVALID_ARGUMENT` if the request is malformed. The headers of the layer, `retry-after`
/// included, are metadata of the call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Grpc;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const MEDIA_TYPE: &str = "application/grpc";

impl<B: Default> Respond<B> for Grpc {
    fn respond(&self, denial: &Denial<'_>) -> Response<B> {
        respond(denial)
    }
}

pub fn is_grpc(head: RequestHead<'_>) -> bool {
    let media_type = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    media_type.is_some_and(|media_type| media_type.starts_with(MEDIA_TYPE.as_bytes()))
}

pub fn respond<B: Default>(denial: &Denial<'_>) -> Response<B> {
    let (code, message) = match denial.status() {
        StatusCode::TOO_MANY_REQUESTS => (8, "quota%20exceeded"),
        StatusCode::SERVICE_UNAVAILABLE => (14, "temporary%20reduced%20capacity"),
        _ => (3, "the%20cost%20is%20not%20a%20whole%20number"),
    };
    let mut response = Response::new(B::default());
    let headers = response.headers_mut();
    let content_type = denial.head().headers.get(CONTENT_TYPE).cloned();
    headers.insert(CONTENT_TYPE, content_type.unwrap_or(HeaderValue::from_static(MEDIA_TYPE)));
    headers.insert(GRPC_STATUS, HeaderValue::from(code));
    headers.insert(GRPC_MESSAGE, HeaderValue::from_static(message));
    response
}
