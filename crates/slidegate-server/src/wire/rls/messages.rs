//! Envoy's rate limit service, version 3, and its messages, which the test `generated` compiles from `proto/`.
//!
//! The file has no functions: `request` and `response` convert the messages, and `json` writes them as JSON.

pub use self::generated::envoy;
pub use self::generated::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
pub use self::generated::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

/// The definitions of all messages, as an encoded `FileDescriptorSet` of Protocol Buffers.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("../../../generated/descriptors.bin");

/// The full name of the gRPC service.
pub const SERVICE_NAME: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// Message types, generated from `proto/`.
#[allow(missing_docs, clippy::all, reason = "generated")]
mod generated {
    include!("../../../generated/messages.rs");
}
