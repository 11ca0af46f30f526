//! Waiting for capacity, in place of a denial: the options and the bounds of calls that wait.
//!
//! [`Limiter::wait`](crate::Limiter::wait), [`Check::max_wait`](crate::Check::max_wait) and
//! [`Request::with_max_wait`](crate::Request::with_max_wait) make a call wait until it fits. Calls wait first come,
//! first served, and charge nothing until they are admitted. [`WaitOptions`] bound the calls that wait at the same
//! time, and lengthen their waits at random. [`WaitStats`] count them.
//!
//! Calls that do not wait take capacity whenever it is free. A waiting call decides again when its `retry_after` has
//! passed, or earlier, if the same gate or limiter reverts or refunds units or releases a permit. A call that only a
//! limit on requests in flight denies has no `retry_after`, and decides again at least once a second.

// A waiting call has a place in the queue of each counter that denied it. The first call of a queue sleeps until its
// `retry_after`, then decides again; the others sleep until they are first. A call decides only while no earlier call
// waits for one of its counters, so waiting calls never overtake each other. Calls that do not wait take no lock of
// this module.
//
// A call that is denied only by a limit on requests in flight decides again at growing intervals, because permits are
// released in other processes too, or expire. A call that is dropped leaves its queues.
//
// `WaitingCall` is the state of one call. It makes no decision and does not sleep; `run_wait` does both.

mod counters;
mod options;
mod pause;
pub(crate) mod queues;

use std::time::{Duration, Instant};

use crate::decision::Decision;
use crate::reason::Reason;

pub use crate::jitter::{Jitter, JitterError, JitterSample};
#[cfg(feature = "policy")]
pub(crate) use counters::charges_even_if_denied;
pub(crate) use counters::{WaitCounters, counters_that_can_deny, denying_counters};
pub use options::{WaitOptions, WaitStats};
pub(crate) use pause::{PauseEnd, Timer};

use queues::{QueueFull, QueuePlace, QueueTurn, WaitEndReason, WaitQueues};

/// The precision of timers, and the shortest sleep between two decisions about a call. A timer may fire early by this
/// much, so a wait may also end late by this much.
const TIMER_PRECISION: Duration = Duration::from_millis(1);

/// The first interval between two decisions about a call that waits for the end of another request. The interval
/// doubles with each decision. It begins again when the call is woken, because the permit for which it was woken may
/// still be released in the background.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// The longest interval between two decisions about a call that waits for the end of another request.
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The random extension of the intervals from [`MIN_RETRY_INTERVAL`] to [`MAX_RETRY_INTERVAL`], so that instances with
/// a common store do not call it at the same time.
const RETRY_JITTER: Jitter = Jitter::up_to_percent(20);

/// The next step of a call that may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitStep {
    /// Decide the call, and pass the decision to [`WaitingCall::on_check`].
    Check,
    /// Peek at the decision about the call, and pass it to [`WaitingCall::on_peek`].
    Peek,
    /// Sleep until this time, or until the call is woken, and pass the end of the pause to
    /// [`WaitingCall::on_pause_end`].
    Pause(Option<Instant>),
}

/// A call that is decided as soon as it fits, in the order of arrival, and within its maximum wait. It is denied as
/// soon as it is known that it does not fit within its wait, when its wait ends, or if a queue is full.
pub(crate) struct WaitingCall<'q> {
    started: Instant,
    deadline: Option<Instant>,
    /// Whether the call waits until its deadline for units that settlements may return.
    waits_for_settlements: bool,
    jitter: Jitter,
    place: QueuePlace<'q>,
    state: WaitState,
    has_paused: bool,
    /// The next interval between two decisions if the time at which the call fits is not known.
    retry_interval: Duration,
}

#[derive(Clone, Copy, Debug)]
enum WaitState {
    /// The call may be decided if no earlier call waits.
    Ready,
    Pausing(Option<Instant>),
    Peeking(PeekReason),
}

/// The reason why a call cannot be decided now. A peek then shows when it would fit, and so whether it is denied or
/// waits.
#[derive(Clone, Copy, Debug)]
enum PeekReason {
    QueueFull,
    /// Earlier calls wait for the same counters. Contains the time that [`QueueTurn::Later`] contains.
    Behind(Option<Instant>),
}

