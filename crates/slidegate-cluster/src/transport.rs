//! What carries frames of counts from node to node.
//!
//! A frame may be lost, and what is sent never waits: whoever needs it to arrive sends it again. [`tcp`] carries them
//! between machines, [`channel`] within a process, with bad weather of a given seed. Both keep the promises of
//! [`Transport`], which one suite of tests checks.

pub mod channel;
pub mod tcp;

mod link_counters;

use std::net::SocketAddr;

use bytes::Bytes;

use crate::pn_counter::Incarnation;
pub use crate::seal::MAX_FRAME;

/// A node to keep a link to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerAddress {
    /// Which life of which node.
    pub incarnation: Incarnation,
    /// Where it listens.
    pub address: SocketAddr,
}

/// What a transport tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransportEvent {
    /// A frame has arrived, whole and as it was sent. It may come from a node that is no peer here (yet, or any more).
    Frame {
        /// Who has sent it.
        from: Incarnation,
        /// What it holds.
        frame: Bytes,
    },
    /// What is sent to this peer is carried from now on. Never told twice without [`TransportEvent::LinkDown`] between.
    LinkUp(Incarnation),
    /// Nothing is carried to this peer any more, and what was sent last may be lost. Another link is tried for.
    LinkDown(Incarnation),
}

/// What went over the links to and from one node, since it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkTraffic {
    /// Frames that went out.
    pub sent_frames: u64,
    /// Bytes that went out, seals and signs of life among them.
    pub sent_bytes: u64,
    /// Frames that came in.
    pub received_frames: u64,
    /// Bytes that came in, seals and signs of life among them.
    pub received_bytes: u64,
    /// Frames that were not sent: without a link, or because the peer reads too slowly.
    pub dropped_frames: u64,
}

/// Carries frames of up to [`MAX_FRAME`] bytes. Between two nodes they keep their order only where the links do: of
/// TCP while one link lasts.
pub trait Transport: Send + 'static {
    /// Keeps links to these peers, and to no others. Of a peer that is left out nothing more is told, not even that
    /// its link is down; frames that it sent may still come.
    fn set_peers(&mut self, peers: &[PeerAddress]);

    /// Sends a frame to a peer whose link is up; else it is dropped, and so is one that is too long, or for which there
    /// is no room. Never waits.
    fn send(&mut self, to: Incarnation, frame: Bytes);

    /// What happens next. Nothing is lost if the future is dropped before it is ready.
    fn next(&mut self) -> impl Future<Output = TransportEvent> + Send;

    /// What went to and came from each node, in no order.
    fn traffic(&self) -> Vec<(Incarnation, LinkTraffic)>;
}
