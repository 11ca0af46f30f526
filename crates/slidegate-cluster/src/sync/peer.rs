//! What is known of one other member.

use slidegate::Timestamp;

use super::incoming::{Acknowledged, Incoming};
use super::outgoing::{Arrived, Outgoing};
use super::settings::Node;
use super::status::Traffic;
use crate::ledger::Flush;
use crate::message::Ack;

/// No round trip is taken to be longer, in microseconds: a node that stood still for a while does not count.
const LONGEST_ROUND_TRIP_US: u64 = 2_000_000;

/// So often the time after which a stream is stuck may double while nothing is heard of the peer.
const MAX_DOUBLINGS: u32 = 4;

/// One other member.
#[derive(Debug)]
pub(super) struct Peer {
    pub node: Node,
    /// Since when it has not been heard of. None: it is alive.
    pub silent_since: Option<Timestamp>,
    /// Whether only others have told of it, and nobody has to wait for it: it may not charge freely before this node
    /// acknowledges it, and that is not before it is heard of.
    pub is_hearsay: bool,
    /// The last flush that counts as acknowledged.
    pub acknowledged: Flush,
    /// Whether it has acknowledged anything, and that was honoured.
    pub has_acknowledged: bool,
    /// The last flush that has arrived there: less than this is never told again.
    pub arrived: Flush,
    /// Whether the stream has to begin with all that is known, also of what others have counted.
    pub owes_all: bool,
    /// Whether something has come of it that was not acknowledged.
    pub owes_ack: bool,
    /// Whether it says that all whom it counts know of it.
    pub is_settled: bool,
    /// Whether it has told all since it was last silent: it has acknowledged what was told since, and that was honoured.
    pub has_told_all: bool,
    /// The version of the roster that it was told last.
    pub roster_told: u64,
    pub outgoing: Outgoing,
    pub incoming: Incoming,
    pub sent: Traffic,
    pub heard: Traffic,
    /// Frames of it that are no messages.
    pub refused_frames: u64,
    /// Tallies of it that are dated too far in the future.
    pub refused_tallies: u64,
    /// How long it takes until what is sent is acknowledged, at most of late.
    round_trip_us: u64,
    /// How often in a row the stream was stuck while nothing was heard.
    doublings: u32,
}

impl Peer {
    /// A member of which nothing was known before. What is told up to `acknowledged` it need not acknowledge.
    pub fn new(node: Node, silent_since: Option<Timestamp>, acknowledged: Flush) -> Self {
        Self {
            node,
            silent_since,
            is_hearsay: false,
            acknowledged,
            has_acknowledged: false,
            arrived: 0,
            owes_all: true,
            owes_ack: false,
            is_settled: false,
            has_told_all: false,
            roster_told: 0,
            outgoing: Outgoing::default(),
            incoming: Incoming::default(),
            sent: Traffic::default(),
            heard: Traffic::default(),
            refused_frames: 0,
            refused_tallies: 0,
            round_trip_us: 0,
            doublings: 0,
        }
    }

    pub fn is_alive(&self) -> bool {
        self.silent_since.is_none()
    }

    /// Whether it is there and known to be one of the cluster: it may be counted on in a partition.
    pub fn is_voter(&self) -> bool {
        self.is_alive() && self.is_settled && self.has_told_all
    }

    /// Whether it knows who is there, and has told it.
    pub fn knows_the_cluster(&self) -> bool {
        self.is_alive() && self.is_settled && self.incoming.is_complete()
    }

    /// Notes that it has fallen silent. The stream ends: until it begins anew with all that is known, nothing is
    /// acknowledged to it, so that it is told what went on without it before it may charge more.
    pub fn fall_silent(&mut self, now: Timestamp) {
        self.silent_since = Some(now);
        self.has_told_all = false;
        self.owes_all = true;
        self.outgoing.end();
        self.incoming.forget_acknowledged();
    }

    /// Notes that a frame of it has come.
    pub fn note_heard(&mut self, bytes: usize) {
        self.heard.note(bytes);
        self.doublings = 0;
    }

    /// Takes what an acknowledgement says of the stream to it; when it may be honoured is another matter.
    pub fn take_ack(&mut self, ack: Ack, now: Timestamp) {
        let Some(Arrived { covers, round_trip_us }) = self.outgoing.arrived(ack.heard, now) else {
            return;
        };
        self.arrived = self.arrived.max(covers);
        self.owes_all &= !self.outgoing.is_complete_at(ack.heard.seq);
        if let Some(round_trip_us) = round_trip_us {
            let of_late_us = self.round_trip_us - self.round_trip_us / 8;
            self.round_trip_us = round_trip_us.max(of_late_us).min(LONGEST_ROUND_TRIP_US);
        }
        self.incoming.keep(Acknowledged { covers, sent: ack.sent });
    }

    /// The acknowledgement that it is owed, if that may be given. It names the end of what the stream to it begins with,
    /// even if that has not been sent yet: before that has come it is not honoured.
    pub fn take_owed_ack(&mut self) -> Option<Ack> {
        let heard = Some(self.incoming.heard).filter(|heard| self.owes_ack && heard.seq > 0)?;
        let ack = Ack { heard, sent: self.outgoing.promised()? };
        self.owes_ack = false;
        Some(ack)
    }

    /// Honours what may be honoured by now. Says whether that was something.
    pub fn honour(&mut self) -> bool {
        let mut is_any = false;
        while let Some(covers) = self.incoming.next_honoured() {
            self.acknowledged = self.acknowledged.max(covers);
            self.has_acknowledged = true;
            self.has_told_all = true;
            is_any = true;
        }
        is_any
    }

    /// Whether nothing arrives there any more. If nothing is heard of it either, this takes longer each time.
    pub fn is_stuck(&mut self, now: Timestamp, after_us: u64) -> bool {
        let after_us = after_us.max(self.round_trip_us.saturating_mul(2));
        let is_stuck = self.outgoing.is_stuck(now, after_us.saturating_mul(1 << self.doublings));
        if is_stuck {
            self.doublings = (self.doublings + 1).min(MAX_DOUBLINGS);
        }
        is_stuck
    }

    /// Notes that frames reach it again.
    pub fn link_up(&mut self) {
        self.doublings = 0;
        self.round_trip_us = 0;
    }
}
