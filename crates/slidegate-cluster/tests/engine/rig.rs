//! A few engines, and every frame that is on its way between them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use slidegate::{OnPartition, Timestamp};
use slidegate_cluster::message::{self, Message};
use slidegate_cluster::pn_counter::Incarnation;
use slidegate_cluster::progress::SharedProgress;
use slidegate_cluster::replicated_counters::FlushSeq;
use slidegate_cluster::replication::{
    EngineStatus, NodeInfo, OutboundFrame, PeerStatus, ReplicationEngine, Settings,
};

use crate::map::{Map, SHAPE};

pub const INTERVAL: Duration = Duration::from_millis(250);

/// A frame on its way.
#[derive(Clone, Debug)]
pub struct Frame {
    pub from: u64,
    pub to: u64,
    pub bytes: Vec<u8>,
}

impl Frame {
    pub fn message(&self) -> Message {
        message::decode(&self.bytes).unwrap()
    }

    pub fn is_ack(&self) -> bool {
        matches!(self.message(), Message::Ack(_))
    }
}

/// One node: its name is that of its number, from `a`.
pub struct Site {
    pub name: String,
    pub engine: ReplicationEngine,
    pub map: Map,
    pub progress: Arc<SharedProgress>,
}

/// Engines, by the number of their incarnation.
pub struct Rig {
    pub now: Timestamp,
    pub sites: BTreeMap<u64, Site>,
    pub network: Vec<Frame>,
    pub settings: Settings,
}

pub fn node(incarnation: u64, name: &str) -> NodeInfo {
    NodeInfo { incarnation: Incarnation(incarnation), name: name.into(), address: None }
}

impl Rig {
    pub fn new() -> Self {
        Self {
            now: Timestamp::from_secs(1_700_000_001),
            sites: BTreeMap::new(),
            network: Vec::new(),
            settings: Settings { interval: INTERVAL, ..Settings::default() },
        }
    }

    /// A cluster of so many that know all of each other: 1 is `a`, 2 is `b`.
    pub fn of(nodes: u64) -> Self {
        let mut rig = Self::new();
        for incarnation in 1..=nodes {
            rig.start(incarnation, name_of(incarnation));
            rig.all_see_all();
            rig.settle();
        }
        rig
    }

    /// Starts a node. It knows others if there are any.
    pub fn start(&mut self, incarnation: u64, name: &str) {
        let knows_others = !self.sites.is_empty();
        let progress = Arc::<SharedProgress>::default();
        let settings = self.settings.clone();
        let me = node(incarnation, name);
        let engine =
            ReplicationEngine::new(me, settings, knows_others, Arc::clone(&progress), self.now);
        let map = Map::new(Incarnation(incarnation));
        self.sites.insert(incarnation, Site { name: name.into(), engine, map, progress });
    }

    /// A node dies without a word.
    pub fn kill(&mut self, incarnation: u64) {
        self.sites.remove(&incarnation);
        self.network.retain(|frame| frame.to != incarnation);
    }

    /// Does something at a node, and puts what it sends on its way.
    pub fn at(
        &mut self,
        at: u64,
        act: impl FnOnce(&mut ReplicationEngine, &Map, Timestamp) -> Vec<OutboundFrame>,
    ) {
        let Site { engine, map, .. } = self.sites.get_mut(&at).unwrap();
        let frames = act(engine, map, self.now);
        let frames = frames.into_iter().map(|(to, bytes)| Frame { from: at, to: to.0, bytes });
        self.network.extend(frames);
    }

    /// A node sees exactly these others.
    pub fn sees(&mut self, at: u64, others: &[u64]) {
        let others: Vec<NodeInfo> = others
            .iter()
            .map(|other| {
                let name = self.sites.get(other).map_or(name_of(*other), |site| &site.name);
                node(*other, name)
            })
            .collect();
        self.at(at, |engine, map, now| engine.on_membership_changed(map, &others, &[], now));
    }

    pub fn all_see_all(&mut self) {
        let all: Vec<u64> = self.sites.keys().copied().collect();
        for at in &all {
            let others: Vec<u64> = all.iter().copied().filter(|other| other != at).collect();
            self.sees(*at, &others);
        }
    }

    /// A node has been told that another has left.
    pub fn sees_left(&mut self, at: u64, left: u64, others: &[u64]) {
        let others: Vec<NodeInfo> =
            others.iter().map(|other| node(*other, name_of(*other))).collect();
        let left = [Incarnation(left)];
        self.at(at, |engine, map, now| engine.on_membership_changed(map, &others, &left, now));
    }

    pub fn tick(&mut self, at: u64) {
        self.at(at, |engine, map, now| engine.tick(map, now));
    }

    /// An interval passes: all are ticked.
    pub fn interval(&mut self) {
        self.now = self.now.after(INTERVAL);
        let all: Vec<u64> = self.sites.keys().copied().collect();
        all.into_iter().for_each(|at| self.tick(at));
    }

    pub fn charge(&mut self, at: u64, key: u64) {
        let now = self.now;
        self.sites[&at].map.charge(key, now);
    }

    /// Hands over one frame.
    pub fn hand_over(&mut self, frame: &Frame) {
        if self.sites.contains_key(&frame.to) {
            let from = Incarnation(frame.from);
            self.at(frame.to, |engine, map, now| {
                engine.on_frame_received(map, from, &frame.bytes, now)
            });
        }
    }

    /// Hands over all that is on its way and what comes of it, but for what is cut off: that is lost.
    pub fn deliver_but(&mut self, is_cut: impl Fn(&Frame) -> bool) {
        for _ in 0..10_000 {
            if self.network.is_empty() {
                return;
            }
            let frame = self.network.remove(0);
            if !is_cut(&frame) {
                self.hand_over(&frame);
            }
        }
        panic!("they never come to rest");
    }

    pub fn deliver(&mut self) {
        self.deliver_but(|_| false);
    }

    /// Takes off the network what is picked.
    pub fn take(&mut self, is_taken: impl Fn(&Frame) -> bool) -> Vec<Frame> {
        let (taken, left) = self.network.drain(..).partition(is_taken);
        self.network = left;
        taken
    }

    /// A few intervals in which nothing is lost.
    pub fn settle(&mut self) {
        for _ in 0..4 {
            self.deliver();
            self.interval();
        }
        self.deliver();
    }

    pub fn map(&self, at: u64) -> &Map {
        &self.sites[&at].map
    }

    pub fn status(&self, at: u64) -> EngineStatus {
        self.sites[&at].engine.status(self.now)
    }

    pub fn member(&self, at: u64, of: u64) -> Option<PeerStatus> {
        let members = self.status(at).members;
        members.into_iter().find(|member| member.node.incarnation == Incarnation(of))
    }

    /// The last flush that all have acknowledged who count just now, as a node knows it.
    pub fn acknowledged(&self, at: u64) -> FlushSeq {
        let progress = self.sites[&at].progress.load();
        progress.acknowledged_flush(self.now, SHAPE.lifetime_us(), OnPartition::Bounded)
    }

    /// Whether all know the same.
    pub fn agree(&self) -> bool {
        let mut all = self.sites.values().map(|site| site.map.tallies());
        let first = all.next().unwrap();
        all.all(|tallies| tallies == first)
    }
}

pub fn name_of(incarnation: u64) -> &'static str {
    ["a", "b", "c", "d", "e", "f", "g"][(incarnation - 1) as usize % 7]
}
