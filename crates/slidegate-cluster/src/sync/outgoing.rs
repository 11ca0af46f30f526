//! The stream of frames to one peer: what waits, what is on its way, what has arrived.

use std::collections::VecDeque;
use std::sync::Arc;

use slidegate::Timestamp;

use super::settings::since_us;
use crate::ledger::Flush;
use crate::message::{Body, Position};

/// So many frames may wait beyond what the stream begins with. Each tick adds less than it sends, but for what is
/// passed on.
const MAX_WAITING: usize = 256;

/// What waits to be sent.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub body: Arc<Body>,
    /// With it all flushes up to this one have been told.
    pub covers: Flush,
}

/// What was sent and not yet acknowledged.
#[derive(Clone, Copy, Debug)]
struct OnItsWay {
    seq: u64,
    covers: Flush,
    sent_at: Timestamp,
}

/// What an acknowledgement tells of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrived {
    /// All flushes up to this one have arrived.
    pub covers: Flush,
    /// How long ago the last of what has newly arrived was sent, in microseconds. None: nothing has newly arrived.
    pub round_trip_us: Option<u64>,
}

/// The stream to one peer. Nothing is kept to be sent again: what is lost is told by the next epoch.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// The last frame sent.
    pub sent: Position,
    waiting: VecDeque<Waiting>,
    on_its_way: VecDeque<OnItsWay>,
    /// The last frame of the epoch that has arrived.
    arrived_seq: u64,
    /// All flushes up to this one were told by that frame and those before it.
    covers: Flush,
    /// The frame that ends what the epoch began with, sent or not. None: the stream has ended.
    complete_seq: Option<u64>,
    /// Whether so much waits that it is better told anew.
    is_overfull: bool,
    /// Bytes that may still be sent in this interval.
    room: usize,
    /// The last time that something arrived, or that something was sent while nothing was on its way.
    moved_at: Timestamp,
}

impl Outgoing {
    /// Begins the stream anew with what is to be told first, the last of which completes it. Epochs only grow.
    pub fn begin(&mut self, epoch: u64, first: Vec<Waiting>) {
        self.end();
        self.sent = Position { epoch, seq: 0 };
        self.complete_seq = Some(first.len() as u64);
        self.waiting = first.into();
    }

    /// Ends the stream: what waits is dropped, what is on its way counts as lost, until it is begun anew.
    pub fn end(&mut self) {
        self.waiting.clear();
        self.on_its_way.clear();
        (self.arrived_seq, self.covers) = (0, 0);
        self.complete_seq = None;
        self.is_overfull = false;
    }

    /// Has something told after all that waits. If what was told first has been sent, and yet too much waits, the
    /// stream has to begin anew.
    pub fn push(&mut self, body: &Arc<Body>, covers: Flush) {
        self.is_overfull |= self.waiting.len() >= MAX_WAITING && self.has_told_first();
        if !self.is_overfull {
            self.waiting.push_back(Waiting { body: Arc::clone(body), covers });
        }
    }

    fn has_told_first(&self) -> bool {
        self.complete_seq.is_some_and(|seq| seq <= self.sent.seq)
    }

    /// How far the stream has come, and at least to the end of what it begins with: who has heard all up to there knows
    /// all that was known here when it began, and all that was told since. None: it has ended.
    pub fn promised(&self) -> Option<Position> {
        let seq = self.complete_seq?.max(self.sent.seq);
        Some(Position { seq, ..self.sent })
    }

    /// Whether something may be lost.
    pub fn has_unanswered(&self) -> bool {
        !self.on_its_way.is_empty()
    }

    /// A new interval: so many bytes may be sent.
    pub fn evict_if_full(&mut self, bytes: usize) {
        self.room = bytes;
    }

    /// The next frame, if there is one and room for it.
    pub fn next_frame(&mut self, now: Timestamp) -> Option<Vec<u8>> {
        let bytes = self.waiting.front()?.body.frame_bytes();
        self.room = self.room.checked_sub(bytes)?;
        let Waiting { body, covers } = self.waiting.pop_front()?;
        self.sent.seq += 1;
        let seq = self.sent.seq;
        if self.on_its_way.is_empty() {
            self.moved_at = now;
        }
        self.on_its_way.push_back(OnItsWay { seq, covers, sent_at: now });
        Some(body.frame(self.sent))
    }

