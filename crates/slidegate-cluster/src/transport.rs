//! Transport of replication frames between nodes.
//!
//! Frames may be lost, and sending never waits: the sender must repeat lost updates. [`tcp`] connects machines. One
//! test suite checks the guarantees of [`Transport`], for `tcp` and for a simulated network with seeded faults.

pub mod tcp;

mod link_counters;
mod rejection;

use std::net::SocketAddr;

use bytes::Bytes;

use crate::node_info::NodeInfo;
use crate::pn_counter::Incarnation;

pub use rejection::{RejectCounters, RejectReason};

/// Maximum size of a frame, in bytes.
pub const MAX_FRAME_BYTES: usize = 64 * 1024;

/// An event of a transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransportEvent {
    /// A complete, unchanged frame has arrived. The sender may be a node that is not, or no longer, a peer of this
    /// node.
    Frame {
        /// The incarnation of the sender.
        from: Incarnation,
        /// The content of the frame.
        frame: Bytes,
    },
    /// The link to this peer is up. This event is not repeated without [`TransportEvent::LinkDown`] in between.
    LinkUp(Incarnation),
    /// The link to this peer is down. The last frames may be lost. The transport tries to reconnect.
    LinkDown(Incarnation),
    /// An authenticated node has introduced itself.
    NodeIntroduced(NodeInfo),
}

/// Traffic of all links to and from one node. Counting starts when the node becomes known, and starts again if the node
/// was removed in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkTraffic {
    /// Number of frames sent.
    pub sent_frames: u64,
    /// Number of bytes sent, including keepalives, without the overhead of TLS.
    pub sent_bytes: u64,
    /// Number of frames received.
    pub received_frames: u64,
    /// Number of bytes received, including keepalives, without the overhead of TLS.
    pub received_bytes: u64,
    /// Number of frames dropped because the link was down, the frame was too long, or the peer reads too slowly.
    pub dropped_frames: u64,
}

/// A transport of frames of up to [`MAX_FRAME_BYTES`] bytes. The order of frames between two nodes is preserved only
/// within one link, such as a TCP connection.
pub trait Transport: Send + 'static {
    /// Replaces the set of peers to which links are kept. Links from this node to all other nodes are closed, without a
    /// [`TransportEvent::LinkDown`] or any later link event. Frames that removed peers have sent may still arrive.
    /// Peers without an address are ignored.
    fn set_peers(&mut self, peers: &[NodeInfo]);

    /// Connects to an address once, so that this node and the node there meet. Does not wait:
    /// [`TransportEvent::NodeIntroduced`] follows if the connection and the handshake succeed.
    fn introduce_local_node(&mut self, address: SocketAddr);

    /// Sends a frame to a peer without waiting. The frame is dropped if the link is down, the frame is too long, or the
    /// queue is full.
    fn send(&mut self, to: Incarnation, frame: Bytes);

    /// Waits for the next event. Cancel safe: no event is lost if the future is dropped.
    fn next(&mut self) -> impl Future<Output = TransportEvent> + Send;

    /// Returns the traffic of each node, in no particular order.
    fn traffic(&self) -> Vec<(Incarnation, LinkTraffic)>;
}
