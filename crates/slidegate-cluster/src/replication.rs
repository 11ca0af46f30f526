//! Replication engine: decides which frames to send, and which members must acknowledge them.
//!
//! The engine has no I/O and no clock. Its inputs are the time, received frames and membership changes. Its outputs are
//! frames to send and a [`Progress`]: the flushes of this node that the other members have acknowledged. Decisions read
//! only this progress from the engine.
//!
//! # Protocol
//!
//! A *flush* sends the changed counters to every member that is alive: at each tick, or immediately when a key requires
//! it. Flushes are numbered. Each peer has its own stream of numbered frames. An *epoch* of a stream begins with an
//! initial state: everything that changed since the last flush that is known to have arrived at the peer, followed by a
//! roster of the members. Then the flushes follow. Frames are never stored for retransmission: if nothing arrives for a
//! while, a new epoch begins. A peer that is new, or that was silent, receives the full state, including the counters
//! of other incarnations. The counters of a member that became silent or left are relayed between the remaining
//! members.
//!
//! # Why the bound holds
//!
//! N is the `max_unsynced` of a rule, and C is max(N, largest cost). A node *charges freely* if it charges more than C
//! units. The bound of the overshoot follows from one rule: *at most C units charged by a node X are unknown to any
//! node that may charge freely.* A node admits a charge if it has at most N unacknowledged units including the charge,
//! or none before it. So at any moment, the total is at most the units that the last admitting node saw, at most max,
//! plus C for each other node. This requires the following properties of acknowledgements:
//!
//! 1. A peer acknowledges merged updates only, and merged counters only grow. So all members know the updates that all
//!    have acknowledged.
//! 2. **A joining node knows nothing, so no node may rely on it.** The joining node may not charge more than C either:
//!    to charge more, it needs the acknowledgement of each member. An acknowledgement is applied only after everything
//!    that its sender sent before it has arrived. A node acknowledges nothing to a peer before it has sent its full
//!    state to that peer in the current epoch. So a node that charges freely has received the full state of each
//!    member, and no member has to wait until a joining node has received earlier charges.
//!    A node that has joined sends its full state again before it counts as settled, since other joining nodes may join
//!    through it.
//! 3. A joining node needs the acknowledgement of all members on the rosters that it receives. If two nodes join at the
//!    same time through different members, one is on the other's roster: a member that acknowledges to both has sent
//!    one of them a roster with the other.
//! 4. A silent member is required until all units that it may have charged freely have expired: until the silent member
//!    has been without acknowledgements of this node for longer than a window. This exception applies to this node only
//!    if it is part of a majority, and then not to the silent member, which is in the minority. Voters are settled
//!    members: all members knew them before they first charged freely. A node that enters a majority later also waits
//!    for a window, since other members of that majority may just have stopped waiting for it. When a silent member
//!    returns, it receives the full state before any acknowledgement.
//! 5. A member that has left charges nothing more. Its last unacknowledged charges are at most C, as for any other
//!    member.
//!
//! A node counts in its windows only charges whose time is near its own clock, so acknowledgements are worth nothing if
//! the clocks differ too much. Each frame carries the clock of its sender. An acknowledgement whose clock is outside
//! the limit is not applied, so a node charges at most C units as soon as its clock differs. Both nodes then treat each
//! other as silent, and the node that is outside of the majority keeps to C. While its clock was ahead, it has lost
//! counters that expired too early. After its clock was set back, it requests the full state of each member, and
//! applies no acknowledgement of a member before.
//!
//! The failure detector must report a member as silent only if no member that this node can reach sees it.
//! [`membership`](crate::membership) has this property, since members forward the heartbeats of other members. A member
//! that is seen only through others stays required, and those others relay its counters. A node that finds no other
//! node for [`Settings::join_timeout`] starts a new cluster. If an unreachable cluster exists, both count separately
//! until they meet.

mod broadcast;
mod incoming;
mod members;
mod outgoing;
mod peer;
mod settings;
mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use slidegate::Timestamp;

use crate::message::{Ack, Message, ReceivedMessage, UpdateFrame};
use crate::node_info::NodeInfo;
use crate::pn_counter::{CounterUpdate, Incarnation};
use crate::progress::{MemberProgress, Progress, SharedReplicationProgress};
use crate::replicated_counters::{FlushSeq, ReplicatedCounters};
use crate::transport::MAX_FRAME_BYTES;

