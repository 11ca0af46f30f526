//! What the engine tells of itself and the others, for people.

use std::time::Duration;

use slidegate::Timestamp;

use super::settings::since_us;
use super::{Engine, Node};
use crate::ledger::Flush;

/// How it stands with the cluster, as one node knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// This node.
    pub me: Node,
    /// Whether it still waits for somebody who knows the cluster.
    pub is_joining: bool,
    /// Whether everybody whom it counted has acknowledged it, once.
    pub is_settled: bool,
    /// Whether it hears a majority.
    pub is_majority: bool,
    /// Its last flush.
    pub flush: Flush,
    /// Frames that were no messages, of nodes that are no members.
    pub refused_frames: u64,
    /// The others.
    pub members: Vec<MemberStatus>,
}

/// How it stands with one of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Which.
    pub node: Node,
    /// Whether it is there.
    pub standing: Standing,
    /// Whether it may be counted on in a partition.
    pub is_voter: bool,
    /// The last flush that it has acknowledged.
    pub acknowledged: Flush,
    /// Time since the oldest flush was told that it has not acknowledged. None is waited for: zero.
    pub lag: Duration,
    /// How often the stream to it was begun.
    pub epochs: u64,
    /// Frames sent to it.
    pub sent: Traffic,
    /// Frames heard of it.
    pub heard: Traffic,
    /// Frames of it that were no messages.
    pub refused_frames: u64,
    /// Tallies of it that were dated too far in the future.
    pub refused_tallies: u64,
}

/// Whether a member is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is.
    Alive,
    /// It has not been heard of for so long.
    Silent(Duration),
}

/// Frames that went one way, and their bytes without what a transport adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frames.
    pub frames: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Traffic {
    pub(super) fn note(&mut self, bytes: usize) {
        self.frames += 1;
        self.bytes += bytes as u64;
    }
}

impl Status {
    pub(super) fn of(engine: &Engine, now: Timestamp) -> Self {
        let since = |moment: Timestamp| Duration::from_micros(since_us(moment, now));
        let members = engine.peers.values().map(|peer| MemberStatus {
            node: peer.node.clone(),
            standing: peer.silent_since.map_or(Standing::Alive, |at| Standing::Silent(since(at))),
            is_voter: peer.is_voter(),
            acknowledged: peer.acknowledged,
            lag: Duration::from_micros(engine.lag_us(peer.acknowledged, now)),
            epochs: peer.outgoing.sent.epoch,
            sent: peer.sent,
            heard: peer.heard,
            refused_frames: peer.refused_frames,
            refused_tallies: peer.refused_tallies,
        });
        Self {
            me: engine.me.clone(),
            is_joining: engine.is_joining,
            is_settled: engine.is_settled,
            is_majority: engine.majority_since.is_some(),
            flush: engine.flush,
            refused_frames: engine.refused_frames,
            members: members.collect(),
        }
    }
}
