//! Stream of frames to one peer. Tracks the frames that are queued, in flight and acknowledged.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use slidegate::Timestamp;

use super::settings::elapsed_us;
use crate::message::{FrameBody, Position};
use crate::replicated_counters::FlushSeq;

/// Maximum number of queued frames after the initial state has been sent. The queue seldom reaches this length, since
/// each tick can send more bytes than it queues, unless it queues forwarded updates.
const MAX_QUEUED_FRAMES: usize = 256;

/// A frame that waits in the queue to be sent.
#[derive(Clone, Debug)]
pub(super) struct QueuedFrame {
    pub body: Arc<FrameBody>,
    /// The last flush that this frame and all earlier frames together contain completely.
    pub covered_flush: FlushSeq,
}

/// A frame that is sent and not yet acknowledged.
#[derive(Clone, Copy, Debug)]
struct InFlightFrame {
    seq: u64,
    covered_flush: FlushSeq,
    sent_at: Timestamp,
}

/// The effect of an acknowledgement on the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AckEffect {
    /// The last flush that has arrived at the peer together with all earlier flushes.
    pub covered_flush: FlushSeq,
    /// The round trip time of the last frame that this acknowledgement confirms for the first time, in microseconds;
    /// `None` if there is no such frame.
    pub round_trip_us: Option<u64>,
}

/// The stream of frames from this node to one peer. Sent frames are not stored: the next epoch repeats lost updates.
#[derive(Debug, Default)]
pub(super) struct OutgoingStream {
    /// The position of the last sent frame.
    pub sent: Position,
    /// Whether the initial state of the epoch is the full state, which includes the counters of other incarnations.
    pub is_full: bool,
    queue: VecDeque<QueuedFrame>,
    in_flight: VecDeque<InFlightFrame>,
    /// The number of the last acknowledged frame of the epoch.
    acked_seq: u64,
    /// The last flush whose updates have all arrived at the peer, according to the acknowledged frames.
    covered_flush: FlushSeq,
    /// The number of the frame that completes the initial state of the epoch. This frame may not be sent yet. `None` if
    /// the stream is closed.
    complete_seq: Option<u64>,
    /// Whether frames were dropped because too many were queued, so that a new epoch is necessary.
    is_overflowed: bool,
    /// Bytes that may still be sent in this interval.
    budget_bytes: usize,
    /// The time at which a new frame was last acknowledged, or at which a frame was last sent while no other frame was
    /// in flight.
    progressed_at: Timestamp,
}

impl OutgoingStream {
    /// Starts a new epoch with the frames of an initial state. The last of these frames completes the initial state.
    /// Epoch numbers must increase.
    pub fn start_epoch(&mut self, epoch: u64, first: Vec<QueuedFrame>) {
        self.close();
        self.sent = Position { epoch, seq: 0 };
        self.complete_seq = Some(first.len() as u64);
        self.queue = first.into();
    }

    /// Closes the stream: drops queued frames and treats frames in flight as lost, until the next epoch.
    pub fn close(&mut self) {
        self.queue.clear();
        self.in_flight.clear();
        (self.acked_seq, self.covered_flush) = (0, 0);
        self.complete_seq = None;
        self.is_overflowed = false;
    }

    /// Queues a frame. If too many frames are queued after the initial state was sent, the stream needs a new epoch.
    pub fn queue_frame(&mut self, body: &Arc<FrameBody>, covered_flush: FlushSeq) {
        self.is_overflowed |= self.queue.len() >= MAX_QUEUED_FRAMES && self.is_initial_state_sent();
        if !self.is_overflowed {
            self.queue.push_back(QueuedFrame { body: Arc::clone(body), covered_flush });
        }
    }

    fn is_initial_state_sent(&self) -> bool {
        self.complete_seq.is_some_and(|seq| seq <= self.sent.seq)
    }

    /// Returns the position of the last sent frame, or the position at which the initial state ends if that is later.
    /// Returns `None` if the stream is closed. A peer that has received all frames up to the position has received the
    /// complete initial state, and all updates that were sent after it.
    pub fn ack_barrier_position(&self) -> Option<Position> {
        let seq = self.complete_seq?.max(self.sent.seq);
        Some(Position { seq, ..self.sent })
    }

    /// Returns `true` if at least one sent frame is not acknowledged.
    pub fn has_frames_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Starts an interval in which this number of bytes may be sent.
    pub fn refill_budget(&mut self, bytes: usize) {
        self.budget_bytes = bytes;
    }

    /// Removes the next frame from the queue and returns it with its position. Returns `None` if the queue is empty, or
    /// if the frame exceeds the remaining byte budget.
    pub fn next_frame(&mut self, now: Timestamp) -> Option<Bytes> {
        let bytes = self.queue.front()?.body.max_frame_bytes();
        self.budget_bytes = self.budget_bytes.checked_sub(bytes)?;
        let QueuedFrame { body, covered_flush } = self.queue.pop_front()?;
        self.sent.seq += 1;
        let seq = self.sent.seq;
        if self.in_flight.is_empty() {
            self.progressed_at = now;
        }
        self.in_flight.push_back(InFlightFrame { seq, covered_flush, sent_at: now });
        Some(body.to_frame(self.sent, now))
    }

