//! Who tells what to whom, and who may count on it: an engine without I/O and without a clock. It is handed the
//! time, what came in and who is there; it hands back frames to send, and [`Progress`], by which decisions know how
//! much of what was charged here is known everywhere.
//!
//! # How it goes
//!
//! A *flush* is what has changed, told to every member that is alive: at each tick, or at once when a key needs it.
//! Flushes have numbers. To each peer goes a stream of frames, with numbers too. An *epoch* of the stream begins with
//! all that has changed since the flush that is known to have arrived there, and ends that beginning with a roster of
//! who is there; then come the flushes. No frame is kept to be repeated: if nothing arrives for a while, another
//! epoch begins. A peer of which nothing has arrived yet, or that was silent, is told everything, what others have
//! counted included. What a member had counted that fell silent or left, those that have heard of it tell each other.
//!
//! # Why the bound holds
//!
//! *Of what a node X has charged, no node that may charge freely is without more than C = max(N, largest cost) units.*
//! A node allows a charge when with it no more than N of its units are unacknowledged, or when none is. So at any
//! moment the bound is what the last one to allow something saw, at most max, and C for each of the others. For that
//! the acknowledgements have to mean enough:
//!
//! 1. A peer acknowledges what it has merged, and merged counts only grow. So what all have acknowledged, all know.
//! 2. **Whoever joins knows nothing, so nobody may count on it.** It may not charge beyond C either: to charge more, it
//!    needs the acknowledgement of each member, and an acknowledgement is honoured only once all has come that its
//!    sender had told before it. A node acknowledges nothing to a peer before it has told it all that it knows, in
//!    the present epoch. So whoever charges freely has been told, by each member, all that this one knew. Therefore
//!    nobody has to wait until a joiner has heard what was counted before it came.
//! 3. A joiner needs the acknowledgement of all on the rosters that it gets. Of two that join at once through
//!    different members, one is on the other's roster: the member that acknowledges to both has told one of them of
//!    the other, if it has not told the other of the one.
//! 4. A silent member counts until all that it may have charged freely has left the windows: it has been without our
//!    acknowledgements for longer than a window. That holds for us if we are a majority, and then not for it, since it
//!    is none. Voters are those that are settled: whom all members knew before they first charged freely. Whoever comes
//!    to a majority from elsewhere waits a window, too, since others of that majority may just have stopped waiting
//!    for it. When a silent member comes back, it is told everything before anything is acknowledged to it.
//! 5. A member that has left charges nothing any more. What it had charged at last without an acknowledgement is at
//!    most C, as of any other.
//!
//! That a member is silent has to mean that none of those which we hear hears it, as with gossip, which is passed on.
//! A node that finds nobody for [`Settings::join_timeout`] begins a cluster of its own: if one exists that it cannot
//! reach, both count by themselves until they meet.

mod broadcast;
mod incoming;
mod members;
mod outgoing;
mod peer;
mod settings;
mod status;

use std::collections::BTreeMap;
use std::sync::Arc;

use slidegate::Timestamp;

use crate::message::{self, Ack, Message, UpdateFrame};
use crate::pn_counter::{CounterUpdate, Incarnation};
use crate::progress::{MemberProgress, Progress, SharedProgress};
use crate::replicated_counters::{FlushSeq, ReplicatedCounters};

pub use settings::{NodeInfo, Settings};
pub use status::{EngineStatus, FrameTraffic, Liveness, PeerStatus};

use members::DepartedMembers;
use peer::PeerState;
use settings::{elapsed_us, micros};

/// No stream is given up sooner, in microseconds.
const MIN_STUCK_TIMEOUT_US: u64 = 100_000;

/// A frame, and whom to send it to.
pub type OutboundFrame = (Incarnation, Vec<u8>);

