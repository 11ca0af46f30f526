//! Queue of frames for one peer, bounded by frames and bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::{MAX_QUEUED_BYTES, MAX_QUEUED_FRAMES};

/// Creates an empty queue.
pub(super) fn new_frame_queue() -> (OutgoingFrameSender, OutgoingFrameReceiver) {
    let bytes = Arc::new(AtomicUsize::new(0));
    let (sender, receiver) = mpsc::channel(MAX_QUEUED_FRAMES);
    (
        OutgoingFrameSender { frames: sender, bytes: Arc::clone(&bytes) },
        OutgoingFrameReceiver { frames: receiver, bytes },
    )
}

/// The sending side of a frame queue. Each queue has only one sender.
#[derive(Debug)]
pub(super) struct OutgoingFrameSender {
    frames: mpsc::Sender<Bytes>,
    bytes: Arc<AtomicUsize>,
}

impl OutgoingFrameSender {
    /// Queues a frame. Returns `false` if the queue is full or closed.
    pub(super) fn push(&self, frame: Bytes) -> bool {
        let length = frame.len();
        if self.bytes.load(Ordering::Relaxed) + length > MAX_QUEUED_BYTES {
            return false;
        }
        self.bytes.fetch_add(length, Ordering::Relaxed);
        let is_queued = self.frames.try_send(frame).is_ok();
        if !is_queued {
            self.bytes.fetch_sub(length, Ordering::Relaxed);
        }
        is_queued
    }
}

/// The receiving side of a frame queue.
#[derive(Debug)]
pub(super) struct OutgoingFrameReceiver {
    frames: mpsc::Receiver<Bytes>,
    bytes: Arc<AtomicUsize>,
}

impl OutgoingFrameReceiver {
    /// Waits for the next frame; `None` if the queue is closed. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        let frame = self.frames.recv().await;
        self.subtract_bytes_of_removed_frame(frame)
    }

    /// Returns the next queued frame without waiting; `None` if the queue is empty.
    pub(super) fn try_next(&mut self) -> Option<Bytes> {
        let frame = self.frames.try_recv().ok();
        self.subtract_bytes_of_removed_frame(frame)
    }

    fn subtract_bytes_of_removed_frame(&self, frame: Option<Bytes>) -> Option<Bytes> {
        frame.inspect(|frame| _ = self.bytes.fetch_sub(frame.len(), Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push_copies_until_queue_is_full(sender: &OutgoingFrameSender, frame: &Bytes) -> usize {
        (0..).take_while(|_| sender.push(frame.clone())).count()
    }

    #[tokio::test]
    async fn queue_is_bounded_in_bytes_and_frames() {
        let (sender, mut receiver) = new_frame_queue();
        for (length, capacity) in [(0, MAX_QUEUED_FRAMES), (65_536, MAX_QUEUED_BYTES / 65_536)] {
            let frame = Bytes::from(vec![7; length]);
            assert_eq!(push_copies_until_queue_is_full(&sender, &frame), capacity);
            assert_eq!(receiver.next().await, Some(frame.clone()));
            assert_eq!(push_copies_until_queue_is_full(&sender, &frame), 1);
            while let Some(left) = receiver.try_next() {
                assert_eq!(left, frame);
            }
        }
    }

    #[test]
    fn push_fails_without_receiver() {
        let (sender, receiver) = new_frame_queue();
        drop(receiver);
        assert!(!sender.push(Bytes::from_static(b"hello")));
    }
}
