//! A simulated node: real counters and a real replication engine on a clock with an offset.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use slidegate::Timestamp;
use slidegate::store::{Hit, Receipt};
use slidegate_cluster::clock_limit::ClockSkewLimit;
use slidegate_cluster::counters::{ChargeAttempt, CounterSettings, Counters, MaxUnsyncedAction};
use slidegate_cluster::membership::{self, Membership, MembershipView};
use slidegate_cluster::message::{self, Message, members_frame};
use slidegate_cluster::node_info::NodeInfo;
use slidegate_cluster::pn_counter::{CounterUpdate, Incarnation};
use slidegate_cluster::replicated_counters::ReplicatedCounters;
use slidegate_cluster::replication::{OutboundFrame, ReplicationEngine, Settings};
use tokio::time::Instant;

use crate::simulation::clocks::HostClock;
use crate::simulation::scenario::{MAX_CLOCK_SKEW, Scenario};

/// The secret key of the hash that computes the fingerprints of all keys.
pub const FINGERPRINT_SECRET: [u8; 16] = [7; 16];

/// The time without a new heartbeat after which a node is considered silent.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval at which a node sends its list of members.
pub const HEARTBEAT_INTERVAL_US: u64 = 150_000;

/// One incarnation of a simulated node.
pub struct SimNode {
    /// The incarnation of the node.
    pub incarnation: Incarnation,
    /// Counters of the node.
    pub counters: Counters,
    /// Replication engine of the node.
    pub engine: ReplicationEngine,
    /// Membership of the node.
    pub membership: Membership,
    /// Clock of the node.
    pub clock: HostClock,
    /// The view of the membership that was last reported to the engine.
    pub view: MembershipView,
    /// The monotonic clock of the simulation at its start.
    started_at: (Instant, u64),
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
        clock: HostClock,
        expects_peers: bool,
        true_time_us: u64,
    ) -> Self {
        let now = Timestamp::from_micros(clock.time_us(true_time_us));
        let clock_limit = ClockSkewLimit::new(MAX_CLOCK_SKEW);
        let settings = CounterSettings {
            incarnation,
            secret: FINGERPRINT_SECRET.into(),
            // A message takes up to a second.
            max_clock_skew_us: MAX_CLOCK_SKEW.as_micros() as u64 + 1_000_000,
            sync_interval: scenario.interval,
            max_keys: 10_000,
            max_memory: 1 << 30,
        };
        let counters = Counters::new(settings, now);
        let settings = Settings {
            interval: scenario.interval,
            clock_limit,
            // A node without peers would start its own cluster, and the bound does not cover two clusters.
            join_timeout: Duration::from_secs(3_600),
            ..Settings::default()
        };
        let local_node = NodeInfo { incarnation, name: name.into(), address: None };
        let progress = Arc::clone(counters.progress());
        let engine =
            ReplicationEngine::new(local_node.clone(), settings, expects_peers, progress, now);
        let membership = Membership::new(
            local_node,
            membership::Settings { clock_limit, silence_timeout: SILENCE_TIMEOUT },
        );
        Self {
            incarnation,
            counters,
            engine,
            membership,
            clock,
            view: MembershipView::default(),
            started_at: (Instant::now(), true_time_us),
        }
    }

    /// Returns the time on the node's clock when the simulation is at `true_time_us`.
    pub fn now(&self, true_time_us: u64) -> Timestamp {
        Timestamp::from_micros(self.clock.time_us(true_time_us))
    }

    /// Returns the monotonic time when the simulation is at `true_time_us`.
    fn instant(&self, true_time_us: u64) -> Instant {
        let (started_at, started_us) = self.started_at;
        started_at + Duration::from_micros(true_time_us - started_us)
    }

    /// Prunes the counters, runs the tick of the engine, and returns the frames to send.
    pub fn tick(&mut self, true_time_us: u64) -> Vec<OutboundFrame> {
        let now = self.now(true_time_us);
        self.counters.prune(now);
        self.engine.tick(&self.counters, now)
    }

    /// Broadcasts changed counters and returns the frames to send.
    pub fn flush(&mut self, true_time_us: u64) -> Vec<OutboundFrame> {
        let now = self.now(true_time_us);
        self.engine.flush(&self.counters, now)
    }

    /// Announces the departure of the node and returns the frames to send.
    pub fn leave(&mut self, true_time_us: u64) -> Vec<OutboundFrame> {
        let mut frames = self.flush(true_time_us);
        self.membership.leave();
        frames.extend(self.heartbeat(true_time_us));
        frames
    }

    /// Returns the frames with the list of members.
    pub fn heartbeat(&mut self, true_time_us: u64) -> Vec<OutboundFrame> {
        let list = self.membership.next_member_list(self.instant(true_time_us));
        let frame = members_frame(&list, self.now(true_time_us));
        let peers = self.membership.peers().into_iter();
        peers.map(|peer| (peer.incarnation, frame.clone())).collect()
    }

    /// Reports that another node has introduced itself, and returns the frames to send.
    pub fn meet(&mut self, node: NodeInfo, true_time_us: u64) -> Vec<OutboundFrame> {
        self.membership.on_node_introduced(node, self.instant(true_time_us));
        self.update_members(true_time_us)
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
        frame: Bytes,
        true_time_us: u64,
    ) -> Vec<OutboundFrame> {
        let (bytes, now, instant) =
            (frame.len(), self.now(true_time_us), self.instant(true_time_us));
        let received = message::decode(frame).unwrap();
        if let Some(Message::Members(entries)) = &received.message {
            self.membership.on_member_list(from, entries, received.sent_at, now, instant);
            return self.update_members(true_time_us);
        }
        self.engine.on_message(&self.counters, from, received, bytes, now)
    }

    /// Reports the members to the engine if they have changed, and returns the frames to send.
    pub fn update_members(&mut self, true_time_us: u64) -> Vec<OutboundFrame> {
        let now = self.now(true_time_us);
        let view = self.membership.view(self.instant(true_time_us));
        if view == self.view {
            return Vec::new();
        }
        self.view = view;
        self.engine.on_membership_changed(&self.counters, &self.view, now)
    }

    /// Decides a request and charges it if it is allowed.
    pub fn take(
        &self,
        hit: &Hit<'_>,
        cap_policy: MaxUnsyncedAction,
        true_time_us: u64,
    ) -> RequestOutcome {
        let now = self.now(true_time_us);
        match self.counters.try_charge_request(std::slice::from_ref(hit), now, cap_policy).unwrap()
        {
            ChargeAttempt::Decided(result) if result.allowed => {
                RequestOutcome::Allowed(result.receipt)
            }
            ChargeAttempt::Decided(_) => RequestOutcome::Denied,
            ChargeAttempt::Unsynced => RequestOutcome::Unsynced,
        }
    }

    /// Returns the counters of all incarnations that expire after `now`, sorted.
    pub fn unexpired_counters(&self, now: Timestamp) -> Vec<CounterUpdate> {
        let mut updates = Vec::new();
        self.counters
            .visit_counters_changed_since(0, true, now, &mut |update| updates.push(update));
        updates.retain(|update| update.layout.bucket_expires_us(update.bucket) > now.as_micros());
        updates.sort_by_key(|update| (update.key, update.incarnation, update.bucket));
        updates
    }
}
