//! A circuit breaker: whether a store that has failed of late is asked at all.
//!
//! It reads no clock and calls nobody: it is told what time it is, and how calls went.
//!
//! ```text
//!            too many calls fail                 the wait is over
//!   closed ──────────────────────► open ─────────────────────────► probing
//!     ▲                              ▲                              │   │
//!     │                              └──── it fails: longer wait ───┘   │
//!     └──────────────────────────────────── it succeeds ────────────────┘
//! ```
//!
//! Every state has a number, and so has the [`Ticket`] of each call: how a call went counts only in the
//! state in which it was begun. So what comes late neither opens nor closes anything.

mod tally;

use std::fmt;
use std::sync::PoisonError;
use std::time::Duration;

use slidegate::Timestamp;

use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

use tally::Tally;

/// When a breaker opens, and how long it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// It opens once so many calls in a row have failed.
    pub failures_in_a_row: u32,
    /// It opens once at least half of the calls within a second have failed, if they are so many.
    pub calls_to_judge: u32,
    /// The longest wait before the first probe. Each further wait may be twice as long.
    pub first_wait: Duration,
    /// No wait is longer than this.
    pub longest_wait: Duration,
    /// A probe that nobody reports on within this time is lost, and another may go. Longer than a call may
    /// take.
    pub probe_limit: Duration,
}

/// 5 failures in a row, or half of 20 calls; probes after half a second at most, and then after twice as
/// long up to 5 seconds.
impl Default for Settings {
    fn default() -> Self {
        Self {
            failures_in_a_row: 5,
            calls_to_judge: 20,
            first_wait: Duration::from_millis(500),
            longest_wait: Duration::from_secs(5),
            probe_limit: Duration::from_secs(1),
        }
    }
}

/// Whether the store may be asked.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "whoever calls has to report how it went"]
pub enum Admit {
    /// It may: the breaker is closed.
    Call(Ticket),
    /// It may, to find out whether it answers again. Nobody else may meanwhile.
    Probe(Ticket),
    /// It may not.
    Refuse,
}

/// The right to make one call, to be handed back with how it went. One that is lost counts for nothing.
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The state in which the call was begun.
    epoch: u64,
}

/// A change of state, worth a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The store is not asked any more, until a probe succeeds.
    Opened(Cause),
    /// The store is asked again.
    Closed {
        /// How long it was not.
        after: Duration,
    },
}

/// Why a breaker opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// So many calls in a row failed.
    InARow(u32),
    /// So many of the calls of about a second failed.
    Share {
        /// Calls that failed.
        failed: u32,
        /// All calls.
        calls: u32,
    },
}

/// Decides whether a store is asked. While it is closed, nobody waits for anybody; while it is open, a
/// refusal is two loads.
#[derive(Debug)]
pub struct Breaker {
    settings: Settings,
    /// The number of the state: even while closed. Written under the lock of `outage`.
    epoch: AtomicU64,
    /// While not closed: the moment from which somebody may probe. Written under the same lock, by which
    /// whoever means to probe looks again.
    refuses_until: AtomicU64,
    /// How calls went since it closed.
    tally: Tally,
    outage: Mutex<Outage>,
}

/// What is known while the breaker is not closed.
#[derive(Debug, Default)]
struct Outage {
    began: Timestamp,
    /// The longest that the present wait could have been.
    wait: Duration,
}