/// Tells the counts of one node to the others, and takes in theirs.
#[derive(Debug)]
pub struct ReplicationEngine {
    local_node: NodeInfo,
    settings: Settings,
    started_at: Timestamp,
    /// Whether it waits for somebody who knows the cluster.
    is_joining: bool,
    /// Whether everybody whom it counted has acknowledged it, once.
    is_settled: bool,
    majority_since: Option<Timestamp>,
    /// The last flush.
    flush: FlushSeq,
    /// The last epoch of any stream.
    epoch: u64,
    /// When flushes were told, as long as somebody has not acknowledged them.
    flush_sent_at: BTreeMap<FlushSeq, Timestamp>,
    /// Bytes that may still be told of what has changed in this interval.
    flush_budget_bytes: usize,
    peers: BTreeMap<Incarnation, PeerState>,
    departed: DepartedMembers,
    /// Whose counts were told to all, in which flush: what begins a stream anew tells them to whom they did not reach.
    relayed_incarnations: Vec<(Incarnation, FlushSeq)>,
    /// Whose counts are to be told to all at the next tick.
    relay_queue: Vec<Incarnation>,
    /// Counts of such that have come since the last tick.
    forward_queue: Vec<CounterUpdate>,
    /// Counts up whenever the roster changes.
    roster_version: u64,
    rejected_frames: u64,
    progress: Arc<SharedProgress>,
}

impl ReplicationEngine {
    /// The engine of a node that starts now. One that `knows_others`, by their addresses, waits for them before it
    /// counts as the first of a cluster. How far the others have come it puts where decisions look.
    pub fn new(
        local_node: NodeInfo,
        settings: Settings,
        knows_others: bool,
        progress: Arc<SharedProgress>,
        now: Timestamp,
    ) -> Self {
        let min_bytes = settings.interval_bytes.max(2 * message::MAX_MESSAGE_BYTES);
        let settings = Settings { interval_bytes: min_bytes, ..settings };
        let mut engine = Self {
            local_node,
            flush_budget_bytes: settings.interval_bytes / 2,
            settings,
            started_at: now,
            is_joining: knows_others,
            is_settled: false,
            majority_since: None,
            flush: 0,
            epoch: 0,
            flush_sent_at: BTreeMap::new(),
            peers: BTreeMap::new(),
            departed: DepartedMembers::default(),
            relayed_incarnations: Vec::new(),
            relay_queue: Vec::new(),
            forward_queue: Vec::new(),
            roster_version: 1,
            rejected_frames: 0,
            progress,
        };
        engine.publish_progress(now);
        engine
    }

    /// An interval has passed: tells what has changed, and begins streams anew that are stuck.
    pub fn tick(
        &mut self,
        counters: &dyn ReplicatedCounters,
        now: Timestamp,
    ) -> Vec<OutboundFrame> {
        if self.is_joining && elapsed_us(self.started_at, now) >= micros(self.settings.join_timeout)
        {
            self.is_joining = false;
        }
        self.remove_long_silent(now);
        self.flush_budget_bytes = self.settings.interval_bytes / 2;
        for peer in self.peers.values_mut() {
            peer.outgoing.refill_budget(self.settings.interval_bytes);
        }
        self.restart_stuck_streams(counters, now);
        self.broadcast_relayed(counters, now);
        self.broadcast_changes(counters, now);
        self.publish_progress(now);
        self.drain_frames(now)
    }

    /// Tells at once what has changed.
    pub fn flush(
        &mut self,
        counters: &dyn ReplicatedCounters,
        now: Timestamp,
    ) -> Vec<OutboundFrame> {
        self.broadcast_changes(counters, now);
        self.drain_frames(now)
    }

