//! Stream of frames to one peer: queued, in flight and delivered frames.

use std::collections::VecDeque;
use std::sync::Arc;

use slidegate::Timestamp;

use super::settings::elapsed_us;
use crate::message::{FrameBody, Position};
use crate::replicated_counters::FlushSeq;

/// Maximum number of queued frames beyond the initial state. Apart from forwarded updates, each tick queues less than
/// it sends.
const MAX_QUEUED_FRAMES: usize = 256;

/// A frame that waits to be sent.
#[derive(Clone, Debug)]
pub(super) struct QueuedFrame {
    pub body: Arc<FrameBody>,
    /// The flush up to which all flushes are sent with this frame.
    pub covered_flush: FlushSeq,
}

/// A frame that is sent and not yet acknowledged.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    seq: u64,
    covered_flush: FlushSeq,
    sent_at: Timestamp,
}

/// The effect of an acknowledgement on the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AckProgress {
    /// The flush up to which all flushes have arrived.
    pub covered_flush: FlushSeq,
    /// The time since the last newly acknowledged frame was sent, in microseconds; `None` if no frame is newly
    /// acknowledged.
    pub round_trip_us: Option<u64>,
}

/// The stream to one peer. Sent frames are not stored: the next epoch repeats lost updates.
#[derive(Debug, Default)]
pub(super) struct OutgoingStream {
    /// The position of the last sent frame.
    pub sent: Position,
    queue: VecDeque<QueuedFrame>,
    in_flight: VecDeque<InFlight>,
    /// The last acknowledged frame of the epoch.
    acked_seq: u64,
    /// The flush up to which all flushes were sent with that frame and earlier ones.
    covered_flush: FlushSeq,
    /// The frame that completes the initial state of the epoch, sent or not. `None` if the stream is closed.
    complete_seq: Option<u64>,
    /// Whether too many frames are queued, so that a new epoch is better.
    is_overflowed: bool,
    /// Bytes that may still be sent in this interval.
    budget_bytes: usize,
    /// The time of the last acknowledgement of a new frame, or of the last frame that was sent while none was in
    /// flight.
    progressed_at: Timestamp,
}

impl OutgoingStream {
    /// Starts a new epoch with an initial state, whose last frame completes it. Epoch numbers must increase.
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
    pub fn push(&mut self, body: &Arc<FrameBody>, covered_flush: FlushSeq) {
        self.is_overflowed |= self.queue.len() >= MAX_QUEUED_FRAMES && self.is_initial_state_sent();
        if !self.is_overflowed {
            self.queue.push_back(QueuedFrame { body: Arc::clone(body), covered_flush });
        }
    }

    fn is_initial_state_sent(&self) -> bool {
        self.complete_seq.is_some_and(|seq| seq <= self.sent.seq)
    }

    /// Returns the position of the last sent frame, but at least the end of the initial state. A peer that has received
    /// everything up to this position knows everything that was known here at the start of the epoch and was sent
    /// since. `None` if the stream is closed.
    pub fn promised_position(&self) -> Option<Position> {
        let seq = self.complete_seq?.max(self.sent.seq);
        Some(Position { seq, ..self.sent })
    }

    /// Returns whether sent frames are not acknowledged.
    pub fn has_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Sets the byte budget of a new interval.
    pub fn refill_budget(&mut self, bytes: usize) {
        self.budget_bytes = bytes;
    }

    /// Returns the next queued frame, if it fits into the byte budget.
    pub fn next_frame(&mut self, now: Timestamp) -> Option<Vec<u8>> {
        let bytes = self.queue.front()?.body.max_frame_bytes();
        self.budget_bytes = self.budget_bytes.checked_sub(bytes)?;
        let QueuedFrame { body, covered_flush } = self.queue.pop_front()?;
        self.sent.seq += 1;
        let seq = self.sent.seq;
        if self.in_flight.is_empty() {
            self.progressed_at = now;
        }
        self.in_flight.push_back(InFlight { seq, covered_flush, sent_at: now });
        Some(body.to_frame(self.sent))
    }

    /// Applies an acknowledgement. Returns `None` if it belongs to another epoch, acknowledges a frame that was never
    /// sent, or is older than the last one.
    pub fn on_ack(&mut self, received: Position, now: Timestamp) -> Option<AckProgress> {
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
        Some(AckProgress { covered_flush: self.covered_flush, round_trip_us })
    }

