//! Messages as bytes. Not tonic's own codec: it calls what a client got wrong an error of the server, and
//! has eight kilobytes ready for each answer.

use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use crate::rls::{RateLimitRequest, RateLimitResponse};

/// Bytes that are ready for a message: most need no more.
const INITIAL_BUFFER_BYTES: usize = 1024;

/// Bytes that are gathered before they are sent.
const YIELD_THRESHOLD_BYTES: usize = 32 * 1024;

/// Reads requests, and writes responses.
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
        BufferSettings::new(INITIAL_BUFFER_BYTES, YIELD_THRESHOLD_BYTES)
    }
}

impl Decoder for RateLimitCodec {
    type Item = RateLimitRequest;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<RateLimitRequest>, Status> {
        let message = RateLimitRequest::decode(buffer);
        message.map(Some).map_err(|error| Status::invalid_argument(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(INITIAL_BUFFER_BYTES, YIELD_THRESHOLD_BYTES)
    }
}
