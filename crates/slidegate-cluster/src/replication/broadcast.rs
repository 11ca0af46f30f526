//! Methods of the replication engine that send frames: flushes of changed counters, relayed counters, rosters, and the
//! initial states of new epochs.

use std::sync::Arc;

use slidegate::Timestamp;

use super::outgoing::QueuedFrame;
use super::peer::PeerState;
use super::settings::{elapsed_us, to_micros};
use super::{MIN_STUCK_STREAM_TIMEOUT_US, OutboundFrame, ReplicationEngine};
use crate::message::{FrameBody, FrameBodyBuilder, ack_frame, full_state_request_frame};
use crate::pn_counter::{CounterUpdate, Incarnation};
use crate::replicated_counters::{FlushSeq, ReplicatedCounters};

/// Estimated number of bytes that a changed key occupies in a frame. The number of keys per flush is limited by this
/// estimate.
const ESTIMATED_UPDATE_BYTES_PER_KEY: usize = 16;

/// Maximum number of flushes whose send times are kept to compute the lag of members.
const MAX_STORED_FLUSH_SEND_TIMES: usize = 4096;

/// Maximum number of updates of silent or unknown nodes that are forwarded in one interval.
const MAX_FORWARDED_UPDATES: usize = 16_384;

/// Maximum length of the list of relayed incarnations, and of the queue of incarnations to relay.
const MAX_RELAYED_INCARNATIONS: usize = 64;

impl ReplicationEngine {
    /// Sends the changed counters of this node to all members that are alive.
    pub(super) fn broadcast_changes(&mut self, counters: &dyn ReplicatedCounters, now: Timestamp) {
        let max_keys = self.flush_budget_bytes / ESTIMATED_UPDATE_BYTES_PER_KEY;
        if max_keys == 0 || !self.peers.values().any(PeerState::is_alive) {
            return;
        }
        let mut updates = Vec::new();
        counters.drain_changed_counters(self.flush + 1, max_keys, &mut updates);
        // Drops charges that were made before the clock was set back, and are now in the future: the other nodes would
        // reject them.
        updates.retain(|update| !self.settings.is_timestamp_too_far_in_future(update, now));
        self.update_longest_lifetime(&updates);
        let bodies = FrameBody::from_updates(&updates);
        let bytes: usize = bodies.iter().map(FrameBody::max_frame_bytes).sum();
        self.flush_budget_bytes = self.flush_budget_bytes.saturating_sub(bytes);
        self.broadcast_as_one_flush(bodies, &[], now);
    }

    /// Sends the counters of silent and departed members, and forwarded updates, to all members that are alive, so that
    /// all members have the same counters.
    pub(super) fn broadcast_forwarded_and_relayed_counters(
        &mut self,
        counters: &dyn ReplicatedCounters,
        now: Timestamp,
    ) {
        for incarnation in std::mem::take(&mut self.relay_queue) {
            let mut bodies = FrameBodyBuilder::default();
            counters.visit_counters_of_incarnation(incarnation, now, &mut |update| {
                bodies.push(&update)
            });
            self.broadcast_as_one_flush(bodies.finish(), &[incarnation], now);
        }
        let forwarded = std::mem::take(&mut self.forward_queue);
        let mut incarnations: Vec<Incarnation> =
            forwarded.iter().map(|update| update.incarnation).collect();
        incarnations.sort_unstable();
        incarnations.dedup();
        self.broadcast_as_one_flush(FrameBody::from_updates(&forwarded), &incarnations, now);
    }

    /// Schedules received updates to be forwarded at the next tick if other members may not have received them: updates
    /// of silent or unknown incarnations, and updates that their sender `from` made itself but does not send to all
    /// members.
    pub(super) fn schedule_updates_to_forward(
        &mut self,
        from: Incarnation,
        updates: &[CounterUpdate],
    ) {
        for update in updates {
            let of = update.incarnation;
            let is_alive = self.peers.get(&of).is_some_and(PeerState::is_alive);
            if is_alive && !(of == from && self.relayed.contains(&of)) {
                continue;
            }
            if self.forward_queue.len() < MAX_FORWARDED_UPDATES {
                self.forward_queue.push(*update);
            } else {
                self.schedule_incarnation_to_relay(of);
            }
        }
    }