    /// Returns whether the initial state has arrived if all frames up to `seq` have arrived.
    pub fn is_initial_state_delivered(&self, seq: u64) -> bool {
        self.complete_seq.is_some_and(|complete| complete <= seq)
    }

    /// Returns whether no frame was acknowledged for `timeout_us` although frames are in flight, or too many frames are
    /// queued.
    pub fn is_stuck(&self, now: Timestamp, timeout_us: u64) -> bool {
        if self.is_overflowed {
            return true;
        }
        self.has_in_flight() && elapsed_us(self.progressed_at, now) >= timeout_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Roster;

    fn queue(covered_flush: FlushSeq) -> QueuedFrame {
        QueuedFrame {
            body: Arc::new(FrameBody::from_roster(&Roster::default(), false)),
            covered_flush,
        }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    fn position(epoch: u64, seq: u64) -> Position {
        Position { epoch, seq }
    }

    #[test]
    fn acknowledged_frame_covers_its_flushes() {
        let mut stream = OutgoingStream::default();
        stream.refill_budget(1_000_000);
        stream.start_epoch(1, vec![queue(0), queue(7)]);
        while stream.next_frame(at(1)).is_some() {}
        assert_eq!(stream.sent, position(1, 2));
        let arrived =
            |covered_flush, round_trip_us| Some(AckProgress { covered_flush, round_trip_us });
        assert_eq!(stream.on_ack(position(1, 0), at(2)), None, "not a frame");
        assert_eq!(stream.on_ack(position(1, 1), at(2)), arrived(0, Some(1_000_000)));
        assert_eq!(stream.on_ack(position(1, 1), at(2)), arrived(0, None), "no new frame");
        assert_eq!(stream.on_ack(position(1, 3), at(2)), None, "never sent");
        assert_eq!(stream.on_ack(position(2, 1), at(2)), None, "another epoch");
        assert_eq!(stream.on_ack(position(1, 2), at(4)), arrived(7, Some(3_000_000)));
        assert_eq!(
            stream.on_ack(position(1, 1), at(4)),
            None,
            "older than the last acknowledgement"
        );
        assert!(!stream.has_in_flight());
    }

    #[test]
    fn frame_above_budget_waits_for_next_interval() {
        let mut stream = OutgoingStream::default();
        stream.start_epoch(1, vec![queue(0), queue(7)]);
        stream.refill_budget(queue(0).body.max_frame_bytes() + 1);
        assert!(stream.next_frame(at(1)).is_some() && stream.next_frame(at(1)).is_none());
        assert_eq!(
            stream.promised_position(),
            Some(position(1, 2)),
            "the end of the initial state is promised"
        );
        stream.refill_budget(1_000_000);
        assert!(stream.next_frame(at(2)).is_some());
    }

    #[test]
    fn slow_reader_needs_new_epoch() {
        let mut stream = OutgoingStream::default();
        stream.start_epoch(1, (0..1_000).map(queue).collect());
        let body = queue(0).body;
        stream.push(&body, 1_000);
        assert!(!stream.is_stuck(at(1), 1), "the initial state may be large");
        stream.refill_budget(1_000_000);
        while stream.next_frame(at(1)).is_some() {}
        stream.on_ack(position(1, 1_001), at(1));
        (0..1_000).for_each(|_| stream.push(&body, 1_001));
        assert!(stream.queue.len() <= MAX_QUEUED_FRAMES && stream.is_stuck(at(1), 1));
    }

    #[test]
    fn stream_without_acks_becomes_stuck() {
        let mut stream = OutgoingStream::default();
        stream.refill_budget(1_000_000);
        assert!(!stream.is_stuck(at(9), 1), "no frame in flight");
        stream.start_epoch(1, vec![queue(0), queue(7)]);
        while stream.next_frame(at(10)).is_some() {}
        assert!(!stream.is_stuck(at(11), 2_000_000));
        stream.on_ack(position(1, 1), at(11));
        assert!(!stream.is_stuck(at(12), 2_000_000), "a frame has arrived");
        assert!(stream.is_stuck(at(13), 2_000_000));
    }
}
