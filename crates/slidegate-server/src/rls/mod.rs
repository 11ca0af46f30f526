//! Envoy's rate limit service, version 3: its messages, and the responses to them.
//!
//! This module is independent of the transport. gRPC and `POST /json` both use it.

pub mod json;
mod messages;
mod request;
mod response;
mod unit;

use slidegate::Decision;

pub use self::json::JsonError;
pub use self::messages::{
    FILE_DESCRIPTOR_SET, InvalidRequest, RateLimitRequest, RateLimitResponse, RateLimitService,
    RateLimitServiceServer, SERVICE_NAME,
};
pub use self::request::ParsedMessage;
use crate::rendering::ResponseRenderer;
use crate::service::permits::PermitToken;
use crate::telemetry::request_result::{RequestResult, request_result_of_decision};

/// A response message, and the result that metrics record for it.
pub struct CountedMessage {
    pub message: RateLimitResponse,
    pub result: RequestResult,
}

/// Builds the response to a request from its decision. `permit` is the permit that the request got.
pub fn respond(
    renderer: &ResponseRenderer,
    request: &ParsedMessage,
    decision: &Decision<'_>,
    permit: Option<&PermitToken>,
) -> CountedMessage {
    let message = response::build_response(request, decision, permit, renderer);
    CountedMessage { message, result: request_result_of_decision(decision) }
}