    /// Schedules the counters of an incarnation to be sent to all members at the next tick.
    pub(super) fn schedule_incarnation_to_relay(&mut self, incarnation: Incarnation) {
        if !self.relay_queue.contains(&incarnation)
            && self.relay_queue.len() < MAX_RELAYED_INCARNATIONS
        {
            self.relay_queue.push(incarnation);
        }
    }

    /// Appends counters of this node or of other incarnations to the stream of each member that is alive, as one flush.
    fn broadcast_as_one_flush(
        &mut self,
        bodies: Vec<FrameBody>,
        incarnations: &[Incarnation],
        now: Timestamp,
    ) {
        if bodies.is_empty() {
            return;
        }
        let previous = self.flush;
        self.flush += 1;
        self.add_flush_to_history(incarnations, now);
        let last = bodies.len() - 1;
        let bodies: Vec<Arc<FrameBody>> = bodies.into_iter().map(Arc::new).collect();
        for peer in self.peers.values_mut().filter(|peer| peer.is_alive()) {
            for (index, body) in bodies.iter().enumerate() {
                let covered_flush = if index == last { self.flush } else { previous };
                peer.outgoing.queue_frame(body, covered_flush);
            }
        }
    }

    fn add_flush_to_history(&mut self, incarnations: &[Incarnation], now: Timestamp) {
        self.flush_sent_at.insert(self.flush, now);
        if self.flush_sent_at.len() > MAX_STORED_FLUSH_SEND_TIMES {
            self.flush_sent_at.pop_first();
        }
        self.relayed_incarnations.retain(|(incarnation, _)| !incarnations.contains(incarnation));
        self.relayed_incarnations
            .extend(incarnations.iter().map(|incarnation| (*incarnation, self.flush)));
        let excess = self.relayed_incarnations.len().saturating_sub(MAX_RELAYED_INCARNATIONS);
        self.relayed_incarnations.drain(..excess);
    }

    /// Removes two kinds of old entries from the history: incarnations whose relayed counters have arrived at all live
    /// members, and send times of flushes that all required members have acknowledged.
    pub(super) fn prune_flush_history(&mut self) {
        let alive = self.peers.values().filter(|peer| peer.is_alive());
        let delivered = alive.map(|peer| peer.delivered_flush).min().unwrap_or(FlushSeq::MAX);
        self.relayed_incarnations.retain(|(_, flush)| *flush > delivered);
        let required_peers = self.peers.values().filter(|peer| !peer.is_known_indirectly);
        let all = required_peers.map(|peer| peer.acknowledged_flush);
        let acknowledged_flush = all.min().unwrap_or(FlushSeq::MAX);
        self.flush_sent_at = self.flush_sent_at.split_off(&acknowledged_flush.saturating_add(1));
    }

    /// Starts a new epoch of each stream on which frames are in flight, but no acknowledgement has arrived for too
    /// long.
    pub(super) fn restart_stuck_streams(
        &mut self,
        counters: &dyn ReplicatedCounters,
        now: Timestamp,
    ) {
        let timeout_us = (2 * to_micros(self.settings.interval)).max(MIN_STUCK_STREAM_TIMEOUT_US);
        let peers = self.peers.values_mut().filter(|peer| peer.is_alive());
        let stuck = peers.filter_map(|peer| {
            let is_stuck = peer.check_stuck(now, timeout_us);
            is_stuck.then_some(peer.node.incarnation)
        });
        for incarnation in stuck.collect::<Vec<_>>() {
            self.start_stream_epoch(counters, incarnation, now);
        }
    }

