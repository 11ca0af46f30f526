//! The open calls of one connection. A connection without calls closes after a while, because a client could otherwise
//! keep it open forever by responding to pings.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::sleep;

/// A connection is examined this many times in its maximum idle time.
const IDLE_CHECKS_PER_MAX_IDLE_TIME: u32 = 8;

/// Counts the calls of a connection. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct OpenCalls(Arc<CallCounts>);

#[derive(Debug, Default)]
struct CallCounts {
    started: AtomicU64,
    ended: AtomicU64,
}

/// An open call. It ends when it is dropped.
#[derive(Debug)]
pub struct OpenCall(Arc<CallCounts>);

impl OpenCalls {
    /// Counts a new call.
    pub fn start(&self) -> OpenCall {
        self.0.started.fetch_add(1, Ordering::Relaxed);
        OpenCall(self.0.clone())
    }

    /// Waits until no call has been open for `max_idle`. It ends up to a quarter of `max_idle` later.
    pub async fn wait_until_idle(&self, max_idle: Duration) {
        let mut idle_examinations = 0;
        let mut started_before = None;
        while idle_examinations <= IDLE_CHECKS_PER_MAX_IDLE_TIME {
            sleep(max_idle / IDLE_CHECKS_PER_MAX_IDLE_TIME).await;
            let ended = self.0.ended.load(Ordering::Relaxed);
            let started = self.0.started.load(Ordering::Relaxed);
            let is_idle = started == ended && started_before.replace(started) == Some(started);
            idle_examinations = if is_idle { idle_examinations + 1 } else { 0 };
        }
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tokio::time::{Instant, timeout};

    use super::*;

    const MAX_IDLE: Duration = Duration::from_secs(8);

    #[tokio::test(start_paused = true)]
    async fn connection_without_calls_is_idle_after_maximum() {
        let calls = OpenCalls::default();
        let started = Instant::now();
        calls.wait_until_idle(MAX_IDLE).await;
        let elapsed = started.elapsed();
        assert!(elapsed >= MAX_IDLE && elapsed <= MAX_IDLE * 10 / 8, "{elapsed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn open_and_repeated_calls_keep_connection() {
        let calls = OpenCalls::default();
        let mut idle = pin!(calls.wait_until_idle(MAX_IDLE));
        let open = calls.start();
        assert!(timeout(MAX_IDLE * 100, idle.as_mut()).await.is_err());
        drop(open);
        for _ in 0..10 {
            assert!(timeout(MAX_IDLE * 7 / 8, idle.as_mut()).await.is_err());
            drop(calls.start());
        }
        let last = Instant::now();
        idle.await;
        assert!(last.elapsed() >= MAX_IDLE);
    }
}
