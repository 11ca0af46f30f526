//! Stream of frames from one peer. Tracks the position up to which all frames have arrived without a gap.

use std::collections::{BTreeSet, VecDeque};

use crate::message::Position;
use crate::replicated_counters::FlushSeq;

/// Maximum number of received frames that are remembered while an earlier frame is missing. Further frames are
/// forgotten, and must be sent again.
const MAX_OUT_OF_ORDER_FRAMES: usize = 1024;

/// Maximum number of acknowledgements that wait for earlier frames.
const MAX_PENDING_ACKS: usize = 8;

/// A received acknowledgement, which is stored until all earlier frames of its sender have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PendingAck {
    /// The flush that this acknowledgement covers: the last flush of this node that has arrived at the peer together
    /// with all earlier flushes.
    pub covered_flush: FlushSeq,
    /// The position that the peer had reached in its stream to this node when it sent the acknowledgement.
    pub sent: Position,
}

/// The stream of frames from one peer to this node.
#[derive(Debug, Default)]
pub(super) struct IncomingStream {
    /// The position up to which all frames of the epoch have arrived.
    pub received: Position,
    /// The sequence numbers of frames that arrived out of order: an earlier frame is still missing.
    out_of_order: BTreeSet<u64>,
    /// The number of the frame that completes the initial state of the epoch; `None` if this frame has not arrived.
    complete_seq: Option<u64>,
    /// The number of the last epoch whose initial state is the full state.
    full_epoch: u64,
    /// The position of the newest roster that has arrived.
    roster_position: Position,
    /// Acknowledgements that cannot be applied yet, oldest first.
    pending_acks: VecDeque<PendingAck>,
}

impl IncomingStream {
    /// Records that a frame at `position` of the stream has arrived. Frames of earlier epochs are ignored.
    pub fn on_frame_received(&mut self, position: Position, is_complete: bool, is_full: bool) {
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
        if is_full {
            self.full_epoch = position.epoch;
        }
        if position.seq > self.received.seq && self.out_of_order.len() < MAX_OUT_OF_ORDER_FRAMES {
            self.out_of_order.insert(position.seq);
        }
        // The next frame in order is accepted even if the maximum number of later frames is remembered.
        if position.seq == self.received.seq + 1 {
            self.received.seq = position.seq;
        }
        while self.out_of_order.first().is_some_and(|seq| *seq <= self.received.seq + 1) {
            self.received.seq =
                self.out_of_order.pop_first().unwrap_or_default().max(self.received.seq);
        }
    }

    /// Returns `true` if the initial state of the current epoch has arrived completely.
    pub fn has_initial_state(&self) -> bool {
        self.complete_seq.is_some_and(|seq| seq <= self.received.seq)
    }

    /// Returns `true` if the full state has arrived in an epoch after `epoch`. Returns `false` for `None`.
    pub fn has_full_state_after_epoch(&self, epoch: Option<u64>) -> bool {
        epoch.is_some_and(|epoch| self.full_epoch > epoch)
            && self.full_epoch == self.received.epoch
            && self.has_initial_state()
    }

    /// Returns `true` if a roster at `position` is newer than all rosters that have arrived before. If so, stores its
    /// position as the newest.
    pub fn advance_roster_position(&mut self, position: Position) -> bool {
        let is_newer = position > self.roster_position;
        self.roster_position = self.roster_position.max(position);
        is_newer
    }

    /// Stores an acknowledgement until it can be applied. If too many acknowledgements are stored, the new one replaces
    /// the newest of them.
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

    /// Removes the oldest stored acknowledgement that can be applied, and returns the flush that it covers. An
    /// acknowledgement can be applied when everything that its sender sent before it has arrived. Returns `None` if no
    /// stored acknowledgement can be applied.
    pub fn next_applicable_ack(&mut self) -> Option<FlushSeq> {
        let nth = self
            .pending_acks
            .iter()
            .position(|pending_acks| self.has_received_all_updates_up_to(pending_acks.sent))?;
        self.pending_acks.remove(nth).map(|applied| applied.covered_flush)
    }

