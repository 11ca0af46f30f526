//! Who is there, by gossip: heartbeats that are passed on from node to node, as chitchat does.

use std::collections::BTreeMap;

use slidegate_cluster::pn_counter::Incarnation;
use slidegate_cluster::replication::NodeInfo;

/// Without a new heartbeat for so long, a node is silent.
pub const SILENT_AFTER_US: u64 = 1_000_000;

/// So often a node's heart beats, and it tells others.
pub const BEAT_US: u64 = 150_000;

/// What is gossiped of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rumour {
    pub name: String,
    pub beats: u64,
    pub has_left: bool,
}

/// What one node has heard of all.
pub type Rumours = BTreeMap<Incarnation, Rumour>;

/// One node's view.
#[derive(Debug)]
pub struct Detector {
    incarnation: Incarnation,
    rumours: Rumours,
    /// When the last new heartbeat of each was heard of.
    heard_at: BTreeMap<Incarnation, u64>,
}

impl Detector {
    pub fn new(me: Incarnation, name: &str) -> Self {
        let own = Rumour { name: name.into(), beats: 0, has_left: false };
        Self { incarnation: me, rumours: [(me, own)].into(), heard_at: BTreeMap::new() }
    }

    /// Beats, and tells what it has heard.
    pub fn beat(&mut self) -> Rumours {
        self.rumours.entry(self.incarnation).and_modify(|own| own.beats += 1);
        self.rumours.clone()
    }

    pub fn leave(&mut self) -> Rumours {
        self.rumours.entry(self.incarnation).and_modify(|own| own.has_left = true);
        self.beat()
    }

    pub fn hear(&mut self, rumours: &Rumours, now_us: u64) {
        for (incarnation, rumour) in rumours.iter().filter(|(of, _)| **of != self.incarnation) {
            let known = self.rumours.entry(*incarnation).or_insert_with(|| {
                self.heard_at.insert(*incarnation, now_us);
                rumour.clone()
            });
            if rumour.beats > known.beats {
                *known = rumour.clone();
                self.heard_at.insert(*incarnation, now_us);
            }
        }
    }

    /// Who is alive, and who has left.
    pub fn members(&self, now_us: u64) -> (Vec<NodeInfo>, Vec<Incarnation>) {
        let left = self.rumours.iter().filter(|(_, rumour)| rumour.has_left).map(|(of, _)| *of);
        let is_heard = |of: &Incarnation| {
            self.heard_at.get(of).is_some_and(|at| now_us.saturating_sub(*at) < SILENT_AFTER_US)
        };
        let alive = self.rumours.iter().filter(|(of, rumour)| is_heard(of) && !rumour.has_left);
        let node = |(of, rumour): (&Incarnation, &Rumour)| NodeInfo {
            incarnation: *of,
            name: rumour.name.as_str().into(),
            address: None,
        };
        (alive.map(node).collect(), left.collect())
    }
}
