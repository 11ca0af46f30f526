//! The stream of frames from one peer: how much of it has come without a gap.

use std::collections::{BTreeSet, VecDeque};

use crate::ledger::Flush;
use crate::message::Position;

/// Frames that came out of order are remembered, so many at most; beyond it they have to come again.
const MAX_AHEAD: usize = 1024;

/// Acknowledgements that wait for what they depend on, so many at most.
const MAX_WAITING: usize = 8;

/// What a peer has acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Acknowledged {
    /// All flushes up to this one.
    pub covers: Flush,
    /// How far its own stream to here had come when it said so.
    pub sent: Position,
}

/// The stream from one peer.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    /// All frames of the epoch up to here have come.
    pub heard: Position,
    /// Those beyond it that have come.
    ahead: BTreeSet<u64>,
    /// The frame that ends what the epoch began with, if that has come.
    complete_seq: Option<u64>,
    /// The frame of the newest roster that was looked at.
    roster_at: Position,
    /// What that peer has acknowledged but may not count yet, the oldest first.
    waiting: VecDeque<Acknowledged>,
}

impl Incoming {
    /// Notes a frame. What is of an epoch that has ended is no part of the stream any more.
    pub fn hear(&mut self, at: Position, is_complete: bool) {
        if at.epoch < self.heard.epoch {
            return;
        }
        if at.epoch > self.heard.epoch {
            self.heard = Position { epoch: at.epoch, seq: 0 };
            self.ahead.clear();
            self.complete_seq = None;
        }
        if is_complete {
            self.complete_seq = Some(at.seq);
        }
        if at.seq > self.heard.seq && self.ahead.len() < MAX_AHEAD {
            self.ahead.insert(at.seq);
        }
        // The next one always finds its way.
        if at.seq == self.heard.seq + 1 {
            self.heard.seq = at.seq;
        }
        while self.ahead.first().is_some_and(|seq| *seq <= self.heard.seq + 1) {
            self.heard.seq = self.ahead.pop_first().unwrap_or_default().max(self.heard.seq);
        }
    }

    /// Whether all that the epoch began with has come.
    pub fn is_complete(&self) -> bool {
        self.complete_seq.is_some_and(|seq| seq <= self.heard.seq)
    }

    /// Whether a roster of this frame is newer than the last that was looked at; it is now the last.
    pub fn is_newest_roster(&mut self, at: Position) -> bool {
        let is_newer = at > self.roster_at;
        self.roster_at = self.roster_at.max(at);
        is_newer
    }

    /// Keeps an acknowledgement until it may be honoured. Where there is no room it takes the place of the newest.
    pub fn keep(&mut self, acknowledged: Acknowledged) {
        if self.waiting.len() >= MAX_WAITING {
            self.waiting.pop_back();
        }
        self.waiting.push_back(acknowledged);
    }

    /// Drops the acknowledgements that wait.
    pub fn forget_acknowledged(&mut self) {
        self.waiting.clear();
    }

    /// All flushes up to the next one that may be honoured: whose sender had told nothing, in its stream to here, that
    /// has not come.
    pub fn next_honoured(&mut self) -> Option<Flush> {
        let nth = self.waiting.iter().position(|waiting| self.has_come(waiting.sent))?;
        self.waiting.remove(nth).map(|honoured| honoured.covers)
    }

    /// Whether all up to a place has come: itself, or told anew by a later epoch.
    fn has_come(&self, sent: Position) -> bool {
        match sent.epoch.cmp(&self.heard.epoch) {
            std::cmp::Ordering::Less => self.is_complete(),
            std::cmp::Ordering::Equal => sent.seq <= self.heard.seq,
            std::cmp::Ordering::Greater => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place(epoch: u64, seq: u64) -> Position {
        Position { epoch, seq }
    }

    fn ack(covers: Flush, sent: Position) -> Acknowledged {
        Acknowledged { covers, sent }
    }

    proptest! {
        /// Whatever is lost, repeated or late: what was heard without a gap is what a set of all says.
        #[test]
        fn what_was_heard_is_all_up_to_the_first_gap(
            frames in proptest::collection::vec((1u64..4, 1u64..20), 1..100),
        ) {
            let mut stream = Incoming::default();
            let mut all = BTreeSet::new();
            for (epoch, seq) in frames {
                stream.hear(place(epoch, seq), seq == 3);
                all.insert((epoch, seq));
                let newest = all.last().unwrap().0;
                let gap = (1..).find(|seq| !all.contains(&(newest, *seq))).unwrap();
                prop_assert_eq!(stream.heard, place(newest, gap - 1));
                prop_assert_eq!(stream.is_complete(), gap > 3);
            }
        }
    }

    #[test]
    fn far_too_much_out_of_order_is_not_remembered_and_harms_nothing() {
        let mut stream = Incoming::default();
        (2..5_000).for_each(|seq| stream.hear(place(1, seq), false));
        assert!(stream.ahead.len() <= MAX_AHEAD);
        stream.hear(place(1, 1), false);
        assert_eq!(stream.heard, place(1, MAX_AHEAD as u64 + 1));
        stream.hear(place(1, u64::MAX), false);
        stream.hear(place(u64::MAX, u64::MAX), true);
        assert!(!stream.is_complete());
    }

    #[test]
    fn an_acknowledgement_waits_for_what_its_sender_has_told() {
        let mut stream = Incoming::default();
        stream.hear(place(1, 1), true);
        stream.keep(ack(1, place(1, 2)));
        stream.keep(ack(2, place(1, 3)));
        assert_eq!(stream.next_honoured(), None);
        stream.hear(place(1, 2), false);
        assert_eq!(stream.next_honoured(), Some(1));
        assert_eq!(stream.next_honoured(), None);
    }

    #[test]
    fn a_later_epoch_tells_it_once_it_is_complete() {
        let mut stream = Incoming::default();
        stream.hear(place(1, 1), true);
        stream.keep(ack(1, place(1, 2)));
        stream.hear(place(2, 1), false);
        assert_eq!(stream.next_honoured(), None);
        stream.hear(place(2, 2), true);
        assert_eq!(stream.next_honoured(), Some(1));
    }

    #[test]
    fn of_many_acknowledgements_the_oldest_and_the_newest_are_kept() {
        let mut stream = Incoming::default();
        stream.hear(place(1, 1), true);
        (2..100).for_each(|seq| stream.keep(ack(seq, place(1, seq))));
        (2..100).for_each(|seq| stream.hear(place(1, seq), false));
        let honoured: Vec<Flush> = std::iter::from_fn(|| stream.next_honoured()).collect();
        assert_eq!(honoured, [2, 3, 4, 5, 6, 7, 8, 99]);
    }
}
