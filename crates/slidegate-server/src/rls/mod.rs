//! Envoy's rate limit service, version 3: its messages, what is asked in them, and what they answer. Knows
//! no transport: gRPC and `POST /json` ask here.

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
use crate::watch::metrics::RequestResult;

pub use self::v3::{RateLimitRequest, RateLimitResponse};

/// The types of the messages, made from `proto/`.
#[allow(missing_docs, clippy::all, reason = "generated")]
mod messages {
    include!(concat!(env!("OUT_DIR"), "/messages.rs"));
}

/// The files of the messages, as a `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The name of the service.
pub const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// The request makes no sense.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct InvalidRequest(String);

/// What is answered, and how that is counted.
pub struct CountedMessage {
    pub message: RateLimitResponse,
    pub result: RequestResult,
}

/// Decides what a message asks: all of its descriptors as one.
pub async fn decide(
    handler: &RequestHandler,
    scope: &RequestScope<'_>,
    message: RateLimitRequest,
) -> Result<CountedMessage, InvalidRequest> {
    let request = ParsedRequest::parse(message)?;
    let ruling = scope.check(request.domain(), &request.to_gate_request()).await;
    let message = response::build(request.descriptor_count(), &ruling, handler.renderer());
    Ok(CountedMessage { message, result: classify(&ruling) })
}

fn classify(ruling: &Ruling) -> RequestResult {
    let decision = ruling.decision();
    match decision.is_allowed() {
        true => RequestResult::Allowed,
        false if decision.is_refused() => RequestResult::StoreUnavailable,
        false => RequestResult::Denied,
    }
}
