//! A gRPC codec for the messages of Envoy's rate limit service.
//!
//! tonic's own codec reports malformed messages of clients as server errors, and allocates eight kilobytes for each
//! response.

use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use crate::rls::{RateLimitRequest, RateLimitResponse};

/// Initial size of a message buffer in bytes, enough for most messages.
const INITIAL_MESSAGE_BUFFER_BYTES: usize = 1024;

/// Size in bytes at which tonic sends the buffered part of a response.
const RESPONSE_SEND_THRESHOLD_BYTES: usize = 32 * 1024;

/// A codec that decodes rate limit requests and encodes rate limit responses.
#[derive(Clone, Copy, Default)]
pub struct RateLimitCodec;

impl Codec for RateLimitCodec {
    type Encode = RateLimitResponse;
    type Decode = RateLimitRequest;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RateLimitCodec {
    type Item = RateLimitResponse;
    type Error = Status;

    fn encode(
        &mut self,
        message: RateLimitResponse,
        buffer: &mut EncodeBuf<'_>,
    ) -> Result<(), Status> {
        message.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(INITIAL_MESSAGE_BUFFER_BYTES, RESPONSE_SEND_THRESHOLD_BYTES)
    }
}

impl Decoder for RateLimitCodec {
    type Item = RateLimitRequest;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<RateLimitRequest>, Status> {
        let message = RateLimitRequest::decode(buffer);
        message.map(Some).map_err(|error| {
            Status::invalid_argument(format!(
                "not a RateLimitRequest of envoy.service.ratelimit.v3: {error}; generate the client from \
                 Envoy's proto files"
            ))
        })
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(INITIAL_MESSAGE_BUFFER_BYTES, RESPONSE_SEND_THRESHOLD_BYTES)
    }
}
