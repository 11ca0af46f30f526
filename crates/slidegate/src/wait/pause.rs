//! The pause of a waiting call until its next decision: of a thread, or of a task of tokio.

use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

use super::queues::QueuePlace;

/// The end of a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PauseEnd {
    /// The time until which the call paused has passed.
    Ended,
    /// The call has been woken before that time, for example because units became free.
    Woken,
}

/// The timer of a waiting call: of a thread, or of tokio.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Timer {
    Thread,
    #[cfg(feature = "tokio")]
    Tokio,
}

impl Timer {
    /// Returns the timer of an asynchronous call that has to wait. Without the feature `tokio` there is none: then the
    /// call is decided immediately, and a debug build panics.
    pub(crate) fn for_async_call() -> Option<Self> {
        #[cfg(feature = "tokio")]
        return Some(Self::Tokio);
        #[cfg(not(feature = "tokio"))]
        {
            debug_assert!(
                false,
                "asynchronous calls wait only with the feature `tokio` of slidegate"
            );
            None
        }
    }

    /// Returns the current time of the timer. The time of tokio differs from the system's time if a test has paused it.
    pub(crate) fn now(self) -> Instant {
        match self {
            Self::Thread => system_now(),
            #[cfg(feature = "tokio")]
            Self::Tokio => tokio::time::Instant::now().into_std(),
        }
    }

    /// Waits until the call is woken, or until the time `until`; with `None`, only until it is woken. The timer of
    /// threads blocks the current thread.
    pub(crate) async fn pause(self, place: &QueuePlace<'_>, until: Option<Instant>) -> PauseEnd {
        match self {
            Self::Thread => pause_thread(place, until),
            #[cfg(feature = "tokio")]
            Self::Tokio => pause_task(place, until).await,
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "threads sleep on the system's clock")]
fn system_now() -> Instant {
    Instant::now()
}

/// Blocks the current thread until the call is woken, or until the time `until`; with `None`, only until it is woken.
fn pause_thread(place: &QueuePlace<'_>, until: Option<Instant>) -> PauseEnd {
    let waker = Waker::from(Arc::new(ThreadWaker(thread::current())));
    // The thread may be unparked for another reason, so the conditions are checked again.
    while place.poll_woken(&mut Context::from_waker(&waker)).is_pending() {
        match until.map(|until| until.saturating_duration_since(system_now())) {
            Some(remaining) if remaining.is_zero() => return PauseEnd::Ended,
            Some(remaining) => thread::park_timeout(remaining),
            None => thread::park(),
        }
    }
    PauseEnd::Woken
}

/// A waker that unparks a thread.
struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits until the call is woken, or until this time; `None` is never.
#[cfg(feature = "tokio")]
async fn pause_task(place: &QueuePlace<'_>, until: Option<Instant>) -> PauseEnd {
    use std::task::Poll;

    let sleep = async {
        match until {
            Some(time) => tokio::time::sleep_until(time.into()).await,
            None => std::future::pending().await,
        }
    };
    let mut sleep = std::pin::pin!(sleep);
    std::future::poll_fn(|cx| {
        if place.poll_woken(cx).is_ready() {
            return Poll::Ready(PauseEnd::Woken);
        }
        sleep.as_mut().poll(cx).map(|()| PauseEnd::Ended)
    })
    .await
}