pub use settings::Settings;
pub use status::{EngineStatus, FrameTraffic, Liveness, PeerStatus};

use members::DepartedMembers;
use peer::PeerState;
use settings::{elapsed_us, to_micros};

/// Minimum timeout of a stream, in microseconds. If no acknowledgement of a sent frame arrives within the timeout, the
/// stream begins a new epoch.
const MIN_STUCK_STREAM_TIMEOUT_US: u64 = 100_000;

/// The recipient of a frame, and the encoded frame.
pub type OutboundFrame = (Incarnation, Bytes);

/// The replication engine of one node. It sends counter changes to the other nodes, and merges the updates that they
/// send.
#[derive(Debug)]
pub struct ReplicationEngine {
    local_node: NodeInfo,
    settings: Settings,
    started_at: Timestamp,
    /// The time of the last message or tick. An earlier time shows that the clock was set back.
    last_time: Timestamp,
    /// Whether this node is waiting for a member that knows the cluster.
    is_joining: bool,
    /// Whether the state that this node has sent to the other nodes may lack counters that it received while joining.
    must_send_joined_state: bool,
    /// Whether this node is settled: all other members, or voters that are more than half of all members, have
    /// acknowledged its frames.
    is_settled: bool,
    majority_since: Option<Timestamp>,
    /// The number of the last flush of this node.
    flush: FlushSeq,
    /// The number of the epoch that was started last, on any stream.
    epoch: u64,
    /// Send times of the flushes that at least one member has not acknowledged.
    flush_sent_at: BTreeMap<FlushSeq, Timestamp>,
    /// Bytes that may still be used for changed counters in this interval.
    flush_budget_bytes: usize,
    peers: BTreeMap<Incarnation, PeerState>,
    departed: DepartedMembers,
    /// Other incarnations whose counters this node has relayed to the members, each with the number of the flush that
    /// contained the counters. If a peer has not received this flush, the next epoch of its stream contains the
    /// counters again.
    relayed_incarnations: Vec<(Incarnation, FlushSeq)>,
    /// Other incarnations whose counters are relayed to the members at the next tick.
    relay_queue: Vec<Incarnation>,
    /// Live members from which another live member receives no messages.
    relayed: BTreeSet<Incarnation>,
    /// The longest time for which the charges of a key count, of all keys that this node has seen.
    longest_lifetime_us: u64,
    /// Updates that have arrived since the last tick, and that not all members receive from their sender.
    forward_queue: Vec<CounterUpdate>,
    /// Version of the roster, increased by each change.
    roster_version: u64,
    rejected_frames: u64,
    progress: Arc<SharedReplicationProgress>,
}

impl ReplicationEngine {
    /// Creates the engine of a node that starts now. If `has_other_seeds` is `true` (seed addresses of other nodes are
    /// known), the engine waits for another node before it starts a new cluster. The engine publishes its progress in
    /// `progress`.
    pub fn new(
        local_node: NodeInfo,
        settings: Settings,
        has_other_seeds: bool,
        progress: Arc<SharedReplicationProgress>,
        now: Timestamp,
    ) -> Self {
        let min_bytes = settings.interval_bytes.max(2 * MAX_FRAME_BYTES);
        let settings = Settings { interval_bytes: min_bytes, ..settings };
        let mut engine = Self {
            local_node,
            flush_budget_bytes: settings.interval_bytes / 2,
            settings,
            started_at: now,
            last_time: now,
            is_joining: has_other_seeds,
            must_send_joined_state: false,
            is_settled: false,
            majority_since: None,
            flush: 0,
            epoch: 0,
            flush_sent_at: BTreeMap::new(),
            peers: BTreeMap::new(),
            departed: DepartedMembers::default(),
            relayed_incarnations: Vec::new(),
            relay_queue: Vec::new(),
            relayed: BTreeSet::new(),
            longest_lifetime_us: 0,
            forward_queue: Vec::new(),
            roster_version: 1,
            rejected_frames: 0,
            progress,
        };
        engine.publish_progress(now);
        engine
    }

