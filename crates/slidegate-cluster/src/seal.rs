//! Seals: what nodes send each other shows that its sender has the cluster's key, and is not opened twice.
//!
//! Nothing is hidden by them: whoever listens can read counts of fingerprints, and who is a member. What nobody can
//! do without the key is to say something, to change it, or to have it heard again.
//!
//! - A **datagram** carries its sender's incarnation and a counter that follows the sender's clock, so that even a
//!   node that has just started knows an old one. See [`DatagramSealer`] and [`DatagramOpener`].
//! - A **stream** begins with a [handshake](dial) of both sides, each with a fresh random number, from which comes a
//!   key for each direction. What follows are frames that are counted: see [`FrameSealer`] and [`FrameOpener`].
//!
//! Nothing here does I/O or reads a clock.

mod datagram;
mod frame;
mod handshake;
mod key;
mod reject_reason;
#[cfg(test)]
mod tests;

pub use datagram::{
    DATAGRAM_OVERHEAD, DatagramOpener, DatagramSealer, MAX_DATAGRAM, MAX_SENDERS, OpenedDatagram,
};
pub use frame::{FRAME_OVERHEAD, FrameOpener, FrameSealer, MAX_FRAME};
pub use handshake::{
    CONFIRMATION_BYTES, ClientHandshake, HELLO_HEADER_BYTES, MAX_NAME_BYTES, Nonce, PeerIdentity,
    ServerHandshake, Session, accept_handshake, hello_length, start_handshake,
};
pub use key::{ClusterKey, MIN_KEY_BYTES, ShortKeyError};
pub use reject_reason::{RejectCounters, RejectReason};

/// The format of all that is sealed. Nodes of different versions do not understand each other.
pub const VERSION: u8 = 1;

/// Bytes of a MAC: HMAC-SHA256 in full.
const MAC_BYTES: usize = 32;
