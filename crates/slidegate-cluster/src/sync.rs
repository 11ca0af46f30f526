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
//! A node that finds nobody for [`Settings::join_wait`] begins a cluster of its own: if one exists that it cannot
//! reach, both count by themselves until they meet.

mod incoming;
mod members;
mod outgoing;
mod peer;
mod settings;
mod status;
mod telling;

use std::collections::BTreeMap;
use std::sync::Arc;

use slidegate::Timestamp;

use crate::counts::{Incarnation, Told};
use crate::ledger::{Flush, Ledger};
use crate::message::{self, Ack, Counts, Message};
use crate::progress::{Member, Progress, Published};

pub use settings::{Node, Settings};
pub use status::{MemberStatus, Standing, Status, Traffic};

use members::Departed;
use peer::Peer;
use settings::{micros, since_us};

/// No stream is given up sooner, in microseconds.
const SHORTEST_STUCK_US: u64 = 100_000;

/// A frame, and whom to send it to.
pub type Addressed = (Incarnation, Vec<u8>);

/// Tells the counts of one node to the others, and takes in theirs.
#[derive(Debug)]
pub struct Engine {
    me: Node,
    settings: Settings,
    started_at: Timestamp,
    /// Whether it waits for somebody who knows the cluster.
    is_joining: bool,
    /// Whether everybody whom it counted has acknowledged it, once.
    is_settled: bool,
    majority_since: Option<Timestamp>,
    /// The last flush.
    flush: Flush,
    /// The last epoch of any stream.
    epoch: u64,
    /// When flushes were told, as long as somebody has not acknowledged them.
    told_at: BTreeMap<Flush, Timestamp>,
    /// Bytes that may still be told of what has changed in this interval.
    flush_room: usize,
    peers: BTreeMap<Incarnation, Peer>,
    departed: Departed,
    /// Whose counts were told to all, in which flush: what begins a stream anew tells them to whom they did not reach.
    relayed: Vec<(Incarnation, Flush)>,
    /// Whose counts are to be told to all at the next tick.
    to_relay: Vec<Incarnation>,
    /// Counts of such that have come since the last tick.
    to_pass_on: Vec<Told>,
    /// Counts up whenever the roster changes.
    roster: u64,
    refused_frames: u64,
    progress: Arc<Published>,
}

impl Engine {
    /// The engine of a node that starts now. One that `knows_others`, by their addresses, waits for them before it
    /// counts as the first of a cluster. How far the others have come it puts where decisions look.
    pub fn new(
        me: Node,
        settings: Settings,
        knows_others: bool,
        progress: Arc<Published>,
        now: Timestamp,
    ) -> Self {
        let least_bytes = settings.interval_bytes.max(2 * message::MAX_BYTES);
        let settings = Settings { interval_bytes: least_bytes, ..settings };
        let mut engine = Self {
            me,
            flush_room: settings.interval_bytes / 2,
            settings,
            started_at: now,
            is_joining: knows_others,
            is_settled: false,
            majority_since: None,
            flush: 0,
            epoch: 0,
            told_at: BTreeMap::new(),
            peers: BTreeMap::new(),
            departed: Departed::default(),
            relayed: Vec::new(),
            to_relay: Vec::new(),
            to_pass_on: Vec::new(),
            roster: 1,
            refused_frames: 0,
            progress,
        };
        engine.publish(now);
        engine
    }

    /// An interval has passed: tells what has changed, and begins streams anew that are stuck.
    pub fn tick(&mut self, ledger: &dyn Ledger, now: Timestamp) -> Vec<Addressed> {
        if self.is_joining && since_us(self.started_at, now) >= micros(self.settings.join_wait) {
            self.is_joining = false;
        }
        self.forget_silent(now);
        self.flush_room = self.settings.interval_bytes / 2;
        for peer in self.peers.values_mut() {
            peer.outgoing.evict_if_full(self.settings.interval_bytes);
        }
        self.begin_stuck_anew(ledger, now);
        self.tell_relayed(ledger, now);
        self.tell_changed(ledger, now);
        self.publish(now);
        self.send(now)
    }

