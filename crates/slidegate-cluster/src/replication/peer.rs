//! The state that the replication engine keeps for each other member.

use slidegate::Timestamp;

use super::incoming::{IncomingStream, PendingAck};
use super::outgoing::{AckEffect, OutgoingStream};
use super::status::FrameTraffic;
use crate::message::{Ack, Position};
use crate::node_info::NodeInfo;
use crate::replicated_counters::FlushSeq;

/// Upper bound of a measured round trip time, in microseconds. Longer measurements are reduced to this bound, so that a
/// paused node does not distort the timeout.
const MAX_MEASURED_ROUND_TRIP_US: u64 = 2_000_000;

/// Maximum number of times that the stuck timeout doubles while nothing is received from the peer.
const MAX_STUCK_TIMEOUT_DOUBLINGS: u32 = 4;

/// The replication state of one other member: its liveness, its acknowledgements, and the streams to and from it.
#[derive(Debug)]
pub(super) struct PeerState {
    pub node: NodeInfo,
    /// The moment at which the member became silent; `None` if it is alive.
    pub silent_since: Option<Timestamp>,
    /// Whether this node knows the member only from rosters. Charges of this node then need no acknowledgement of the
    /// member. This is safe, since this node does not acknowledge the charges of the member either. The member thus has
    /// to stop when it reaches its maximum of unacknowledged units.
    pub is_known_indirectly: bool,
    /// The last flush of this node that the member has acknowledged, or need not acknowledge since it became a member
    /// later. Stored acknowledgements that are not applied yet are not included.
    pub acknowledged_flush: FlushSeq,
    /// Whether an acknowledgement of the member has been applied.
    pub has_acknowledged: bool,
    /// The last flush that has arrived at the member together with all earlier flushes. This node does not send the
    /// changes in these flushes to the member again.
    pub delivered_flush: FlushSeq,
    /// Whether the next epoch must begin with the full state, including the counters of other incarnations.
    pub needs_full_state: bool,
    /// If this node has lost counters: the epoch of the stream from the peer at this time. Acknowledgements of the peer
    /// are not applied until a later epoch has sent the full state.
    awaits_full_state_after: Option<u64>,
    /// Whether a request of the full state must be sent to the peer.
    is_full_state_request_due: bool,
    /// Whether this node has received frames from the member that it has not acknowledged yet.
    pub is_ack_due: bool,
    /// Whether all members known to this member have acknowledged its updates, according to the roster that it has
    /// sent.
    pub is_settled: bool,
    /// Whether the member has sent its full state since it was last silent. The flag is set when an acknowledgement of
    /// the member is applied, since all earlier frames of the member have arrived by then.
    pub has_sent_all_state: bool,
    /// Version of the roster that was last sent to the member.
    pub sent_roster_version: u64,
    pub outgoing: OutgoingStream,
    pub incoming: IncomingStream,
    pub sent: FrameTraffic,
    pub received: FrameTraffic,
    /// Number of received frames that were invalid.
    pub rejected_frames: u64,
    /// Number of received updates whose timestamp was too far in the future.
    pub rejected_updates: u64,
    /// Decaying maximum of the measured round trip times, in microseconds. Each measurement first reduces the previous
    /// maximum by one eighth.
    round_trip_us: u64,
    /// Number of times that the stuck timeout has doubled. Each check that finds a stuck stream doubles the timeout. A
    /// frame from the member or a new link to the member resets the timeout.
    doublings: u32,
}

impl PeerState {
    /// Creates the state of a new member. A flush is one batch of counter updates. This node does not expect the member
    /// to acknowledge flushes up to the number `acknowledged_flush`.
    pub fn new(
        node: NodeInfo,
        silent_since: Option<Timestamp>,
        acknowledged_flush: FlushSeq,
    ) -> Self {
        Self {
            node,
            silent_since,
            is_known_indirectly: false,
            acknowledged_flush,
            has_acknowledged: false,
            delivered_flush: 0,
            needs_full_state: true,
            awaits_full_state_after: None,
            is_full_state_request_due: false,
            is_ack_due: false,
            is_settled: false,
            has_sent_all_state: false,
            sent_roster_version: 0,
            outgoing: OutgoingStream::default(),
            incoming: IncomingStream::default(),
            sent: FrameTraffic::default(),
            received: FrameTraffic::default(),
            rejected_frames: 0,
            rejected_updates: 0,
            round_trip_us: 0,
            doublings: 0,
        }
    }

    pub fn is_alive(&self) -> bool {
        self.silent_since.is_none()
    }

    /// Returns `true` if the member counts towards a majority: it is alive, it is settled, and it has sent its full
    /// state.
    pub fn is_voter(&self) -> bool {
        self.is_alive() && self.is_settled && self.has_sent_all_state
    }

    /// Returns `true` if this node can join the cluster through the member: the member is alive, settled, and has sent
    /// its full state.
    pub fn can_join_via_peer(&self) -> bool {
        self.is_alive() && self.is_settled && self.incoming.has_initial_state()
    }

