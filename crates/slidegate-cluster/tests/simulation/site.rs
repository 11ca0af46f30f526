//! A place where a node lives, dies, and lives again.

use std::sync::Arc;
use std::time::Duration;

use slidegate::{Hit, Receipt, Timestamp};
use slidegate_cluster::counters::{Attempt, CapPolicy, CounterSettings, Counters};
use slidegate_cluster::pn_counter::{CounterUpdate, Incarnation};
use slidegate_cluster::replicated_counters::ReplicatedCounters;
use slidegate_cluster::replication::{NodeInfo, OutboundFrame, ReplicationEngine, Settings};

use crate::detector::Detector;
use crate::scenario::{MAX_CLOCK_SKEW, Scenario};

/// What fingerprints are made under.
pub const SECRET: [u8; 16] = [7; 16];

/// One life of a node.
pub struct Life {
    pub incarnation: Incarnation,
    pub counters: Counters,
    pub engine: ReplicationEngine,
    pub detector: Detector,
    /// What its clock is ahead of the true time.
    pub ahead_us: u64,
    /// Whom it was last told to be there.
    pub members: (Vec<NodeInfo>, Vec<Incarnation>),
}

/// What became of a request.
pub enum Asked {
    Allowed(Receipt),
    Denied,
    Unsynced,
}

impl Life {
    pub fn begin(
        scenario: &Scenario,
        (incarnation, name): (Incarnation, &str),
        ahead_us: u64,
        knows_others: bool,
        true_us: u64,
    ) -> Self {
        let now = Timestamp::from_micros(true_us + ahead_us);
        let settings = CounterSettings {
            incarnation,
            secret: SECRET.into(),
            max_clock_skew_us: MAX_CLOCK_SKEW.as_micros() as u64,
            sync_interval: scenario.interval,
            max_keys: 10_000,
            max_memory: 1 << 30,
        };
        let counters = Counters::new(settings, now);
        let settings = Settings {
            interval: scenario.interval,
            max_clock_skew: MAX_CLOCK_SKEW,
            // A node that finds nobody would begin a cluster of its own, which no bound holds together.
            join_timeout: Duration::from_secs(3_600),
            ..Settings::default()
        };
        let me = NodeInfo { incarnation, name: name.into(), address: None };
        let progress = Arc::clone(counters.progress());
        let engine = ReplicationEngine::new(me, settings, knows_others, progress, now);
        let detector = Detector::new(incarnation, name);
        Self { incarnation, counters, engine, detector, ahead_us, members: Default::default() }
    }

    pub fn now(&self, true_us: u64) -> Timestamp {
        Timestamp::from_micros(true_us + self.ahead_us)
    }

    pub fn tick(&mut self, true_us: u64) -> Vec<OutboundFrame> {
        let now = self.now(true_us);
        self.engine.tick(&self.counters, now)
    }

    pub fn flush(&mut self, true_us: u64) -> Vec<OutboundFrame> {
        let now = self.now(true_us);
        self.engine.flush(&self.counters, now)
    }

    pub fn leave(&mut self, true_us: u64) -> Vec<OutboundFrame> {
        let now = self.now(true_us);
        self.engine.leave(&self.counters, now)
    }

    pub fn link_up(&mut self, to: Incarnation, true_us: u64) -> Vec<OutboundFrame> {
        let now = self.now(true_us);
        self.engine.on_link_up(&self.counters, to, now)
    }

    pub fn heard(&mut self, from: Incarnation, frame: &[u8], true_us: u64) -> Vec<OutboundFrame> {
        let now = self.now(true_us);
        self.engine.on_frame_received(&self.counters, from, frame, now)
    }

    /// Tells the engine who is there, if that has changed.
    pub fn look_around(&mut self, true_us: u64) -> Vec<OutboundFrame> {
        let now = self.now(true_us);
        let members = self.detector.members(now.as_micros());
        if members == self.members {
            return Vec::new();
        }
        self.members = members;
        let (alive, left) = &self.members;
        self.engine.on_membership_changed(&self.counters, alive, left, now)
    }

    pub fn ask(&self, hit: &Hit<'_>, at_cap: CapPolicy, true_us: u64) -> Asked {
        let now = self.now(true_us);
        match self.counters.take(std::slice::from_ref(hit), now, at_cap).unwrap() {
            Attempt::Decided(taken) if taken.allowed => Asked::Allowed(taken.receipt),
            Attempt::Decided(_) => Asked::Denied,
            Attempt::Unsynced => Asked::Unsynced,
        }
    }

    /// All tallies that it knows which count still when nobody's clock is before `now`.
    pub fn tallies(&self, now: Timestamp) -> Vec<CounterUpdate> {
        let mut told = Vec::new();
        self.counters.visit_changed_since(0, true, now, &mut |tally| told.push(tally));
        told.retain(|told| told.layout.bucket_expires_us(told.bucket) > now.as_micros());
        told.sort_by_key(|told| (told.key, told.incarnation, told.bucket));
        told
    }
}