    /// Handles the end of a replication interval: sends changed counters, and starts new epochs of streams without
    /// progress. Returns the frames to send.
    pub fn tick(
        &mut self,
        counters: &dyn ReplicatedCounters,
        now: Timestamp,
    ) -> Vec<OutboundFrame> {
        if self.is_joining
            && elapsed_us(self.started_at, now) >= to_micros(self.settings.join_timeout)
        {
            self.finish_joining();
        }
        self.request_full_state_if_clock_was_set_back(now);
        self.peers.values_mut().for_each(PeerState::repeat_full_state_request);
        self.remove_members_silent_for_too_long(now);
        self.flush_budget_bytes = self.settings.interval_bytes / 2;
        for peer in self.peers.values_mut() {
            peer.outgoing.refill_budget(self.settings.interval_bytes);
        }
        self.restart_stuck_streams(counters, now);
        self.broadcast_forwarded_and_relayed_counters(counters, now);
        self.broadcast_changes(counters, now);
        self.publish_progress(now);
        self.send_joined_state(counters, now);
        self.take_frames_to_send(now)
    }

    /// Returns frames that send changed counters immediately, without waiting for the next tick.
    pub fn flush(
        &mut self,
        counters: &dyn ReplicatedCounters,
        now: Timestamp,
    ) -> Vec<OutboundFrame> {
        self.broadcast_changes(counters, now);
        self.take_frames_to_send(now)
    }

