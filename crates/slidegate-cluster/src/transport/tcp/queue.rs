//! Frames that wait to be written to one peer: bounded in number and in bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::{MAX_QUEUED_BYTES, MAX_QUEUED_FRAMES};

/// An empty queue.
pub(super) fn queue() -> (Incoming, Outgoing) {
    let bytes = Arc::new(AtomicUsize::new(0));
    let (incoming, outgoing) = mpsc::channel(MAX_QUEUED_FRAMES);
    (Incoming { frames: incoming, bytes: Arc::clone(&bytes) }, Outgoing { frames: outgoing, bytes })
}

/// Where frames go in. There is one of it.
#[derive(Debug)]
pub(super) struct Incoming {
    frames: mpsc::Sender<Bytes>,
    bytes: Arc<AtomicUsize>,
}

impl Incoming {
    /// Says whether there was room.
    pub(super) fn put(&self, frame: Bytes) -> bool {
        let length = frame.len();
        if self.bytes.load(Ordering::Relaxed) + length > MAX_QUEUED_BYTES {
            return false;
        }
        self.bytes.fetch_add(length, Ordering::Relaxed);
        let put = self.frames.try_send(frame).is_ok();
        if !put {
            self.bytes.fetch_sub(length, Ordering::Relaxed);
        }
        put
    }
}

/// Where they come out.
#[derive(Debug)]
pub(super) struct Outgoing {
    frames: mpsc::Receiver<Bytes>,
    bytes: Arc<AtomicUsize>,
}

impl Outgoing {
    /// The next one; none if no more can come. Nothing is lost if the future is dropped.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        let frame = self.frames.recv().await;
        self.note(frame)
    }

    /// The next one, if it is there.
    pub(super) fn next_now(&mut self) -> Option<Bytes> {
        let frame = self.frames.try_recv().ok();
        self.note(frame)
    }

    fn note(&self, frame: Option<Bytes>) -> Option<Bytes> {
        frame.inspect(|frame| _ = self.bytes.fetch_sub(frame.len(), Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(incoming: &Incoming, frame: &Bytes) -> usize {
        (0..).take_while(|_| incoming.put(frame.clone())).count()
    }

    #[tokio::test]
    async fn a_queue_is_bounded_in_bytes_and_in_frames_and_has_room_again() {
        let (incoming, mut outgoing) = queue();
        for (length, room) in [(0, MAX_QUEUED_FRAMES), (65_536, MAX_QUEUED_BYTES / 65_536)] {
            let frame = Bytes::from(vec![7; length]);
            assert_eq!(fill(&incoming, &frame), room);
            assert_eq!(outgoing.next().await, Some(frame.clone()));
            assert_eq!(fill(&incoming, &frame), 1);
            while let Some(left) = outgoing.next_now() {
                assert_eq!(left, frame);
            }
        }
    }

    #[test]
    fn who_has_no_reader_is_told() {
        let (incoming, outgoing) = queue();
        drop(outgoing);
        assert!(!incoming.put(Bytes::from_static(b"hello")));
    }
}
