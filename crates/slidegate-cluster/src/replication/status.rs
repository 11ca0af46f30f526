//! What the engine tells of itself and the others, for people.

use std::time::Duration;

use slidegate::Timestamp;

use super::settings::elapsed_us;
use super::{NodeInfo, ReplicationEngine};
use crate::replicated_counters::FlushSeq;

/// How it stands with the cluster, as one node knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineStatus {
    /// This node.
    pub local_node: NodeInfo,
    /// Whether it still waits for somebody who knows the cluster.
    pub is_joining: bool,
    /// Whether everybody whom it counted has acknowledged it, once.
    pub is_settled: bool,
    /// Whether it hears a majority.
    pub is_majority: bool,
    /// Its last flush.
    pub flush: FlushSeq,
    /// Frames that were no messages, of nodes that are no members.
    pub rejected_frames: u64,
    /// The others.
    pub members: Vec<PeerStatus>,
}

/// How it stands with one of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Which.
    pub node: NodeInfo,
    /// Whether it is there.
    pub liveness: Liveness,
    /// Whether it may be counted on in a partition.
    pub is_voter: bool,
    /// The last flush that it has acknowledged.
    pub acknowledged_flush: FlushSeq,
    /// Time since the oldest flush was told that it has not acknowledged. None is waited for: zero.
    pub lag: Duration,
    /// How often the stream to it was begun.
    pub epochs: u64,
    /// Frames sent to it.
    pub sent: FrameTraffic,
    /// Frames heard of it.
    pub received: FrameTraffic,
    /// Frames of it that were no messages.
    pub rejected_frames: u64,
    /// Tallies of it that were dated too far in the future.
    pub rejected_updates: u64,
}

/// Whether a member is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// It is.
    Alive,
    /// It has not been heard of for so long.
    Silent(Duration),
}

/// Frames that went one way, and their bytes without what a transport adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameTraffic {
    /// Frames.
    pub frames: u64,
    /// Bytes.
    pub bytes: u64,
}

impl FrameTraffic {
    pub(super) fn record(&mut self, bytes: usize) {
        self.frames += 1;
        self.bytes += bytes as u64;
    }
}

impl EngineStatus {
    pub(super) fn new(engine: &ReplicationEngine, now: Timestamp) -> Self {
        let since = |moment: Timestamp| Duration::from_micros(elapsed_us(moment, now));
        let members = engine.peers.values().map(|peer| PeerStatus {
            node: peer.node.clone(),
            liveness: peer.silent_since.map_or(Liveness::Alive, |at| Liveness::Silent(since(at))),
            is_voter: peer.is_voter(),
            acknowledged_flush: peer.acknowledged_flush,
            lag: Duration::from_micros(engine.lag_us(peer.acknowledged_flush, now)),
            epochs: peer.outgoing.sent.epoch,
            sent: peer.sent,
            received: peer.received,
            rejected_frames: peer.rejected_frames,
            rejected_updates: peer.rejected_updates,
        });
        Self {
            local_node: engine.local_node.clone(),
            is_joining: engine.is_joining,
            is_settled: engine.is_settled,
            is_majority: engine.majority_since.is_some(),
            flush: engine.flush,
            rejected_frames: engine.rejected_frames,
            members: members.collect(),
        }
    }
}
