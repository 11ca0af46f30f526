//! The stream of frames from one peer: how much of it has come without a gap.

use std::collections::{BTreeSet, VecDeque};

use crate::message::Position;
use crate::replicated_counters::FlushSeq;

/// Frames that came out of order are remembered, so many at most; beyond it they have to come again.
const MAX_OUT_OF_ORDER: usize = 1024;

/// Acknowledgements that wait for what they depend on, so many at most.
const MAX_PENDING_ACKS: usize = 8;

/// What a peer has acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PendingAck {
    /// All flushes up to this one.
    pub covers: FlushSeq,
    /// How far its own stream to here had come when it said so.
    pub sent: Position,
}

/// The stream from one peer.
#[derive(Debug, Default)]
pub(super) struct IncomingStream {
    /// All frames of the epoch up to here have come.
    pub received: Position,
    /// Those beyond it that have come.
    out_of_order: BTreeSet<u64>,
    /// The frame that ends what the epoch began with, if that has come.
    complete_seq: Option<u64>,
    /// The frame of the newest roster that was looked at.
    roster_position: Position,
    /// What that peer has acknowledged but may not count yet, the oldest first.
    pending_acks: VecDeque<PendingAck>,
}

impl IncomingStream {
    /// Notes a frame. What is of an epoch that has ended is no part of the stream any more.
    pub fn on_frame_received(&mut self, position: Position, is_complete: bool) {
        if position.epoch < self.received.epoch {
            return;
        }
        if position.epoch > self.received.epoch {
            self.received = Position { epoch: position.epoch, seq: 0 };
            self.out_of_order.clear();
            self.complete_seq = None;
        }
        if is_complete {
            self.complete_seq = Some(position.seq);
        }
        if position.seq > self.received.seq && self.out_of_order.len() < MAX_OUT_OF_ORDER {
            self.out_of_order.insert(position.seq);
        }
        // The next one always finds its way.
        if position.seq == self.received.seq + 1 {
            self.received.seq = position.seq;
        }
        while self.out_of_order.first().is_some_and(|seq| *seq <= self.received.seq + 1) {
            self.received.seq =
                self.out_of_order.pop_first().unwrap_or_default().max(self.received.seq);
        }
    }

    /// Whether all that the epoch began with has come.
    pub fn is_complete(&self) -> bool {
        self.complete_seq.is_some_and(|seq| seq <= self.received.seq)
    }

    /// Whether a roster of this frame is newer than the last that was looked at; it is now the last.
    pub fn advance_roster_position(&mut self, position: Position) -> bool {
        let is_newer = position > self.roster_position;
        self.roster_position = self.roster_position.max(position);
        is_newer
    }

    /// Keeps an acknowledgement until it may be honoured. Where there is no room it takes the place of the newest.
    pub fn defer_ack(&mut self, acknowledged: PendingAck) {
        if self.pending_acks.len() >= MAX_PENDING_ACKS {
            self.pending_acks.pop_back();
        }
        self.pending_acks.push_back(acknowledged);
    }

    /// Drops the acknowledgements that wait.
    pub fn clear_pending_acks(&mut self) {
        self.pending_acks.clear();
    }

    /// All flushes up to the next one that may be honoured: whose sender had told nothing, in its stream to here, that
    /// has not come.
    pub fn next_applicable_ack(&mut self) -> Option<FlushSeq> {
        let nth = self
            .pending_acks
            .iter()
            .position(|pending_acks| self.has_received(pending_acks.sent))?;
        self.pending_acks.remove(nth).map(|applied| applied.covers)
    }

    /// Whether all up to a place has come: itself, or told anew by a later epoch.
    fn has_received(&self, sent: Position) -> bool {
        match sent.epoch.cmp(&self.received.epoch) {
            std::cmp::Ordering::Less => self.is_complete(),
            std::cmp::Ordering::Equal => sent.seq <= self.received.seq,
            std::cmp::Ordering::Greater => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn position(epoch: u64, seq: u64) -> Position {
        Position { epoch, seq }
    }

    fn ack(covers: FlushSeq, sent: Position) -> PendingAck {
        PendingAck { covers, sent }
    }

    proptest! {
        /// Whatever is lost, repeated or late: what was heard without a gap is what a set of all says.
        #[test]
        fn what_was_heard_is_all_up_to_the_first_gap(
            frames in proptest::collection::vec((1u64..4, 1u64..20), 1..100),
        ) {
            let mut stream = IncomingStream::default();
            let mut all = BTreeSet::new();
            for (epoch, seq) in frames {
                stream.on_frame_received(position(epoch, seq), seq == 3);
                all.insert((epoch, seq));
                let newest = all.last().unwrap().0;
                let gap = (1..).find(|seq| !all.contains(&(newest, *seq))).unwrap();
                prop_assert_eq!(stream.received, position(newest, gap - 1));
                prop_assert_eq!(stream.is_complete(), gap > 3);
            }
        }
    }

    #[test]
    fn far_too_much_out_of_order_is_not_remembered_and_harms_nothing() {
        let mut stream = IncomingStream::default();
        (2..5_000).for_each(|seq| stream.on_frame_received(position(1, seq), false));
        assert!(stream.out_of_order.len() <= MAX_OUT_OF_ORDER);
        stream.on_frame_received(position(1, 1), false);
        assert_eq!(stream.received, position(1, MAX_OUT_OF_ORDER as u64 + 1));
        stream.on_frame_received(position(1, u64::MAX), false);
        stream.on_frame_received(position(u64::MAX, u64::MAX), true);
        assert!(!stream.is_complete());
    }

    #[test]
    fn an_acknowledgement_waits_for_what_its_sender_has_told() {
        let mut stream = IncomingStream::default();
        stream.on_frame_received(position(1, 1), true);
        stream.defer_ack(ack(1, position(1, 2)));
        stream.defer_ack(ack(2, position(1, 3)));
        assert_eq!(stream.next_applicable_ack(), None);
        stream.on_frame_received(position(1, 2), false);
        assert_eq!(stream.next_applicable_ack(), Some(1));
        assert_eq!(stream.next_applicable_ack(), None);
    }

    #[test]
    fn a_later_epoch_tells_it_once_it_is_complete() {
        let mut stream = IncomingStream::default();
        stream.on_frame_received(position(1, 1), true);
        stream.defer_ack(ack(1, position(1, 2)));
        stream.on_frame_received(position(2, 1), false);
        assert_eq!(stream.next_applicable_ack(), None);
        stream.on_frame_received(position(2, 2), true);
        assert_eq!(stream.next_applicable_ack(), Some(1));
    }

    #[test]
    fn of_many_acknowledgements_the_oldest_and_the_newest_are_kept() {
        let mut stream = IncomingStream::default();
        stream.on_frame_received(position(1, 1), true);
        (2..100).for_each(|seq| stream.defer_ack(ack(seq, position(1, seq))));
        (2..100).for_each(|seq| stream.on_frame_received(position(1, seq), false));
        let applied: Vec<FlushSeq> = std::iter::from_fn(|| stream.next_applicable_ack()).collect();
        assert_eq!(applied, [2, 3, 4, 5, 6, 7, 8, 99]);
    }
}
