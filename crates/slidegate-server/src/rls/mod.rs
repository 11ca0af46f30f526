//! Envoy's rate limit service, version 3: its messages, and the decisions about them.
//!
//! This module is independent of the transport. gRPC and `POST /json` both use it. `build.rs` generates the message
//! types from `proto/`.

pub mod json;
mod request;
mod response;
mod unit;

use slidegate::Ruling;
use thiserror::Error;

pub use self::json::JsonError;
use self::messages::envoy::service::ratelimit::v3;
pub use self::request::MAX_DESCRIPTORS;
use self::request::ParsedRequest;
use crate::request_handler::{RequestHandler, RequestScope};
use crate::telemetry::metrics::RequestResult;

pub use self::v3::{RateLimitRequest, RateLimitResponse};

/// Message types generated from `proto/`.
#[allow(missing_docs, clippy::all, reason = "generated")]
mod messages {
    include!(concat!(env!("OUT_DIR"), "/messages.rs"));
}

/// The definitions of all messages, as an encoded `FileDescriptorSet` of Protocol Buffers.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The full name of the gRPC service.
pub const SERVICE_NAME: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// The reason why a rate limit request is invalid.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct InvalidRequest(String);

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

fn request_result_of_ruling(ruling: &Ruling) -> RequestResult {
    let decision = ruling.decision();
    match decision.is_allowed() {
        true => RequestResult::Allowed,
        false if decision.is_store_unavailable() => RequestResult::StoreUnavailable,
        false => RequestResult::Denied,
    }
}
