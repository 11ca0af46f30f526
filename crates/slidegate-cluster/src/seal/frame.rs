//! Sealed frames of a stream, in one direction.
//!
//! ```text
//! payload length  counter  payload  MAC of all preceding bytes
//!        4           8        n      32      bytes; numbers are big-endian
//! ```
//!
//! The key depends on the session and the direction, and the counter must be the next number. So a frame is accepted
//! only at its position in its stream, and never by its own sender.

use bytes::{Buf, Bytes, BytesMut};
use ring::hmac;

use super::{MAC_BYTES, RejectReason, key};

/// Maximum size of a payload, in bytes.
pub const MAX_FRAME: usize = 64 * 1024;

const LENGTH_BYTES: usize = 4;

/// Bytes before the payload.
const HEADER_BYTES: usize = LENGTH_BYTES + 8;

/// Bytes that a seal adds to a payload.
pub const FRAME_OVERHEAD: usize = HEADER_BYTES + MAC_BYTES;

/// A sealer for the frames of one direction of a stream.
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
    /// Returns [`RejectReason::TooLong`] for more than [`MAX_FRAME`] bytes, and appends nothing.
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

/// An opener for the frames of one direction of a stream.
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

    /// Removes the next complete frame from the received bytes.
    ///
    /// # Errors
    /// Returns the reason for which the frame is rejected. All later frames of the stream are rejected for the same
    /// reason.
    pub fn open(&mut self, arrived: &mut BytesMut) -> Result<Option<Bytes>, RejectReason> {
        if let Some(reason) = self.failure {
            return Err(reason);
        }
        self.open_next(arrived).inspect_err(|reason| self.failure = Some(*reason))
    }

    fn open_next(&mut self, arrived: &mut BytesMut) -> Result<Option<Bytes>, RejectReason> {
        let Some(length) = arrived.get(..LENGTH_BYTES) else { return Ok(None) };
        let length = usize::try_from(key::read_be(length)).map_err(|_| RejectReason::TooLong)?;
        if length > MAX_FRAME {
            return Err(RejectReason::TooLong);
        }
        if arrived.len() < length + FRAME_OVERHEAD {
            return Ok(None);
        }
        let mut frame = arrived.split_to(length + FRAME_OVERHEAD).freeze();
        let mac = frame.split_off(HEADER_BYTES + length);
        key::verify(&self.key, &frame, &mac)?;
        if key::read_be(&frame[LENGTH_BYTES..HEADER_BYTES]) != self.next_counter {
            return Err(RejectReason::Replayed);
        }
        self.next_counter += 1;
        frame.advance(HEADER_BYTES);
        Ok(Some(frame))
    }

    /// Checks that the stream may end with the received bytes that were not removed.
    ///
    /// # Errors
    /// Returns [`RejectReason::Truncated`] if the stream ends inside a frame.
    pub fn check_end(&self, arrived: &BytesMut) -> Result<(), RejectReason> {
        if arrived.is_empty() { Ok(()) } else { Err(RejectReason::Truncated) }
    }
}