    /// A frame has come, from whom it says: the transport has made sure of that.
    pub fn on_frame_received(
        &mut self,
        counters: &dyn ReplicatedCounters,
        from: Incarnation,
        frame: &[u8],
        now: Timestamp,
    ) -> Vec<OutboundFrame> {
        if from == self.local_node.incarnation {
            return Vec::new();
        }
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.record_received(frame.len());
        }
        match message::decode(frame) {
            Ok(Message::Updates(frame)) => self.on_updates_received(counters, from, frame, now),
            Ok(Message::Ack(ack)) => self.on_ack_received(from, ack, now),
            Ok(Message::Leaving) => self.on_member_left(from, now),
            Err(_) => match self.peers.get_mut(&from) {
                Some(peer) => peer.rejected_frames += 1,
                None => self.rejected_frames += 1,
            },
        }
        self.drain_frames(now)
    }

    fn on_updates_received(
        &mut self,
        counters: &dyn ReplicatedCounters,
        from: Incarnation,
        frame: UpdateFrame,
        now: Timestamp,
    ) {
        let UpdateFrame { position, is_complete, roster, mut updates } = frame;
        let received = updates.len();
        updates.retain(|update| !self.settings.is_too_far_ahead(update, now));
        let rejected = (received - updates.len()) as u64;
        // Only this node knows its own charges. Others know which of them they have refunded.
        let own =
            updates.iter_mut().filter(|update| update.incarnation == self.local_node.incarnation);
        own.for_each(|update| update.units.charged = 0);
        counters.merge(&updates, now);
        // Other nodes return units of this node's charges. It sends these tallies itself.
        updates.retain(|update| update.incarnation != self.local_node.incarnation);
        let Some(peer) = self.peers.get_mut(&from) else {
            return self.forward(&updates);
        };
        peer.rejected_updates += rejected;
        peer.incoming.on_frame_received(position, is_complete);
        peer.is_ack_due = true;
        let is_alive = peer.is_alive();
        let roster = roster.filter(|_| peer.incoming.advance_roster_position(position));
        if let Some(roster) = roster {
            self.merge_roster(from, roster, now);
        }
        if !is_alive {
            self.forward(&updates);
        }
        self.apply_acks(from, now);
    }

    fn on_ack_received(&mut self, from: Incarnation, ack: Ack, now: Timestamp) {
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.on_ack_received(ack, now);
        }
        self.apply_acks(from, now);
    }

    /// Honours what a peer has acknowledged, as far as that is allowed by now.
    fn apply_acks(&mut self, from: Incarnation, now: Timestamp) {
        if self.peers.get_mut(&from).is_some_and(PeerState::apply_acks) {
            self.prune_flush_history();
        }
        self.publish_progress(now);
    }

    /// Frames reach a peer from now on. What was on its way may be lost.
    pub fn on_link_up(
        &mut self,
        counters: &dyn ReplicatedCounters,
        to: Incarnation,
        now: Timestamp,
    ) -> Vec<OutboundFrame> {
        if let Some(peer) = self.peers.get_mut(&to) {
            peer.on_link_up();
            if peer.is_alive() && peer.outgoing.has_in_flight() {
                self.start_epoch(counters, to, now);
            }
        }
        self.drain_frames(now)
    }

    /// This node charges nothing any more: tells what has changed, and that.
    pub fn leave(
        &mut self,
        counters: &dyn ReplicatedCounters,
        now: Timestamp,
    ) -> Vec<OutboundFrame> {
        let mut frames = self.flush(counters, now);
        let alive = self.peers.values().filter(|peer| peer.is_alive());
        frames.extend(alive.map(|peer| (peer.node.incarnation, message::leaving_frame())));
        frames
    }

    /// Tells of the others, for people.
    pub fn status(&self, now: Timestamp) -> EngineStatus {
        EngineStatus::new(self, now)
    }

    /// Lets decisions know how far the others have come.
    fn publish_progress(&mut self, now: Timestamp) {
        self.update_settled();
        let is_majority = self.is_majority();
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
            max_clock_skew_us: self.settings.skew_us(),
        };
        if **self.progress.load() != progress {
            self.progress.store(Arc::new(progress));
        }
    }
}