impl<'q> WaitingCall<'q> {
    /// Creates the state of a call that has not been decided. It waits for at most `max_wait`, with `None` until it is
    /// admitted. While it waits, its `request_bytes` count toward [`WaitOptions::max_waiting_bytes`].
    pub(crate) fn new(
        queues: &'q WaitQueues,
        max_wait: Option<Duration>,
        request_bytes: usize,
        now: Instant,
    ) -> Self {
        Self {
            started: now,
            deadline: max_wait.and_then(|wait| now.checked_add(wait)),
            waits_for_settlements: false,
            jitter: queues.options().jitter,
            place: QueuePlace::new(queues, request_bytes),
            state: WaitState::Ready,
            has_paused: false,
            retry_interval: MIN_RETRY_INTERVAL,
        }
    }

    /// Sets whether the call waits until its deadline, because settlements of other calls may return units.
    #[cfg(feature = "policy")]
    pub(crate) fn with_wait_for_settlements(self, waits_for_settlements: bool) -> Self {
        Self { waits_for_settlements, ..self }
    }

    /// Returns the next step. `counters` returns the counters that can deny the call.
    pub(crate) fn next_step(
        &mut self,
        now: Instant,
        counters: impl FnOnce() -> WaitCounters,
    ) -> WaitStep {
        match self.state {
            WaitState::Ready => {}
            WaitState::Pausing(until) => return WaitStep::Pause(until),
            WaitState::Peeking(_) => return WaitStep::Peek,
        }
        let reason = match self.place.check_turn(counters) {
            Ok(QueueTurn::Now) => return WaitStep::Check,
            Ok(QueueTurn::Later(_)) if self.has_paused && !self.is_past_deadline(now) => {
                return WaitStep::Pause(self.deadline);
            }
            Ok(QueueTurn::Later(wakes_at)) => PeekReason::Behind(wakes_at),
            Err(QueueFull) => PeekReason::QueueFull,
        };
        self.state = WaitState::Peeking(reason);
        WaitStep::Peek
    }

