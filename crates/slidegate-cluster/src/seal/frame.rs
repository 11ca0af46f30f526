//! Sealed (authenticated) frames of one direction of a stream: each has a header and a message authentication code
//! (MAC).
//!
//! ```text
//! payload length  counter  payload  MAC of all preceding bytes
//!        4           8        n      32      bytes; numbers are big-endian
//! ```
//!
//! The key depends on the session and the direction, and the counter must be the next number. A frame is thus accepted
//! only at its position in its stream, and never by its own sender.

use bytes::{Buf, Bytes, BytesMut};
use ring::hmac;

use super::{MAC_BYTES, RejectReason, key};

/// Maximum size of the payload of a frame, in bytes.
pub const MAX_FRAME: usize = 64 * 1024;

const FRAME_LENGTH_FIELD_BYTES: usize = 4;

/// Size of the header before the payload of a frame, in bytes.
const FRAME_HEADER_BYTES: usize = FRAME_LENGTH_FIELD_BYTES + 8;

/// Number of bytes that sealing adds to the payload of a frame: header and MAC.
pub const FRAME_OVERHEAD: usize = FRAME_HEADER_BYTES + MAC_BYTES;

/// A sealer for the frames of one direction of a stream. It adds a header and a MAC to each frame.
#[derive(Debug)]
pub struct FrameSealer {
    key: hmac::Key,
    next_counter: u64,
}

impl FrameSealer {
    pub(super) const fn new(key: hmac::Key) -> Self {
        Self { key, next_counter: 0 }
    }

    /// Appends the sealed payload to `sealed`.
    ///
    /// # Errors
    /// Returns [`RejectReason::TooLong`] and appends nothing if the payload has more than [`MAX_FRAME`] bytes.
    pub fn seal(&mut self, payload: &[u8], sealed: &mut Vec<u8>) -> Result<(), RejectReason> {
        let length = u32::try_from(payload.len()).map_err(|_| RejectReason::TooLong)?;
        if payload.len() > MAX_FRAME {
            return Err(RejectReason::TooLong);
        }
        let start = sealed.len();
        sealed.extend_from_slice(&length.to_be_bytes());
        sealed.extend_from_slice(&self.next_counter.to_be_bytes());
        sealed.extend_from_slice(payload);
        let mac = hmac::sign(&self.key, &sealed[start..]);
        sealed.extend_from_slice(mac.as_ref());
        self.next_counter += 1;
        Ok(())
    }
}

/// An opener for the frames of one direction of a stream. It verifies each frame.
#[derive(Debug)]
pub struct FrameOpener {
    key: hmac::Key,
    next_counter: u64,
    failure: Option<RejectReason>,
}

impl FrameOpener {
    pub(super) const fn new(key: hmac::Key) -> Self {
        Self { key, next_counter: 0, failure: None }
    }

    /// Removes the next complete frame from `arrived`, the received bytes, and returns its payload. Returns `None` if
    /// the frame has not arrived completely.
    ///
    /// # Errors
    /// Returns the reason for the rejection of the frame. All later frames of the stream are rejected for the same
    /// reason.
    pub fn open(&mut self, arrived: &mut BytesMut) -> Result<Option<Bytes>, RejectReason> {
        if let Some(reason) = self.failure {
            return Err(reason);
        }
        self.verify_and_take_next_frame(arrived).inspect_err(|reason| self.failure = Some(*reason))
    }

    fn verify_and_take_next_frame(
        &mut self,
        arrived: &mut BytesMut,
    ) -> Result<Option<Bytes>, RejectReason> {
        let Some(length) = arrived.get(..FRAME_LENGTH_FIELD_BYTES) else { return Ok(None) };
        let length =
            usize::try_from(key::read_big_endian_u64(length)).map_err(|_| RejectReason::TooLong)?;
        if length > MAX_FRAME {
            return Err(RejectReason::TooLong);
        }
        if arrived.len() < length + FRAME_OVERHEAD {
            return Ok(None);
        }
        let mut frame = arrived.split_to(length + FRAME_OVERHEAD).freeze();
        let mac = frame.split_off(FRAME_HEADER_BYTES + length);
        key::verify_mac(&self.key, &frame, &mac)?;
        if key::read_big_endian_u64(&frame[FRAME_LENGTH_FIELD_BYTES..FRAME_HEADER_BYTES])
            != self.next_counter
        {
            return Err(RejectReason::Replayed);
        }
        self.next_counter += 1;
        frame.advance(FRAME_HEADER_BYTES);
        Ok(Some(frame))
    }

    /// Checks at the end of the stream that `arrived` contains no part of a frame.
    ///
    /// # Errors
    /// Returns [`RejectReason::Truncated`] if the stream ends inside a frame.
    pub fn check_end(&self, arrived: &BytesMut) -> Result<(), RejectReason> {
        if arrived.is_empty() { Ok(()) } else { Err(RejectReason::Truncated) }
    }
}
