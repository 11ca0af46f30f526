//! Envoy's rate limit service, version 3: its messages, and the decisions about them.
//!
//! This module is independent of the transport. gRPC and `POST /json` both use it.

pub mod json;
mod messages;
mod request;
mod response;
mod unit;

pub use self::json::JsonError;
pub use self::messages::{
    FILE_DESCRIPTOR_SET, InvalidRequest, RateLimitRequest, RateLimitResponse, SERVICE_NAME,
};
pub use self::request::MAX_DESCRIPTORS;
use self::request::ParsedRequest;
use crate::request_handler::{RequestHandler, RequestScope};
use crate::telemetry::request_result::{RequestResult, request_result_of_ruling};

/// A response message, and the result that metrics record for it.
pub struct CountedMessage {
    pub message: RateLimitResponse,
    pub result: RequestResult,
}

/// Decides about all descriptors of a message as one request, and charges their costs if the request is allowed.
pub async fn decide(
    handler: &RequestHandler,
    scope: &RequestScope<'_>,
    message: RateLimitRequest,
) -> Result<CountedMessage, InvalidRequest> {
    let request = ParsedRequest::parse(message)?;
    let ruling = scope.check(request.domain(), &request.to_gate_request()).await;
    let message = response::build_response(request.descriptor_count(), &ruling, handler.renderer());
    Ok(CountedMessage { message, result: request_result_of_ruling(&ruling) })
}
