//! What is known of one other member.

use slidegate::Timestamp;

use super::incoming::{IncomingStream, PendingAck};
use super::outgoing::{AckProgress, OutgoingStream};
use super::settings::NodeInfo;
use super::status::FrameTraffic;
use crate::message::Ack;
use crate::replicated_counters::FlushSeq;

/// No round trip is taken to be longer, in microseconds: a node that stood still for a while does not count.
const MAX_ROUND_TRIP_US: u64 = 2_000_000;

/// So often the time after which a stream is stuck may double while nothing is heard of the peer.
const MAX_TIMEOUT_DOUBLINGS: u32 = 4;

/// One other member.
#[derive(Debug)]
pub(super) struct PeerState {
    pub node: NodeInfo,
    /// Since when it has not been heard of. None: it is alive.
    pub silent_since: Option<Timestamp>,
    /// Whether only others have told of it, and nobody has to wait for it: it may not charge freely before this node
    /// acknowledges it, and that is not before it is heard of.
    pub is_known_indirectly: bool,
    /// The last flush that counts as acknowledged.
    pub acknowledged_flush: FlushSeq,
    /// Whether it has acknowledged anything, and that was honoured.
    pub has_acknowledged: bool,
    /// The last flush that has arrived there: less than this is never told again.
    pub delivered_flush: FlushSeq,
    /// Whether the stream has to begin with all that is known, also of what others have counted.
    pub needs_full_state: bool,
    /// Whether something has come of it that was not acknowledged.
    pub is_ack_due: bool,
    /// Whether it says that all whom it counts know of it.
    pub is_settled: bool,
    /// Whether it has told all since it was last silent: it has acknowledged what was told since, and that was honoured.
    pub has_sent_all_state: bool,
    /// The version of the roster that it was told last.
    pub sent_roster_version: u64,
    pub outgoing: OutgoingStream,
    pub incoming: IncomingStream,
    pub sent: FrameTraffic,
    pub received: FrameTraffic,
    /// Frames of it that are no messages.
    pub rejected_frames: u64,
    /// Tallies of it that are dated too far in the future.
    pub rejected_updates: u64,
    /// How long it takes until what is sent is acknowledged, at most of late.
    round_trip_us: u64,
    /// How often in a row the stream was stuck while nothing was heard.
    doublings: u32,
}

impl PeerState {
    /// A member of which nothing was known before. What is told up to `acknowledged_flush` it need not acknowledge.
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

    /// Whether it is there and known to be one of the cluster: it may be counted on in a partition.
    pub fn is_voter(&self) -> bool {
        self.is_alive() && self.is_settled && self.has_sent_all_state
    }

    /// Whether it knows who is there, and has told it.
    pub fn knows_cluster(&self) -> bool {
        self.is_alive() && self.is_settled && self.incoming.is_complete()
    }

    /// Notes that it has fallen silent. The stream ends: until it begins anew with all that is known, nothing is
    /// acknowledged to it, so that it is told what went on without it before it may charge more.
    pub fn mark_silent(&mut self, now: Timestamp) {
        self.silent_since = Some(now);
        self.has_sent_all_state = false;
        self.needs_full_state = true;
        self.outgoing.close();
        self.incoming.clear_pending_acks();
    }

    /// Notes that a frame of it has come.
    pub fn record_received(&mut self, bytes: usize) {
        self.received.record(bytes);
        self.doublings = 0;
    }

    /// Takes what an acknowledgement says of the stream to it; when it may be honoured is another matter.
    pub fn on_ack_received(&mut self, ack: Ack, now: Timestamp) {
        let Some(AckProgress { covers, round_trip_us }) = self.outgoing.on_ack(ack.received, now)
        else {
            return;
        };
        self.delivered_flush = self.delivered_flush.max(covers);
        self.needs_full_state &= !self.outgoing.is_initial_state_delivered(ack.received.seq);
        if let Some(round_trip_us) = round_trip_us {
            let decayed_us = self.round_trip_us - self.round_trip_us / 8;
            self.round_trip_us = round_trip_us.max(decayed_us).min(MAX_ROUND_TRIP_US);
        }
        self.incoming.defer_ack(PendingAck { covers, sent: ack.sent });
    }

    /// The acknowledgement that it is owed, if that may be given. It names the end of what the stream to it begins with,
    /// even if that has not been sent yet: before that has come it is not honoured.
    pub fn take_due_ack(&mut self) -> Option<Ack> {
        let received =
            Some(self.incoming.received).filter(|received| self.is_ack_due && received.seq > 0)?;
        let ack = Ack { received, sent: self.outgoing.promised_position()? };
        self.is_ack_due = false;
        Some(ack)
    }

    /// Honours what may be honoured by now. Says whether that was something.
    pub fn apply_acks(&mut self) -> bool {
        let mut is_any = false;
        while let Some(covers) = self.incoming.next_applicable_ack() {
            self.acknowledged_flush = self.acknowledged_flush.max(covers);
            self.has_acknowledged = true;
            self.has_sent_all_state = true;
            is_any = true;
        }
        is_any
    }

    /// Whether nothing arrives there any more. If nothing is heard of it either, this takes longer each time.
    pub fn check_stuck(&mut self, now: Timestamp, timeout_us: u64) -> bool {
        let timeout_us = timeout_us.max(self.round_trip_us.saturating_mul(2));
        let is_stuck = self.outgoing.is_stuck(now, timeout_us.saturating_mul(1 << self.doublings));
        if is_stuck {
            self.doublings = (self.doublings + 1).min(MAX_TIMEOUT_DOUBLINGS);
        }
        is_stuck
    }

    /// Notes that frames reach it again.
    pub fn on_link_up(&mut self) {
        self.doublings = 0;
        self.round_trip_us = 0;
    }
}