    /// Marks the member as silent and closes its stream. The member receives no acknowledgement until a new epoch has
    /// sent the full state, so it receives the charges made in the meantime before it may charge more.
    pub fn mark_silent(&mut self, now: Timestamp) {
        self.silent_since = Some(now);
        self.has_sent_all_state = false;
        self.needs_full_state = true;
        self.outgoing.close();
        self.incoming.clear_pending_acks();
    }

    /// Counts a frame received from the member, and resets the stuck timeout.
    pub fn record_received_frame(&mut self, bytes: usize) {
        self.received.count_frame(bytes);
        self.doublings = 0;
    }

    /// Handles the loss of counters of this node: the peer must send its full state again.
    pub fn on_local_counters_lost(&mut self) {
        self.awaits_full_state_after = Some(self.incoming.received.epoch);
        self.is_full_state_request_due = true;
        self.incoming.clear_pending_acks();
    }

    /// Requests the full state again if it has not arrived, because the earlier request may be lost.
    pub fn repeat_full_state_request(&mut self) {
        self.is_full_state_request_due = self.awaits_full_state_after.is_some();
    }

    /// Returns the epoch after which the peer must send its full state, if a request is due.
    pub fn take_due_full_state_request(&mut self) -> Option<u64> {
        let is_due = std::mem::take(&mut self.is_full_state_request_due);
        self.awaits_full_state_after.filter(|_| is_due)
    }

    /// Records that a frame of the peer has arrived.
    pub fn on_frame_received(&mut self, position: Position, is_complete: bool, is_full: bool) {
        self.incoming.on_frame_received(position, is_complete, is_full);
        if self.incoming.has_full_state_after_epoch(self.awaits_full_state_after) {
            self.awaits_full_state_after = None;
        }
    }

    /// Prepares the full state that the peer has requested. Returns `false` if the current epoch sends the full state
    /// already.
    pub fn prepare_requested_full_state(&mut self, after_epoch: u64) -> bool {
        if self.outgoing.is_full && self.outgoing.sent.epoch > after_epoch {
            return false;
        }
        self.delivered_flush = 0;
        self.needs_full_state = true;
        self.is_alive()
    }

    /// Applies an acknowledgement to the outgoing stream. The acknowledgement changes `acknowledged_flush` only later,
    /// when all earlier frames of the member have arrived.
    pub fn on_ack_received(&mut self, ack: Ack, now: Timestamp) {
        let Some(AckEffect { covered_flush, round_trip_us }) =
            self.outgoing.on_ack(ack.received, now)
        else {
            return;
        };
        self.delivered_flush = self.delivered_flush.max(covered_flush);
        self.needs_full_state &= !self.outgoing.is_initial_state_delivered(ack.received.seq);
        if let Some(round_trip_us) = round_trip_us {
            let decayed_us = self.round_trip_us - self.round_trip_us / 8;
            self.round_trip_us = round_trip_us.max(decayed_us).min(MAX_MEASURED_ROUND_TRIP_US);
        }
        if self.awaits_full_state_after.is_none() {
            self.incoming.defer_ack(PendingAck { covered_flush, sent: ack.sent });
        }
    }

    /// Returns the acknowledgement that is due; `None` if no acknowledgement is due or the outgoing stream is closed.
    /// The acknowledgement contains a position in the stream from this node to the peer, and the peer applies it only
    /// after all frames up to this position have arrived. The position is never before the end of the initial state,
    /// even if the initial state is not sent completely.
    pub fn take_due_ack(&mut self) -> Option<Ack> {
        let received =
            Some(self.incoming.received).filter(|received| self.is_ack_due && received.seq > 0)?;
        let ack = Ack { received, sent: self.outgoing.ack_barrier_position()? };
        self.is_ack_due = false;
        Some(ack)
    }

    /// Applies all stored acknowledgements for which all earlier frames of the member have arrived. Returns `true` if
    /// at least one was applied.
    pub fn apply_pending_acks(&mut self) -> bool {
        let mut has_applied = false;
        while let Some(covered_flush) = self.incoming.next_applicable_ack() {
            self.acknowledged_flush = self.acknowledged_flush.max(covered_flush);
            self.has_acknowledged = true;
            self.has_sent_all_state = true;
            has_applied = true;
        }
        has_applied
    }

    /// Returns `true` if the outgoing stream is stuck, so that it needs a new epoch. The timeout then doubles for the
    /// next check, until a frame of the member arrives.
    pub fn check_stuck(&mut self, now: Timestamp, timeout_us: u64) -> bool {
        let timeout_us = timeout_us.max(self.round_trip_us.saturating_mul(2));
        let is_stuck = self.outgoing.is_stuck(now, timeout_us.saturating_mul(1 << self.doublings));
        if is_stuck {
            self.doublings = (self.doublings + 1).min(MAX_STUCK_TIMEOUT_DOUBLINGS);
        }
        is_stuck
    }

    /// Resets the stuck timeout, since there is a new link to the member.
    pub fn on_link_up(&mut self) {
        self.doublings = 0;
        self.round_trip_us = 0;
    }
}
