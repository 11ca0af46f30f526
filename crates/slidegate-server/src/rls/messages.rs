//! Envoy's rate limit service, version 3, and its messages, which `build.rs` generates from `proto/`.
//!
//! The file has no functions: `request` and `response` convert the messages, and `json` writes them as JSON.

use slidegate::OnceError;
use thiserror::Error;

use crate::names::RequestError;
use crate::reservation_token::SealError;

pub use self::generated::envoy;
pub use self::generated::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
pub use self::generated::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

/// The definitions of all messages, as an encoded `FileDescriptorSet` of Protocol Buffers.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The full name of the gRPC service.
pub const SERVICE_NAME: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// The reason why a rate limit request is invalid.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct InvalidRequest(pub String);

impl From<SealError> for InvalidRequest {
    fn from(error: SealError) -> Self {
        Self(error.to_string())
    }
}

impl From<OnceError> for InvalidRequest {
    fn from(error: OnceError) -> Self {
        Self(error.to_string())
    }
}

impl From<RequestError> for InvalidRequest {
    fn from(error: RequestError) -> Self {
        Self(error.to_string())
    }
}

/// Message types generated from `proto/`.
#[allow(missing_docs, clippy::all, reason = "generated")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/messages.rs"));
}
