//! Status of the replication engine and its peers.

use std::time::Duration;

use crate::node_info::NodeInfo;
use crate::replicated_counters::FlushSeq;

/// Status of a cluster, as known to one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineStatus {
    /// Identity of this node.
    pub local_node: NodeInfo,
    /// Whether this node is waiting for a member that knows the cluster.
    pub is_joining: bool,
    /// Whether this node is settled: all other members, or voters that are more than half of all members, have
    /// acknowledged its frames.
    pub is_settled: bool,
    /// Whether this node and the members that it can reach are a majority of the cluster.
    pub is_majority: bool,
    /// The number of the last flush of this node, which is a broadcast of changed counters.
    pub flush: FlushSeq,
    /// Number of invalid frames from nodes that are not members.
    pub rejected_frames: u64,
    /// The other members.
    pub members: Vec<PeerStatus>,
}

/// Status of one other member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Identity of the member.
    pub node: NodeInfo,
    /// Whether the member is alive.
    pub liveness: Liveness,
    /// Whether the member counts towards a majority.
    pub is_voter: bool,
    /// The last flush that the member has acknowledged.
    pub acknowledged_flush: FlushSeq,
    /// Age of the oldest flush that the member has not acknowledged; zero if the member has acknowledged all flushes.
    pub lag: Duration,
    /// Number of the current epoch of the stream to the member.
    pub epochs: u64,
    /// Frames sent to the member.
    pub sent: FrameTraffic,
    /// Frames received from the member.
    pub received: FrameTraffic,
    /// Number of received frames that were invalid.
    pub rejected_frames: u64,
    /// Number of received updates whose timestamp was too far in the future.
    pub rejected_updates: u64,
}

/// Whether a member is alive or silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// The member was seen recently.
    Alive,
    /// The member has been silent for this duration.
    Silent(Duration),
}

/// Number of frames sent in one direction, and their bytes without the overhead of the transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameTraffic {
    /// Number of frames.
    pub frames: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl FrameTraffic {
    pub(super) fn count_frame(&mut self, bytes: usize) {
        self.frames += 1;
        self.bytes += bytes as u64;
    }
}