impl Breaker {
    /// A breaker that is closed.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            epoch: AtomicU64::new(0),
            refuses_until: AtomicU64::new(0),
            tally: Tally::default(),
            outage: Mutex::default(),
        }
    }

    /// Whether it is open, or probing.
    pub fn is_breaker_open(&self) -> bool {
        !is_closed(self.epoch.load(Ordering::Acquire))
    }

    /// Returns whether a call would be refused now. Does not change the state.
    #[inline]
    pub fn refuses(&self, now: Timestamp) -> bool {
        self.without_waiting(now) == Some(Admit::Refuse)
    }

    /// Whether the store may be asked now.
    #[inline]
    pub fn admit(&self, now: Timestamp) -> Admit {
        self.without_waiting(now).unwrap_or_else(|| self.begin_probe(now))
    }

    /// How a call went whose answer came.
    pub fn succeeded(&self, ticket: Ticket, now: Timestamp) -> Option<Change> {
        if !self.is_current(&ticket) {
            return None;
        }
        if !is_closed(ticket.epoch) {
            return self.close(&ticket, now);
        }
        self.tally.succeeded(now);
        None
    }

    /// How a call went whose answer did not come, or was none.
    pub fn failed(&self, ticket: Ticket, now: Timestamp) -> Option<Change> {
        if !self.is_current(&ticket) {
            return None;
        }
        if !is_closed(ticket.epoch) {
            self.wait_longer(&ticket, now);
            return None;
        }
        let cause = self.tally.failed(now, &self.settings)?;
        self.open(&ticket, cause, now)
    }

    /// The store can be reached again that could not be, or there is another in its place: whoever asks next
    /// may probe, and waits are short again.
    pub fn probe_soon(&self, now: Timestamp) {
        let mut outage = self.lock();
        if self.is_breaker_open() {
            outage.wait = self.settings.first_wait;
            self.refuse_until(now);
        }
    }

    /// What is written under the lock is whole at every moment, so a thread that panicked spoils nothing.
    fn lock(&self) -> MutexGuard<'_, Outage> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_current(&self, ticket: &Ticket) -> bool {
        self.epoch.load(Ordering::Acquire) == ticket.epoch
    }

    /// None if it is time to probe.
    #[inline]
    fn without_waiting(&self, now: Timestamp) -> Option<Admit> {
        let epoch = self.epoch.load(Ordering::Acquire);
        if is_closed(epoch) {
            return Some(Admit::Call(Ticket { epoch }));
        }
        let refuses_until = self.refuses_until.load(Ordering::Acquire);
        (now.as_micros() < refuses_until).then_some(Admit::Refuse)
    }

    #[cold]
    fn begin_probe(&self, now: Timestamp) -> Admit {
        let _outage = self.lock();
        // Somebody may have been faster.
        if let Some(admit) = self.without_waiting(now) {
            return admit;
        }
        // The bound on a probe that is lost.
        self.refuse_until(now.after(self.settings.probe_limit));
        Admit::Probe(Ticket { epoch: self.enter(2) })
    }

    #[cold]
    fn open(&self, ticket: &Ticket, cause: Cause, now: Timestamp) -> Option<Change> {
        let mut outage = self.lock();
        if !self.is_current(ticket) {
            return None;
        }
        *outage = Outage { began: now, wait: self.settings.first_wait };
        self.wait(&mut outage, now);
        self.enter(1);
        Some(Change::Opened(cause))
    }

    /// A probe failed.
    fn wait_longer(&self, ticket: &Ticket, now: Timestamp) {
        let mut outage = self.lock();
        if self.is_current(ticket) {
            outage.wait = outage.wait.saturating_mul(2);
            self.wait(&mut outage, now);
            self.enter(2);
        }
    }

    fn close(&self, ticket: &Ticket, now: Timestamp) -> Option<Change> {
        let outage = self.lock();
        if !self.is_current(ticket) {
            return None;
        }
        self.tally.clear();
        self.enter(1);
        let after = now.as_micros().saturating_sub(outage.began.as_micros());
        Some(Change::Closed { after: Duration::from_micros(after) })
    }

    /// Waits for between half of the wait and all of it: instances that saw the store fail together do not
    /// come back together.
    fn wait(&self, outage: &mut Outage, now: Timestamp) {
        outage.wait = outage.wait.min(self.settings.longest_wait);
        let most = u64::try_from(outage.wait.as_micros()).unwrap_or(u64::MAX);
        let drawn = Duration::from_micros(fastrand::u64(most / 2..=most));
        self.refuse_until(now.after(drawn));
    }

    fn refuse_until(&self, moment: Timestamp) {
        self.refuses_until.store(moment.as_micros(), Ordering::Release);
    }

    /// Enters the next state: 1 leads from a closed state to another or back, 2 from one that is not
    /// closed to another. Under the lock only.
    fn enter(&self, step: u64) -> u64 {
        let epoch = self.epoch.load(Ordering::Relaxed).wrapping_add(step);
        self.epoch.store(epoch, Ordering::Release);
        epoch
    }
}

fn is_closed(epoch: u64) -> bool {
    epoch.is_multiple_of(2)
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opened(Cause::InARow(failed)) => {
                write!(f, "the store is not asked any more: {failed} calls in a row failed")
            }
            Self::Opened(Cause::Share { failed, calls }) => {
                write!(
                    f,
                    "the store is not asked any more: {failed} of {calls} calls within a second failed"
                )
            }
            Self::Closed { after } => {
                write!(f, "the store is asked again, after {:.1} s", after.as_secs_f64())
            }
        }
    }
}
