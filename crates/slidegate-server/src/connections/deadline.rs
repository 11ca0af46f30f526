//! Deadlines of a connection: for the next request head, and for a request body.
//!
//! A connection sets a new deadline for each request, and nearly all deadlines are dropped long before they pass. Adding
//! each of them to the timer of the runtime and removing it again would take a lock twice. Instead, all deadlines of a
//! connection share one alarm of the runtime, which usually stays at an earlier deadline that no longer matters. When it
//! rings early, the connection checks its current deadline, and sets the alarm again.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::rt;
use parking_lot::Mutex;
use tokio::time::{Sleep, sleep_until};

/// The deadlines of one connection. Clones share one alarm. All deadlines must be polled by the same task.
#[derive(Clone, Debug, Default)]
pub struct ConnectionDeadlines(Arc<Mutex<SharedAlarm>>);

/// The alarm of a connection, which all its deadlines share.
#[derive(Debug, Default)]
struct SharedAlarm {
    alarm: Option<Pin<Box<Sleep>>>,
    /// The time until which all earlier deadlines are postponed.
    postponed_to: Option<Instant>,
}

/// A future that completes when its deadline has passed.
#[derive(Debug)]
pub struct Deadline {
    connection: ConnectionDeadlines,
    at: Instant,
}

impl ConnectionDeadlines {
    /// Returns a future that completes after `duration`.
    pub fn after(&self, duration: Duration) -> Deadline {
        self.at(rt::Timer::now(self) + duration)
    }

    /// Postpones all deadlines that would pass within `duration` until then.
    pub fn postpone(&self, duration: Duration) {
        self.0.lock().postponed_to = Some(rt::Timer::now(self) + duration);
    }

    fn at(&self, at: Instant) -> Deadline {
        Deadline { connection: self.clone(), at }
    }
}

impl Future for Deadline {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut shared = self.connection.0.lock();
        let at =
            shared.postponed_to.map_or(self.at, |postponed_to| self.at.max(postponed_to)).into();
        let alarm = shared.alarm.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if alarm.deadline() > at {
            alarm.as_mut().reset(at);
        }
        loop {
            ready!(alarm.as_mut().poll(cx));
            if alarm.deadline() >= at {
                return Poll::Ready(());
            }
            // The alarm was set for an earlier deadline.
            alarm.as_mut().reset(at);
        }
    }
}

impl rt::Sleep for Deadline {}

impl rt::Timer for ConnectionDeadlines {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(self.after(duration))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(self.at(deadline))
    }

    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Registers the deadline with the alarm.
    async fn poll_once(deadline: &mut Deadline) -> bool {
        poll_fn(|cx| Poll::Ready(Pin::new(&mut *deadline).poll(cx).is_ready())).await
    }

    #[tokio::test(start_paused = true)]
    async fn deadline_after_dropped_deadlines_is_exact() {
        let (deadlines, start) = (ConnectionDeadlines::default(), time::Instant::now());
        for _ in 0..5 {
            assert!(!poll_once(&mut deadlines.after(10 * SECOND)).await);
            time::advance(3 * SECOND).await;
        }
        deadlines.after(10 * SECOND).await;
        let elapsed = start.elapsed();
        assert!((25 * SECOND..25 * SECOND + SECOND / 100).contains(&elapsed), "{elapsed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn postponed_deadline_passes_later() {
        let (deadlines, start) = (ConnectionDeadlines::default(), time::Instant::now());
        let mut deadline = deadlines.after(10 * SECOND);
        for _ in 0..5 {
            assert!(!poll_once(&mut deadline).await);
            time::advance(7 * SECOND).await;
            deadlines.postpone(10 * SECOND);
        }
        deadline.await;
        let elapsed = start.elapsed();
        assert!((45 * SECOND..45 * SECOND + SECOND / 100).contains(&elapsed), "{elapsed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn earlier_deadline_moves_alarm_forward() {
        let (deadlines, start) = (ConnectionDeadlines::default(), time::Instant::now());
        assert!(!poll_once(&mut deadlines.after(60 * SECOND)).await);
        deadlines.after(SECOND).await;
        assert!(start.elapsed() < SECOND + SECOND / 100, "{:?}", start.elapsed());
    }
}