    /// Notes what a peer says that it has heard without a gap. None if that is of another epoch, was never sent, or is
    /// less than is known.
    pub fn arrived(&mut self, heard: Position, now: Timestamp) -> Option<Arrived> {
        let possible = self.arrived_seq.max(1)..=self.sent.seq;
        if heard.epoch != self.sent.epoch || !possible.contains(&heard.seq) {
            return None;
        }
        let new = self.on_its_way.partition_point(|frame| frame.seq <= heard.seq);
        let last = self.on_its_way.drain(..new).next_back();
        if let Some(last) = last {
            (self.arrived_seq, self.covers, self.moved_at) = (last.seq, last.covers, now);
        }
        let round_trip_us = last.map(|last| since_us(last.sent_at, now));
        Some(Arrived { covers: self.covers, round_trip_us })
    }

    /// Whether a frame of this epoch is beyond what it began with: whoever has heard up to it has heard all that.
    pub fn is_complete_at(&self, seq: u64) -> bool {
        self.complete_seq.is_some_and(|complete| complete <= seq)
    }

    /// Whether nothing has arrived for so long although something is on its way, or too much waits.
    pub fn is_stuck(&self, now: Timestamp, after_us: u64) -> bool {
        if self.is_overfull {
            return true;
        }
        self.has_unanswered() && since_us(self.moved_at, now) >= after_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Roster;

    fn waiting(covers: Flush) -> Waiting {
        Waiting { body: Arc::new(Body::of_roster(&Roster::default(), false)), covers }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    fn place(epoch: u64, seq: u64) -> Position {
        Position { epoch, seq }
    }

    #[test]
    fn what_has_arrived_covers_its_flushes() {
        let mut stream = Outgoing::default();
        stream.evict_if_full(1_000_000);
        stream.begin(1, vec![waiting(0), waiting(7)]);
        while stream.next_frame(at(1)).is_some() {}
        assert_eq!(stream.sent, place(1, 2));
        let arrived = |covers, round_trip_us| Some(Arrived { covers, round_trip_us });
        assert_eq!(stream.arrived(place(1, 0), at(2)), None, "no frame");
        assert_eq!(stream.arrived(place(1, 1), at(2)), arrived(0, Some(1_000_000)));
        assert_eq!(stream.arrived(place(1, 1), at(2)), arrived(0, None), "nothing new");
        assert_eq!(stream.arrived(place(1, 3), at(2)), None, "never sent");
        assert_eq!(stream.arrived(place(2, 1), at(2)), None, "another epoch");
        assert_eq!(stream.arrived(place(1, 2), at(4)), arrived(7, Some(3_000_000)));
        assert_eq!(stream.arrived(place(1, 1), at(4)), None, "less than is known");
        assert!(!stream.has_unanswered());
    }

    #[test]
    fn what_has_no_room_waits_for_the_next_interval() {
        let mut stream = Outgoing::default();
        stream.begin(1, vec![waiting(0), waiting(7)]);
        stream.evict_if_full(waiting(0).body.frame_bytes() + 1);
        assert!(stream.next_frame(at(1)).is_some() && stream.next_frame(at(1)).is_none());
        assert_eq!(stream.promised(), Some(place(1, 2)), "what it begins with is promised");
        stream.evict_if_full(1_000_000);
        assert!(stream.next_frame(at(2)).is_some());
    }

    #[test]
    fn who_reads_too_slowly_is_told_anew() {
        let mut stream = Outgoing::default();
        stream.begin(1, (0..1_000).map(waiting).collect());
        let body = waiting(0).body;
        stream.push(&body, 1_000);
        assert!(!stream.is_stuck(at(1), 1), "it may begin with a lot");
        stream.evict_if_full(1_000_000);
        while stream.next_frame(at(1)).is_some() {}
        stream.arrived(place(1, 1_001), at(1));
        (0..1_000).for_each(|_| stream.push(&body, 1_001));
        assert!(stream.waiting.len() <= MAX_WAITING && stream.is_stuck(at(1), 1));
    }

    #[test]
    fn it_is_stuck_when_nothing_arrives_for_long_although_something_was_sent() {
        let mut stream = Outgoing::default();
        stream.evict_if_full(1_000_000);
        assert!(!stream.is_stuck(at(9), 1), "nothing was sent");
        stream.begin(1, vec![waiting(0), waiting(7)]);
        while stream.next_frame(at(10)).is_some() {}
        assert!(!stream.is_stuck(at(11), 2_000_000));
        stream.arrived(place(1, 1), at(11));
        assert!(!stream.is_stuck(at(12), 2_000_000), "one has arrived");
        assert!(stream.is_stuck(at(13), 2_000_000));
    }
}