    /// Returns `true` if all updates up to a position of the stream have arrived, either directly or in the initial
    /// state of a later epoch.
    fn has_received_all_updates_up_to(&self, sent: Position) -> bool {
        match sent.epoch.cmp(&self.received.epoch) {
            std::cmp::Ordering::Less => self.has_initial_state(),
            std::cmp::Ordering::Equal => sent.seq <= self.received.seq,
            std::cmp::Ordering::Greater => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stream_position(epoch: u64, seq: u64) -> Position {
        Position { epoch, seq }
    }

    fn pending_ack(covered_flush: FlushSeq, sent: Position) -> PendingAck {
        PendingAck { covered_flush, sent }
    }

    proptest! {
        /// Under any loss, duplication and reordering, the received position equals the position that a model computes
        /// from the set of all received frames.
        #[test]
        fn received_position_ends_at_first_gap(
            frames in proptest::collection::vec((1u64..4, 1u64..20), 1..100),
        ) {
            let mut stream = IncomingStream::default();
            let mut all = BTreeSet::new();
            for (epoch, seq) in frames {
                stream.on_frame_received(stream_position(epoch, seq), seq == 3, false);
                all.insert((epoch, seq));
                let newest = all.last().unwrap().0;
                let gap = (1..).find(|seq| !all.contains(&(newest, *seq))).unwrap();
                prop_assert_eq!(stream.received, stream_position(newest, gap - 1));
                prop_assert_eq!(stream.has_initial_state(), gap > 3);
            }
        }
    }

    #[test]
    fn stored_out_of_order_frames_are_bounded() {
        let mut stream = IncomingStream::default();
        (2..5_000).for_each(|seq| stream.on_frame_received(stream_position(1, seq), false, false));
        assert!(stream.out_of_order.len() <= MAX_OUT_OF_ORDER_FRAMES);
        stream.on_frame_received(stream_position(1, 1), false, false);
        assert_eq!(stream.received, stream_position(1, MAX_OUT_OF_ORDER_FRAMES as u64 + 1));
        stream.on_frame_received(stream_position(1, u64::MAX), false, false);
        stream.on_frame_received(stream_position(u64::MAX, u64::MAX), true, false);
        assert!(!stream.has_initial_state());
    }

    #[test]
    fn ack_waits_for_earlier_frames() {
        let mut stream = IncomingStream::default();
        stream.on_frame_received(stream_position(1, 1), true, false);
        stream.defer_ack(pending_ack(1, stream_position(1, 2)));
        stream.defer_ack(pending_ack(2, stream_position(1, 3)));
        assert_eq!(stream.next_applicable_ack(), None);
        stream.on_frame_received(stream_position(1, 2), false, false);
        assert_eq!(stream.next_applicable_ack(), Some(1));
        assert_eq!(stream.next_applicable_ack(), None);
    }

    #[test]
    fn ack_is_applied_after_initial_state_of_later_epoch() {
        let mut stream = IncomingStream::default();
        stream.on_frame_received(stream_position(1, 1), true, false);
        stream.defer_ack(pending_ack(1, stream_position(1, 2)));
        stream.on_frame_received(stream_position(2, 1), false, false);
        assert_eq!(stream.next_applicable_ack(), None);
        stream.on_frame_received(stream_position(2, 2), true, false);
        assert_eq!(stream.next_applicable_ack(), Some(1));
    }

    #[test]
    fn full_ack_queue_keeps_oldest_acks_and_newest_ack() {
        let mut stream = IncomingStream::default();
        stream.on_frame_received(stream_position(1, 1), true, false);
        (2..100).for_each(|seq| stream.defer_ack(pending_ack(seq, stream_position(1, seq))));
        (2..100).for_each(|seq| stream.on_frame_received(stream_position(1, seq), false, false));
        let applied: Vec<FlushSeq> = std::iter::from_fn(|| stream.next_applicable_ack()).collect();
        assert_eq!(applied, [2, 3, 4, 5, 6, 7, 8, 99]);
    }
}
