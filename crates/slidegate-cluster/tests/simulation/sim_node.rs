//! A simulated node: real counters and a real replication engine on a clock with an offset.

use std::sync::Arc;
use std::time::Duration;

use slidegate::{Hit, Receipt, Timestamp};
use slidegate_cluster::counters::{Attempt, CapPolicy, CounterSettings, Counters};
use slidegate_cluster::pn_counter::{CounterUpdate, Incarnation};
use slidegate_cluster::replicated_counters::ReplicatedCounters;
use slidegate_cluster::replication::{NodeInfo, OutboundFrame, ReplicationEngine, Settings};

use crate::failure_detector::FailureDetector;
use crate::scenario::{MAX_CLOCK_SKEW, Scenario};

/// The secret key of the hash that computes the fingerprints of all keys.
pub const FINGERPRINT_SECRET: [u8; 16] = [7; 16];

/// One incarnation of a simulated node.
pub struct SimNode {
    /// The incarnation of the node.
    pub incarnation: Incarnation,
    /// Counters of the node.
    pub counters: Counters,
    /// Replication engine of the node.
    pub engine: ReplicationEngine,
    /// Failure detector of the node.
    pub detector: FailureDetector,
    /// Microseconds by which the clock of the node is ahead of the clock of the simulation.
    pub clock_offset_us: u64,
    /// The alive and the departed nodes that were last reported to the engine.
    pub members: (Vec<NodeInfo>, Vec<Incarnation>),
}

/// The result of a request.
pub enum RequestOutcome {
    /// The request was allowed and charged.
    Allowed(Receipt),
    /// The request was denied.
    Denied,
    /// The request was not decided, since the node has too many unacknowledged units.
    Unsynced,
}

impl SimNode {
    /// Starts a node. In all methods, `true_time_us` is the time of the simulation, which differs from the time of the
    /// node's clock.
    pub fn start(
        scenario: &Scenario,
        (incarnation, name): (Incarnation, &str),
        clock_offset_us: u64,
        expects_peers: bool,
        true_time_us: u64,
    ) -> Self {
        let now = Timestamp::from_micros(true_time_us + clock_offset_us);
        let settings = CounterSettings {
            incarnation,
            secret: FINGERPRINT_SECRET.into(),
            max_clock_skew_us: MAX_CLOCK_SKEW.as_micros() as u64,
            sync_interval: scenario.interval,
            max_keys: 10_000,
            max_memory: 1 << 30,
        };
        let counters = Counters::new(settings, now);
        let settings = Settings {
            interval: scenario.interval,
            max_clock_skew: MAX_CLOCK_SKEW,
            // A node without peers would start its own cluster, and the bound does not cover two clusters.
            join_timeout: Duration::from_secs(3_600),
            ..Settings::default()
        };
        let local_node = NodeInfo { incarnation, name: name.into(), address: None };
        let progress = Arc::clone(counters.progress());
        let engine = ReplicationEngine::new(local_node, settings, expects_peers, progress, now);
        let detector = FailureDetector::new(incarnation, name);
        Self {
            incarnation,
            counters,
            engine,
            detector,
            clock_offset_us,
            members: Default::default(),
        }
    }

    /// Returns the time on the node's clock when the simulation is at `true_time_us`.
    pub fn now(&self, true_time_us: u64) -> Timestamp {
        Timestamp::from_micros(true_time_us + self.clock_offset_us)
    }

    /// Runs the tick of the engine and returns the frames to send.
    pub fn tick(&mut self, true_time_us: u64) -> Vec<OutboundFrame> {
        let now = self.now(true_time_us);
        self.engine.tick(&self.counters, now)
    }

    /// Broadcasts changed counters and returns the frames to send.
    pub fn flush(&mut self, true_time_us: u64) -> Vec<OutboundFrame> {
        let now = self.now(true_time_us);
        self.engine.flush(&self.counters, now)
    }

    /// Announces the departure of the node and returns the frames to send.
    pub fn leave(&mut self, true_time_us: u64) -> Vec<OutboundFrame> {
        let now = self.now(true_time_us);
        self.engine.leave(&self.counters, now)
    }

    /// Reports a new link to the engine and returns the frames to send.
    pub fn on_link_up(&mut self, to: Incarnation, true_time_us: u64) -> Vec<OutboundFrame> {
        let now = self.now(true_time_us);
        self.engine.on_link_up(&self.counters, to, now)
    }

    /// Passes a received frame to the engine and returns the frames to send.
    pub fn on_frame_received(
        &mut self,
        from: Incarnation,
        frame: &[u8],
        true_time_us: u64,
    ) -> Vec<OutboundFrame> {
        let now = self.now(true_time_us);
        self.engine.on_frame_received(&self.counters, from, frame, now)
    }

    /// Reports the members to the engine if they have changed, and returns the frames to send.
    pub fn update_members(&mut self, true_time_us: u64) -> Vec<OutboundFrame> {
        let now = self.now(true_time_us);
        let members = self.detector.members(now.as_micros());
        if members == self.members {
            return Vec::new();
        }
        self.members = members;
        let (alive, left) = &self.members;
        self.engine.on_membership_changed(&self.counters, alive, left, now)
    }

    /// Decides a request and charges it if it is allowed.
    pub fn take(&self, hit: &Hit<'_>, cap_policy: CapPolicy, true_time_us: u64) -> RequestOutcome {
        let now = self.now(true_time_us);
        match self.counters.charge_call(std::slice::from_ref(hit), now, cap_policy).unwrap() {
            Attempt::Decided(result) if result.allowed => RequestOutcome::Allowed(result.receipt),
            Attempt::Decided(_) => RequestOutcome::Denied,
            Attempt::Unsynced => RequestOutcome::Unsynced,
        }
    }

    /// Returns the counters of all incarnations that expire after `now`, sorted.
    pub fn unexpired_counters(&self, now: Timestamp) -> Vec<CounterUpdate> {
        let mut updates = Vec::new();
        self.counters.visit_changed_since(0, true, now, &mut |update| updates.push(update));
        updates.retain(|update| update.layout.bucket_expires_us(update.bucket) > now.as_micros());
        updates.sort_by_key(|update| (update.key, update.incarnation, update.bucket));
        updates
    }
}