    /// Starts a new epoch of the stream to a peer. Its initial state is everything that changed since the last
    /// delivered flush, or the full state if the peer needs it, followed by the roster.
    pub(super) fn start_stream_epoch(
        &mut self,
        counters: &dyn ReplicatedCounters,
        to: Incarnation,
        now: Timestamp,
    ) {
        let roster = self.build_roster();
        let Some(peer) = self.peers.get_mut(&to) else { return };
        let roster = FrameBody::end_of_initial_state(&roster, peer.needs_full_state);
        let mut bodies = FrameBodyBuilder::default();
        let settings = &self.settings;
        let mut push_update = |update: CounterUpdate| {
            if !settings.is_timestamp_too_far_in_future(&update, now) {
                bodies.push(&update);
            }
        };
        counters.visit_counters_changed_since(
            peer.delivered_flush,
            peer.needs_full_state,
            now,
            &mut push_update,
        );
        if !peer.needs_full_state {
            let missed =
                self.relayed_incarnations.iter().filter(|(_, flush)| *flush > peer.delivered_flush);
            missed.for_each(|(incarnation, _)| {
                counters.visit_counters_of_incarnation(*incarnation, now, &mut push_update)
            });
        }
        let covered_flush = peer.delivered_flush;
        let updates = bodies.finish().into_iter();
        let updates = updates.map(|body| QueuedFrame { body: Arc::new(body), covered_flush });
        let end = QueuedFrame { body: Arc::new(roster), covered_flush: self.flush };
        self.epoch += 1;
        peer.outgoing.start_epoch(self.epoch, updates.chain([end]).collect());
        peer.outgoing.is_full = peer.needs_full_state;
        peer.sent_roster_version = self.roster_version;
    }

    /// Returns the frames to send now: for each peer, the acknowledgement if one is due, and as many queued frames as
    /// its byte budget allows. Removes these frames from the queues.
    pub(super) fn take_frames_to_send(&mut self, now: Timestamp) -> Vec<OutboundFrame> {
        self.queue_changed_roster();
        let mut frames = Vec::new();
        for (to, peer) in self.peers.iter_mut().filter(|(_, peer)| peer.is_alive()) {
            while let Some(frame) = peer.outgoing.next_frame(now) {
                peer.sent.count_frame(frame.len());
                frames.push((*to, frame));
            }
            if let Some(after_epoch) = peer.take_due_full_state_request() {
                frames.push((*to, full_state_request_frame(after_epoch, now)));
            }
            if let Some(ack) = peer.take_due_ack() {
                let frame = ack_frame(&ack, now);
                peer.sent.count_frame(frame.len());
                frames.push((*to, frame));
            }
        }
        frames
    }

    /// Queues the current roster for each live peer that has not been sent this version of it.
    fn queue_changed_roster(&mut self) {
        let has_current_roster =
            |sent_roster_version: u64| sent_roster_version == self.roster_version;
        if self
            .peers
            .values()
            .all(|peer| has_current_roster(peer.sent_roster_version) || !peer.is_alive())
        {
            return;
        }
        let body = Arc::new(FrameBody::from_roster(&self.build_roster()));
        for peer in self.peers.values_mut().filter(|peer| peer.is_alive()) {
            if peer.sent_roster_version != self.roster_version {
                peer.sent_roster_version = self.roster_version;
                peer.outgoing.queue_frame(&body, self.flush);
            }
        }
    }

    /// Returns the age of the oldest flush that a member has not acknowledged, in microseconds.
    pub(super) fn acknowledgement_lag_us(
        &self,
        acknowledged_flush: FlushSeq,
        now: Timestamp,
    ) -> u64 {
        let oldest = self.flush_sent_at.range(acknowledged_flush + 1..).next();
        oldest.map_or(0, |(_, flush_sent_at)| elapsed_us(*flush_sent_at, now))
    }
}