    /// Handles the decision of a check. Returns the final decision of the call, or `None` if it continues to wait.
    /// `denying` are the counters that deny the call.
    pub(crate) fn on_check<'l>(
        &mut self,
        now: Instant,
        decision: Decision<'l>,
        denying: &[u64],
    ) -> Option<Decision<'l>> {
        if decision.is_allowed() {
            return Some(self.end(WaitEndReason::Admitted, now, decision));
        }
        let fits_after = decision.retry_after();
        let sleep = match fits_after {
            Some(wait) if self.fits_before_deadline(now, wait) => self.jitter.draw().extend(wait),
            _ if self.waits_for_other_calls(&decision) && !self.is_past_deadline(now) => {
                self.next_retry_interval()
            }
            _ => return Some(self.end(WaitEndReason::TimedOut, now, decision)),
        };
        let remaining = self.deadline.map(|deadline| deadline.saturating_duration_since(now));
        let sleep = remaining.map_or(sleep, |remaining| sleep.min(remaining)).max(TIMER_PRECISION);
        let wakes_at = now.checked_add(sleep);
        let fits_at = fits_after.filter(|wait| self.fits_before_deadline(now, *wait)).and(wakes_at);
        self.state = match self.place.prepare_sleep(fits_at, denying) {
            Ok(true) => WaitState::Pausing(wakes_at),
            Ok(false) => WaitState::Ready,
            Err(QueueFull) => {
                let denial = decision.with_reason(Reason::WaitQueueFull);
                return Some(self.end(WaitEndReason::NeverWaited, now, denial));
            }
        };
        None
    }

    /// Handles the decision of a peek. Returns the final decision of the call, or `None` if it continues to wait.
    pub(crate) fn on_peek<'l>(
        &mut self,
        now: Instant,
        decision: Decision<'l>,
    ) -> Option<Decision<'l>> {
        let WaitState::Peeking(reason) = self.state else { return None };
        let own_wait = if decision.is_allowed() || self.waits_for_other_calls(&decision) {
            Some(Duration::ZERO)
        } else {
            decision.retry_after()
        };
        let wait_behind = match reason {
            PeekReason::Behind(Some(wakes_at)) => wakes_at.saturating_duration_since(now),
            _ => Duration::ZERO,
        };
        // A call fits at the earliest when the calls before it in its queues fit, so the longer wait applies.
        let wait = own_wait.map(|own| own.max(wait_behind));
        let end = match reason {
            PeekReason::QueueFull => WaitEndReason::NeverWaited,
            PeekReason::Behind(_) if self.has_paused => WaitEndReason::TimedOut,
            PeekReason::Behind(_)
                if wait.is_none_or(|wait| !self.fits_before_deadline(now, wait)) =>
            {
                WaitEndReason::NeverWaited
            }
            PeekReason::Behind(_) => {
                self.state = WaitState::Pausing(self.deadline);
                return None;
            }
        };
        let denial = decision.into_denial(wait.map(|wait| wait.max(TIMER_PRECISION)));
        let denial = match reason {
            PeekReason::QueueFull => denial.with_reason(Reason::WaitQueueFull),
            PeekReason::Behind(_) => denial,
        };
        Some(self.end(end, now, denial))
    }

    /// Makes the next check the last: if it denies the call, the wait ends.
    #[cfg(feature = "policy")]
    pub(crate) fn end_at_next_check(&mut self) {
        self.deadline = Some(self.started);
    }

    /// Ends the wait of a call that repeats an earlier call. It has the decision of the earlier call, so its place in the
    /// queues does not matter.
    #[cfg(feature = "policy")]
    pub(crate) fn end_repetition<'l>(
        &mut self,
        now: Instant,
        decision: Decision<'l>,
    ) -> Decision<'l> {
        let end =
            if self.has_paused { WaitEndReason::Admitted } else { WaitEndReason::NeverWaited };
        self.end(end, now, decision)
    }

    /// Continues after a pause.
    pub(crate) fn on_pause_end(&mut self, pause: PauseEnd) {
        self.has_paused = true;
        self.state = WaitState::Ready;
        if pause == PauseEnd::Woken {
            self.retry_interval = MIN_RETRY_INTERVAL;
        }
    }

    pub(crate) fn queue_place(&self) -> &QueuePlace<'q> {
        &self.place
    }

    fn end<'l>(
        &mut self,
        end: WaitEndReason,
        now: Instant,
        decision: Decision<'l>,
    ) -> Decision<'l> {
        self.place.leave_queues(end);
        if self.has_paused {
            decision.with_waited(now.saturating_duration_since(self.started))
        } else {
            decision
        }
    }

    /// Returns whether another call may make this one fit, at a time that is not known: a request in flight ends, or a
    /// settlement returns units.
    fn waits_for_other_calls(&self, decision: &Decision<'_>) -> bool {
        waits_for_permit(decision) || self.waits_for_settlements && decision.retry_after().is_some()
    }

    fn next_retry_interval(&mut self) -> Duration {
        let interval = self.retry_interval;
        self.retry_interval = (2 * interval).min(MAX_RETRY_INTERVAL);
        RETRY_JITTER.draw().extend(interval)
    }

    fn is_past_deadline(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// Returns whether a call that fits after `wait` fits within its maximum wait.
    fn fits_before_deadline(&self, now: Instant, wait: Duration) -> bool {
        let fits_at = now.checked_add(wait);
        self.deadline.is_none_or(|deadline| {
            fits_at.is_some_and(|fits_at| fits_at <= deadline + TIMER_PRECISION)
        })
    }
}

/// Returns whether the call is denied only because as many requests are in flight as a limit allows. It fits when one
/// of them ends, at a time that is not known.
fn waits_for_permit(decision: &Decision<'_>) -> bool {
    decision.reason() == Some(Reason::ConcurrencyExceeded)
}

/// Runs a [`WaitingCall`] to its end on the timer, and returns the decision of the call. The expression `check` decides
/// the call, and returns the decision and the counters that deny the call. The expression `peek` returns a decision
/// without a charge.
///
/// This is a macro, because a future with a trait for these operations is not `Send` for every lifetime
/// (rust-lang/rust#100013).
macro_rules! run_wait {
    ($wait:ident, $timer:expr, counters: $counters:expr, check: $check:expr, peek: $peek:expr $(,)?) => {
        loop {
            let decided = match $wait.next_step($timer.now(), || $counters) {
                $crate::wait::WaitStep::Check => {
                    let (decision, denying) = $check;
                    $wait.on_check($timer.now(), decision, &denying)
                }
                $crate::wait::WaitStep::Peek => {
                    let decision = $peek;
                    $wait.on_peek($timer.now(), decision)
                }
                $crate::wait::WaitStep::Pause(until) => {
                    let pause = $timer.pause($wait.queue_place(), until).await;
                    $wait.on_pause_end(pause);
                    None
                }
            };
            if let Some(decision) = decided {
                break decision;
            }
        }
    };
}
pub(crate) use run_wait;