    /// Applies an acknowledgement. Returns `None` if it belongs to another epoch, acknowledges a frame that was never
    /// sent, or is older than the last one.
    pub fn on_ack(&mut self, received: Position, now: Timestamp) -> Option<AckEffect> {
        let possible = self.acked_seq.max(1)..=self.sent.seq;
        if received.epoch != self.sent.epoch || !possible.contains(&received.seq) {
            return None;
        }
        let new = self.in_flight.partition_point(|frame| frame.seq <= received.seq);
        let last = self.in_flight.drain(..new).next_back();
        if let Some(last) = last {
            (self.acked_seq, self.covered_flush, self.progressed_at) =
                (last.seq, last.covered_flush, now);
        }
        let round_trip_us = last.map(|last| elapsed_us(last.sent_at, now));
        Some(AckEffect { covered_flush: self.covered_flush, round_trip_us })
    }

    /// Returns `true` if the frames up to number `seq` contain the whole initial state of the epoch.
    pub fn is_initial_state_delivered(&self, seq: u64) -> bool {
        self.complete_seq.is_some_and(|complete| complete <= seq)
    }

    /// Returns `true` if the stream needs a new epoch: frames are in flight and none was acknowledged for `timeout_us`
    /// microseconds, or too many frames were queued.
    pub fn is_stuck(&self, now: Timestamp, timeout_us: u64) -> bool {
        if self.is_overflowed {
            return true;
        }
        self.has_frames_in_flight() && elapsed_us(self.progressed_at, now) >= timeout_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Roster;

    fn new_queued_frame(covered_flush: FlushSeq) -> QueuedFrame {
        QueuedFrame { body: Arc::new(FrameBody::from_roster(&Roster::default())), covered_flush }
    }

    fn time_at_second(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    fn stream_position(epoch: u64, seq: u64) -> Position {
        Position { epoch, seq }
    }

    #[test]
    fn on_ack_returns_covered_flush_and_round_trip_time() {
        let mut stream = OutgoingStream::default();
        stream.refill_budget(1_000_000);
        stream.start_epoch(1, vec![new_queued_frame(0), new_queued_frame(7)]);
        while stream.next_frame(time_at_second(1)).is_some() {}
        assert_eq!(stream.sent, stream_position(1, 2));
        let arrived =
            |covered_flush, round_trip_us| Some(AckEffect { covered_flush, round_trip_us });
        assert_eq!(stream.on_ack(stream_position(1, 0), time_at_second(2)), None, "not a frame");
        assert_eq!(
            stream.on_ack(stream_position(1, 1), time_at_second(2)),
            arrived(0, Some(1_000_000))
        );
        assert_eq!(
            stream.on_ack(stream_position(1, 1), time_at_second(2)),
            arrived(0, None),
            "no new frame"
        );
        assert_eq!(stream.on_ack(stream_position(1, 3), time_at_second(2)), None, "never sent");
        assert_eq!(stream.on_ack(stream_position(2, 1), time_at_second(2)), None, "another epoch");
        assert_eq!(
            stream.on_ack(stream_position(1, 2), time_at_second(4)),
            arrived(7, Some(3_000_000))
        );
        assert_eq!(
            stream.on_ack(stream_position(1, 1), time_at_second(4)),
            None,
            "older than the last acknowledgement"
        );
        assert!(!stream.has_frames_in_flight());
    }

    #[test]
    fn frame_above_byte_budget_waits_for_next_interval() {
        let mut stream = OutgoingStream::default();
        stream.start_epoch(1, vec![new_queued_frame(0), new_queued_frame(7)]);
        stream.refill_budget(new_queued_frame(0).body.max_frame_bytes() + 1);
        assert!(
            stream.next_frame(time_at_second(1)).is_some()
                && stream.next_frame(time_at_second(1)).is_none()
        );
        assert_eq!(
            stream.ack_barrier_position(),
            Some(stream_position(1, 2)),
            "the end of the initial state is promised"
        );
        stream.refill_budget(1_000_000);
        assert!(stream.next_frame(time_at_second(2)).is_some());
    }

    #[test]
    fn stream_with_overflowed_queue_needs_new_epoch() {
        let mut stream = OutgoingStream::default();
        stream.start_epoch(1, (0..1_000).map(new_queued_frame).collect());
        let body = new_queued_frame(0).body;
        stream.queue_frame(&body, 1_000);
        assert!(!stream.is_stuck(time_at_second(1), 1), "the initial state may be large");
        stream.refill_budget(1_000_000);
        while stream.next_frame(time_at_second(1)).is_some() {}
        stream.on_ack(stream_position(1, 1_001), time_at_second(1));
        (0..1_000).for_each(|_| stream.queue_frame(&body, 1_001));
        assert!(stream.queue.len() <= MAX_QUEUED_FRAMES && stream.is_stuck(time_at_second(1), 1));
    }

    #[test]
    fn stream_without_acks_becomes_stuck() {
        let mut stream = OutgoingStream::default();
        stream.refill_budget(1_000_000);
        assert!(!stream.is_stuck(time_at_second(9), 1), "no frame in flight");
        stream.start_epoch(1, vec![new_queued_frame(0), new_queued_frame(7)]);
        while stream.next_frame(time_at_second(10)).is_some() {}
        assert!(!stream.is_stuck(time_at_second(11), 2_000_000));
        stream.on_ack(stream_position(1, 1), time_at_second(11));
        assert!(!stream.is_stuck(time_at_second(12), 2_000_000), "a frame has arrived");
        assert!(stream.is_stuck(time_at_second(13), 2_000_000));
    }
}
