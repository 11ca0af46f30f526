//! Envoy's rate limit service, version 3: its messages, and the responses to them.
//!
//! This module is independent of the transport. gRPC and `POST /json` both use it.

pub mod json;
mod messages;
mod request;
mod response;
mod unit;

pub use self::json::JsonError;
pub use self::messages::{
    FILE_DESCRIPTOR_SET, RateLimitRequest, RateLimitResponse, RateLimitService,
    RateLimitServiceServer, SERVICE_NAME,
};
pub use self::request::ParsedMessage;
pub use self::response::build_response;