    /// Tells at once what has changed.
    pub fn flush(&mut self, ledger: &dyn Ledger, now: Timestamp) -> Vec<Addressed> {
        self.tell_changed(ledger, now);
        self.send(now)
    }

    /// A frame has come, from whom it says: the transport has made sure of that.
    pub fn heard(
        &mut self,
        ledger: &dyn Ledger,
        from: Incarnation,
        frame: &[u8],
        now: Timestamp,
    ) -> Vec<Addressed> {
        if from == self.me.incarnation {
            return Vec::new();
        }
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.note_heard(frame.len());
        }
        match message::decode(frame) {
            Ok(Message::Counts(counts)) => self.heard_counts(ledger, from, counts, now),
            Ok(Message::Ack(ack)) => self.heard_ack(from, ack, now),
            Ok(Message::Leaving) => self.left(from, now),
            Err(_) => match self.peers.get_mut(&from) {
                Some(peer) => peer.refused_frames += 1,
                None => self.refused_frames += 1,
            },
        }
        self.send(now)
    }

    fn heard_counts(
        &mut self,
        ledger: &dyn Ledger,
        from: Incarnation,
        counts: Counts,
        now: Timestamp,
    ) {
        let Counts { at, is_complete, roster, mut tallies } = counts;
        let told = tallies.len();
        tallies.retain(|told| !self.settings.is_absurd(told, now));
        let refused = (told - tallies.len()) as u64;
        // Only this node knows its own charges. Others know which of them they have refunded.
        let own = tallies.iter_mut().filter(|told| told.incarnation == self.me.incarnation);
        own.for_each(|told| told.tally.charged = 0);
        ledger.merge(&tallies, now);
        // Other nodes return units of this node's charges. It sends these tallies itself.
        tallies.retain(|told| told.incarnation != self.me.incarnation);
        let Some(peer) = self.peers.get_mut(&from) else {
            return self.pass_on(&tallies);
        };
        peer.refused_tallies += refused;
        peer.incoming.hear(at, is_complete);
        peer.owes_ack = true;
        let is_alive = peer.is_alive();
        let roster = roster.filter(|_| peer.incoming.is_newest_roster(at));
        if let Some(roster) = roster {
            self.take_roster(from, roster, now);
        }
        if !is_alive {
            self.pass_on(&tallies);
        }
        self.honour(from, now);
    }

    fn heard_ack(&mut self, from: Incarnation, ack: Ack, now: Timestamp) {
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.take_ack(ack, now);
        }
        self.honour(from, now);
    }

    /// Honours what a peer has acknowledged, as far as that is allowed by now.
    fn honour(&mut self, from: Incarnation, now: Timestamp) {
        if self.peers.get_mut(&from).is_some_and(Peer::honour) {
            self.forget_told();
        }
        self.publish(now);
    }

    /// Frames reach a peer from now on. What was on its way may be lost.
    pub fn link_up(
        &mut self,
        ledger: &dyn Ledger,
        to: Incarnation,
        now: Timestamp,
    ) -> Vec<Addressed> {
        if let Some(peer) = self.peers.get_mut(&to) {
            peer.link_up();
            if peer.is_alive() && peer.outgoing.has_unanswered() {
                self.begin(ledger, to, now);
            }
        }
        self.send(now)
    }

    /// This node charges nothing any more: tells what has changed, and that.
    pub fn leave(&mut self, ledger: &dyn Ledger, now: Timestamp) -> Vec<Addressed> {
        let mut frames = self.flush(ledger, now);
        let alive = self.peers.values().filter(|peer| peer.is_alive());
        frames.extend(alive.map(|peer| (peer.node.incarnation, message::leaving_frame())));
        frames
    }

    /// Tells of the others, for people.
    pub fn status(&self, now: Timestamp) -> Status {
        Status::of(self, now)
    }

    /// Lets decisions know how far the others have come.
    fn publish(&mut self, now: Timestamp) {
        self.settle();
        let is_majority = self.is_majority();
        self.majority_since = self.majority_since.or(Some(now)).filter(|_| is_majority);
        let waited_for = self.peers.values().filter(|peer| !peer.is_hearsay);
        let members = waited_for.map(|peer| Member {
            incarnation: peer.node.incarnation,
            acknowledged: peer.acknowledged,
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