    /// Handles a message received from the node `from`, which the transport has authenticated. Its frame had `bytes`
    /// bytes. Returns the frames to send.
    pub fn on_message(
        &mut self,
        counters: &dyn ReplicatedCounters,
        from: Incarnation,
        received: ReceivedMessage,
        bytes: usize,
        now: Timestamp,
    ) -> Vec<OutboundFrame> {
        if from == self.local_node.incarnation {
            return Vec::new();
        }
        self.request_full_state_if_clock_was_set_back(now);
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.record_received_frame(bytes);
        }
        match received.message {
            Some(Message::Updates(frame)) => self.on_updates_received(counters, from, frame, now),
            // The clocks differ too much, so the sender may not count the charges of this node in the same windows. Its
            // acknowledgement is ignored.
            Some(Message::Ack(_))
                if !self.settings.clock_limit.allows_send_time(received.sent_at, now) => {}
            Some(Message::Ack(ack)) => self.on_ack_received(from, ack, now),
            Some(Message::FullStateRequest { after_epoch }) => {
                let peer = self.peers.get_mut(&from);
                if peer.is_some_and(|peer| peer.prepare_requested_full_state(after_epoch)) {
                    self.start_stream_epoch(counters, from, now);
                }
            }
            Some(Message::Members(_)) | None => {}
        }
        self.send_joined_state(counters, now);
        self.take_frames_to_send(now)
    }

    /// Counts a frame from the node `from` that is not a valid message.
    pub fn on_invalid_frame(&mut self, from: Incarnation) {
        match self.peers.get_mut(&from) {
            Some(peer) => peer.rejected_frames += 1,
            None => self.rejected_frames += 1,
        }
    }

    fn on_updates_received(
        &mut self,
        counters: &dyn ReplicatedCounters,
        from: Incarnation,
        frame: UpdateFrame,
        now: Timestamp,
    ) {
        let UpdateFrame { position, is_complete, is_full, roster, mut updates } = frame;
        let received = updates.len();
        updates.retain(|update| !self.settings.is_timestamp_too_far_in_future(update, now));
        let rejected = (received - updates.len()) as u64;
        counters.merge(&updates, now);
        // Updates of this node's own charges contain removals by other nodes, and charges that this node has lost
        // because its clock was ahead for a while. This node sends the merged counters itself.
        updates.retain(|update| update.incarnation != self.local_node.incarnation);
        self.update_longest_lifetime(&updates);
        let Some(peer) = self.peers.get_mut(&from) else {
            return self.schedule_updates_to_forward(from, &updates);
        };
        peer.rejected_updates += rejected;
        // Charges that this node does not count must not be acknowledged, so the frame counts as lost.
        if rejected == 0 {
            peer.on_frame_received(position, is_complete, is_full);
        }
        peer.is_ack_due = true;
        let is_alive = peer.is_alive();
        let roster = roster.filter(|_| peer.incoming.advance_roster_position(position));
        if let Some(roster) = roster {
            self.merge_roster(from, roster, now);
        }
        if !is_alive || self.relayed.contains(&from) {
            self.schedule_updates_to_forward(from, &updates);
        }
        self.apply_pending_acks(from, now);
    }

    fn on_ack_received(&mut self, from: Incarnation, ack: Ack, now: Timestamp) {
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.on_ack_received(ack, now);
        }
        self.apply_pending_acks(from, now);
    }

    /// Applies the stored acknowledgements of a peer that can be applied now. An acknowledgement can be applied after
    /// all frames that the peer sent before it have arrived.
    fn apply_pending_acks(&mut self, from: Incarnation, now: Timestamp) {
        if self.peers.get_mut(&from).is_some_and(PeerState::apply_pending_acks) {
            self.prune_flush_history();
        }
        self.publish_progress(now);
    }

    /// Handles a new link to a peer. Frames in flight may be lost, so their updates are sent again in a new epoch.
    pub fn on_link_up(
        &mut self,
        counters: &dyn ReplicatedCounters,
        to: Incarnation,
        now: Timestamp,
    ) -> Vec<OutboundFrame> {
        if let Some(peer) = self.peers.get_mut(&to) {
            peer.on_link_up();
            if peer.is_alive() && peer.outgoing.has_frames_in_flight() {
                self.start_stream_epoch(counters, to, now);
            }
        }
        self.take_frames_to_send(now)
    }

    /// Requests the full state of all members if the clock was set back by more than the limit. While it was ahead,
    /// counters have expired too early.
    fn request_full_state_if_clock_was_set_back(&mut self, now: Timestamp) {
        let max_difference =
            Duration::from_micros(self.settings.clock_limit.max_clock_difference_us());
        if now.after(max_difference) < self.last_time {
            self.peers.values_mut().for_each(PeerState::on_local_counters_lost);
        }
        self.last_time = now;
    }

    fn update_longest_lifetime(&mut self, updates: &[CounterUpdate]) {
        let lifetimes = updates.iter().map(|update| update.layout.unit_lifetime_us());
        self.longest_lifetime_us = self.longest_lifetime_us.max(lifetimes.max().unwrap_or(0));
    }

    /// Returns the status of this node and its peers.
    pub fn status(&self, now: Timestamp) -> EngineStatus {
        let since = |moment: Timestamp| Duration::from_micros(elapsed_us(moment, now));
        let members = self.peers.values().map(|peer| PeerStatus {
            node: peer.node.clone(),
            liveness: peer.silent_since.map_or(Liveness::Alive, |at| Liveness::Silent(since(at))),
            is_voter: peer.is_voter(),
            acknowledged_flush: peer.acknowledged_flush,
            lag: Duration::from_micros(self.acknowledgement_lag_us(peer.acknowledged_flush, now)),
            epochs: peer.outgoing.sent.epoch,
            sent: peer.sent,
            received: peer.received,
            rejected_frames: peer.rejected_frames,
            rejected_updates: peer.rejected_updates,
        });
        EngineStatus {
            local_node: self.local_node.clone(),
            is_joining: self.is_joining,
            is_settled: self.is_settled,
            is_majority: self.majority_since.is_some(),
            flush: self.flush,
            rejected_frames: self.rejected_frames,
            members: members.collect(),
        }
    }

    /// Publishes the acknowledgements and the liveness of the other members, which decisions read.
    fn publish_progress(&mut self, now: Timestamp) {
        self.update_join_state();
        let is_majority = self.belongs_to_majority();
        self.majority_since = self.majority_since.or(Some(now)).filter(|_| is_majority);
        let required_peers = self.peers.values().filter(|peer| !peer.is_known_indirectly);
        let members = required_peers.map(|peer| MemberProgress {
            incarnation: peer.node.incarnation,
            acknowledged_flush: peer.acknowledged_flush,
            silent_since: peer.silent_since,
        });
        let nodes = u32::try_from(self.peers.len() + 1).unwrap_or(u32::MAX);
        let progress = Progress {
            members: members.collect(),
            nodes: if self.is_joining { nodes.max(2) } else { nodes },
            majority_since: self.majority_since,
            is_joining: self.is_joining,
            max_clock_skew_us: self.settings.clock_limit.max_clock_difference_us(),
        };
        if **self.progress.load() != progress {
            self.progress.store(Arc::new(progress));
        }
    }
}
