//! Stream of frames from one peer: tracks the frames received without a gap.

use std::collections::{BTreeSet, VecDeque};

use crate::message::Position;
use crate::replicated_counters::FlushSeq;

/// Maximum number of remembered frames that arrived out of order. Further ones must be sent again.
const MAX_OUT_OF_ORDER: usize = 1024;

/// Maximum number of acknowledgements that wait for earlier frames.
const MAX_PENDING_ACKS: usize = 8;

/// An acknowledgement of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PendingAck {
    /// The flush up to which all flushes are acknowledged.
    pub covered_flush: FlushSeq,
    /// The position of the peer's own stream to this node when it sent the acknowledgement.
    pub sent: Position,
}

/// The stream from one peer.
#[derive(Debug, Default)]
pub(super) struct IncomingStream {
    /// The position up to which all frames of the epoch have arrived.
    pub received: Position,
    /// Frames beyond that position that have arrived.
    out_of_order: BTreeSet<u64>,
    /// The frame that completes the initial state of the epoch, if it has arrived.
    complete_seq: Option<u64>,
    /// The position of the newest roster.
    roster_position: Position,
    /// Acknowledgements that cannot be applied yet, oldest first.
    pending_acks: VecDeque<PendingAck>,
}

impl IncomingStream {
    /// Records a received frame. Frames of earlier epochs are ignored.
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
        // The next frame in order is always accepted.
        if position.seq == self.received.seq + 1 {
            self.received.seq = position.seq;
        }
        while self.out_of_order.first().is_some_and(|seq| *seq <= self.received.seq + 1) {
            self.received.seq =
                self.out_of_order.pop_first().unwrap_or_default().max(self.received.seq);
        }
    }

    /// Returns whether the initial state of the epoch has arrived completely.
    pub fn is_complete(&self) -> bool {
        self.complete_seq.is_some_and(|seq| seq <= self.received.seq)
    }

    /// Returns whether a roster at `position` is newer than the last one, and remembers the newer position.
    pub fn advance_roster_position(&mut self, position: Position) -> bool {
        let is_newer = position > self.roster_position;
        self.roster_position = self.roster_position.max(position);
        is_newer
    }

    /// Stores an acknowledgement until it can be applied. If there are too many, it replaces the newest one.
    pub fn defer_ack(&mut self, acknowledged: PendingAck) {
        if self.pending_acks.len() >= MAX_PENDING_ACKS {
            self.pending_acks.pop_back();
        }
        self.pending_acks.push_back(acknowledged);
    }

    /// Drops all stored acknowledgements.
    pub fn clear_pending_acks(&mut self) {
        self.pending_acks.clear();
    }

    /// Removes the next applicable acknowledgement and returns the flush that it covers. An acknowledgement is
    /// applicable when everything that its sender sent before it has arrived.
    pub fn next_applicable_ack(&mut self) -> Option<FlushSeq> {
        let nth = self
            .pending_acks
            .iter()
            .position(|pending_acks| self.has_received(pending_acks.sent))?;
        self.pending_acks.remove(nth).map(|applied| applied.covered_flush)
    }

    /// Returns whether everything up to a position has arrived, either directly or in the initial state of a later
    /// epoch.
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

    fn ack(covered_flush: FlushSeq, sent: Position) -> PendingAck {
        PendingAck { covered_flush, sent }
    }

    proptest! {
        /// Under any loss, duplication and reordering, the received position equals a model that keeps the set of all
        /// frames.
        #[test]
        fn received_position_ends_at_first_gap(
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
    fn out_of_order_frames_are_bounded() {
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
    fn ack_waits_for_earlier_frames() {
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
    fn complete_later_epoch_makes_ack_applicable() {
        let mut stream = IncomingStream::default();
        stream.on_frame_received(position(1, 1), true);
        stream.defer_ack(ack(1, position(1, 2)));
        stream.on_frame_received(position(2, 1), false);
        assert_eq!(stream.next_applicable_ack(), None);
        stream.on_frame_received(position(2, 2), true);
        assert_eq!(stream.next_applicable_ack(), Some(1));
    }

    #[test]
    fn oldest_acks_and_newest_are_kept() {
        let mut stream = IncomingStream::default();
        stream.on_frame_received(position(1, 1), true);
        (2..100).for_each(|seq| stream.defer_ack(ack(seq, position(1, seq))));
        (2..100).for_each(|seq| stream.on_frame_received(position(1, seq), false));
        let applied: Vec<FlushSeq> = std::iter::from_fn(|| stream.next_applicable_ack()).collect();
        assert_eq!(applied, [2, 3, 4, 5, 6, 7, 8, 99]);
    }
}
