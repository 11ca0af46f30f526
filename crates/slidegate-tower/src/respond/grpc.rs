//! The response to denied gRPC calls: status headers without a body.

use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Response, StatusCode};
use slidegate::Reason;

use super::{Denial, Respond};
use crate::extract::RequestHead;

/// A responder for gRPC calls.
///
/// The response consists of headers without a body: with the status `RESOURCE_EXHAUSTED`, with `UNAVAILABLE` if the
/// store is unavailable, with `INVALID_ARGUMENT` if the request is malformed, or with `INTERNAL` if the denial has the
/// status of a [missing extension](crate::RateLimitLayer::missing_extension_status). The message has the reason. The
/// rate-limit headers of the layer, including `retry-after`, are metadata of the call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Grpc;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const INVALID_ARGUMENT: u16 = 3;
const RESOURCE_EXHAUSTED: u16 = 8;
const INTERNAL: u16 = 13;
const UNAVAILABLE: u16 = 14;
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

/// Returns the gRPC status code of a denial, and its reason as a percent-encoded message.
fn status_and_message(denial: &Denial<'_>) -> (u16, &'static str) {
    match denial.reason() {
        None => (INVALID_ARGUMENT, "the%20cost%20is%20not%20a%20whole%20number"),
        Some(Reason::StoreUnavailable) => (UNAVAILABLE, "temporary%20reduced%20capacity"),
        Some(Reason::MissingAttribute) => match denial.missing_extension() {
            None => {
                (RESOURCE_EXHAUSTED, "a%20value%20that%20a%20limit%20counts%20by%20is%20missing")
            }
            Some(_) => {
                let code = if denial.is_server_error() { INTERNAL } else { RESOURCE_EXHAUSTED };
                (
                    code,
                    "the%20server%20has%20not%20added%20a%20value%20that%20a%20limit%20counts%20by",
                )
            }
        },
        Some(_) if denial.status() == StatusCode::SERVICE_UNAVAILABLE => {
            (UNAVAILABLE, "quota%20exceeded")
        }
        Some(_) => (RESOURCE_EXHAUSTED, "quota%20exceeded"),
    }
}

pub fn grpc_response<B: Default>(denial: &Denial<'_>) -> Response<B> {
    let (code, message) = status_and_message(denial);
    let mut response = Response::new(B::default());
    let headers = response.headers_mut();
    let content_type = denial.head().headers.get(CONTENT_TYPE).cloned();
    headers.insert(CONTENT_TYPE, content_type.unwrap_or(HeaderValue::from_static(GRPC_MEDIA_TYPE)));
    headers.insert(GRPC_STATUS, HeaderValue::from(code));
    headers.insert(GRPC_MESSAGE, HeaderValue::from_static(message));
    response
}
