//! Authentication of messages between nodes. Each message proves that its sender has the cluster's key, and is accepted
//! only once.
//!
//! Messages are not encrypted: an eavesdropper can read counters of key fingerprints and the member list. Without the
//! key, an attacker cannot forge, change or replay messages.
//!
//! - A **datagram** contains its sender's incarnation and a counter that is derived from the sender's clock. Even a
//!   node that has just started can thus recognize an old datagram. See [`DatagramSealer`] and [`DatagramOpener`].
//! - A **stream** begins with a [handshake](start_handshake) in which both sides contribute a random nonce. The nonces
//!   determine one key per direction. Then numbered frames follow: see [`FrameSealer`] and [`FrameOpener`].
//!
//! This module has no I/O and reads no clock.

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

/// Version of all authenticated message formats. Nodes of different versions cannot communicate.
pub const VERSION: u8 = 1;

/// Size of a MAC (full HMAC-SHA256), in bytes.
const MAC_BYTES: usize = 32;
