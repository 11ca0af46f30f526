//! A failure detector based on gossip: nodes forward the heartbeat counters of other nodes, as the library `chitchat`
//! does.

use std::collections::BTreeMap;

use slidegate_cluster::pn_counter::Incarnation;
use slidegate_cluster::replication::NodeInfo;

/// The time without a new heartbeat after which a node is considered silent.
pub const SILENCE_TIMEOUT_US: u64 = 1_000_000;

/// Interval at which a node increases its heartbeat counter and gossips.
pub const HEARTBEAT_INTERVAL_US: u64 = 150_000;

/// Gossiped state of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GossipEntry {
    /// Name of the node.
    pub name: String,
    /// Heartbeat counter.
    pub heartbeats: u64,
    /// Whether the node has announced its departure.
    pub has_left: bool,
}

/// Gossiped state of all known nodes.
pub type GossipState = BTreeMap<Incarnation, GossipEntry>;

/// The failure detector of one node.
#[derive(Debug)]
pub struct FailureDetector {
    incarnation: Incarnation,
    gossip: GossipState,
    /// The time at which the last new heartbeat of each other node arrived.
    last_heartbeat_us: BTreeMap<Incarnation, u64>,
}

impl FailureDetector {
    /// Creates the failure detector of a node that knows only itself.
    pub fn new(incarnation: Incarnation, name: &str) -> Self {
        let own = GossipEntry { name: name.into(), heartbeats: 0, has_left: false };
        let gossip = [(incarnation, own)].into();
        Self { incarnation, gossip, last_heartbeat_us: BTreeMap::new() }
    }

    /// Increases the heartbeat counter of this node and returns the state to gossip.
    pub fn heartbeat(&mut self) -> GossipState {
        self.gossip.entry(self.incarnation).and_modify(|own| own.heartbeats += 1);
        self.gossip.clone()
    }

    /// Announces the departure of this node and returns the state to gossip.
    pub fn leave(&mut self) -> GossipState {
        self.gossip.entry(self.incarnation).and_modify(|own| own.has_left = true);
        self.heartbeat()
    }

    /// Merges state received from another node.
    pub fn merge(&mut self, gossip: &GossipState, now_us: u64) {
        for (incarnation, entry) in gossip.iter().filter(|(other, _)| **other != self.incarnation) {
            let existing = self.gossip.entry(*incarnation).or_insert_with(|| {
                self.last_heartbeat_us.insert(*incarnation, now_us);
                entry.clone()
            });
            if entry.heartbeats > existing.heartbeats {
                *existing = entry.clone();
                self.last_heartbeat_us.insert(*incarnation, now_us);
            }
        }
    }

    /// Returns the other nodes that are alive, and the nodes that have left.
    pub fn members(&self, now_us: u64) -> (Vec<NodeInfo>, Vec<Incarnation>) {
        let left = self.gossip.iter().filter(|(_, entry)| entry.has_left).map(|(other, _)| *other);
        let is_alive = |other: &Incarnation| {
            self.last_heartbeat_us
                .get(other)
                .is_some_and(|last_us| now_us.saturating_sub(*last_us) < SILENCE_TIMEOUT_US)
        };
        let alive = self.gossip.iter().filter(|(other, entry)| is_alive(other) && !entry.has_left);
        let node = |(other, entry): (&Incarnation, &GossipEntry)| NodeInfo {
            incarnation: *other,
            name: entry.name.as_str().into(),
            address: None,
        };
        (alive.map(node).collect(), left.collect())
    }
}
