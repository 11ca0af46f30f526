//! The response to denied requests with problem details (RFC 9457).

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use serde_json::json;
use slidegate::headers::Problem;

use super::{Denial, Respond, grpc};

/// The default responder.
///
/// The response contains problem details (RFC 9457) of the types that the draft of the rate-limit headers defines. The
/// status is the `deny_status` of the rule, 429 by default; 503 if the store is unavailable; 400 if the request is
/// malformed. gRPC calls get the same response as from [`Grpc`](super::Grpc).
#[derive(Clone, Copy, Debug, Default)]
pub struct ProblemJson;

impl<B: From<Bytes> + Default> Respond<B> for ProblemJson {
    fn respond(&self, denial: &Denial<'_>) -> Response<B> {
        if denial.is_grpc() {
            return grpc::grpc_response(denial);
        }
        let mut response = Response::new(B::from(problem_json_body(denial)));
        *response.status_mut() = denial.status();
        let media_type = HeaderValue::from_static(Problem::CONTENT_TYPE);
        response.headers_mut().insert(CONTENT_TYPE, media_type);
        response
    }
}

/// The detail of a denial for a missing extension. Only the log has the name of the extension, because clients cannot
/// add it.
const MISSING_EXTENSION_DETAIL: &str = "the server has not added a value that a limit counts by";

fn problem_json_body(denial: &Denial<'_>) -> Bytes {
    let json = match denial.problem() {
        Some(problem) => serde_json::to_vec(&problem),
        None => serde_json::to_vec(&json!({
            "type": "about:blank",
            "title": denial.status().canonical_reason(),
            "status": denial.status().as_u16(),
            "detail": denial.malformed_detail().unwrap_or(MISSING_EXTENSION_DETAIL),
        })),
    };
    // Strings and numbers always serialize. If they ever did not, the status alone would be sent.
    json.unwrap_or_default().into()
}
