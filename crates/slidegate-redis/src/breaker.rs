//! A circuit breaker: stops calls to a failing server for a while.
//!
//! The breaker reads no clock and makes no calls: the caller passes the time and reports the results of calls.
//!
//! ```text
//!            too many calls fail               the backoff is over
//!   closed ──────────────────────► open ─────────────────────────► probing
//!     ▲                              ▲                              │   │
//!     │                              └── it fails: longer backoff ──┘   │
//!     └──────────────────────────────────── it succeeds ────────────────┘
//! ```
//!
//! Each change of state begins a new epoch, and epochs are numbered. A [`BreakerCallPass`] has the epoch in which its
//! call began. If the epoch has changed when the result of the call is reported, the breaker ignores the result. So
//! late results neither open nor close the breaker.

mod settings;

use std::fmt;
use std::sync::PoisonError;
use std::time::Duration;

use slidegate::Timestamp;

use settings::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering};

pub use settings::{BreakerSettings, OpenReason};

/// Length of the windows for which failure rates are computed, in microseconds: long enough to contain several calls,
/// short enough to drop old results.
const FAILURE_WINDOW_US: u64 = 1_000_000;

/// The breaker's decision about one call.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the result of the call must be reported"]
pub enum BreakerDecision {
    /// Closed: make the call.
    Call(BreakerCallPass),
    /// Probing: make the call, which tests whether the server works again. All other calls are rejected until its
    /// result is reported.
    Probe(BreakerCallPass),
    /// Open: do not make the call, and fail immediately.
    Reject,
}

/// A permission for one call, to be passed back with the result of the call. If a pass is dropped, its call counts
/// neither as a success nor as a failure.
#[derive(Debug, PartialEq, Eq)]
pub struct BreakerCallPass {
    /// The epoch of the breaker when the call began.
    epoch: u64,
}

/// A change of state of the breaker, which the caller logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerStateChange {
    /// The breaker opened: calls are rejected until a probe succeeds.
    Opened(OpenReason),
    /// The breaker closed: calls are allowed again.
    Closed {
        /// Time for which the breaker was open.
        after: Duration,
    },
}

/// A circuit breaker. While it is closed, threads never wait for each other; while it is open, a rejection takes two
/// atomic loads.
#[derive(Debug)]
pub struct Breaker {
    settings: BreakerSettings,
    /// The number of the current epoch: even while the breaker is closed, odd while it is open or probing. Written only
    /// under the lock of `outage`.
    epoch: AtomicU64,
    /// The timestamp in microseconds from which a probe is allowed, if the breaker is open or probing. Written only
    /// under the lock of `outage`; a thread that wants to probe reads it again under the lock.
    rejects_until: AtomicU64,
    /// The results of calls since the breaker closed.
    tracker: FailureTracker,
    outage: Mutex<OutageState>,
}

/// The state of the current outage. An outage is the time during which the breaker is open or probing. Not used while
/// the breaker is closed.
#[derive(Debug, Default)]
struct OutageState {
    opened_at: Timestamp,
    /// Upper bound of the current backoff. The actual backoff is a random time between half of the bound and the bound.
    backoff: Duration,
}

impl Breaker {
    /// Creates a closed breaker.
    pub fn new(settings: BreakerSettings) -> Self {
        Self {
            settings,
            epoch: AtomicU64::new(0),
            rejects_until: AtomicU64::new(0),
            tracker: FailureTracker::default(),
            outage: Mutex::default(),
        }
    }

    /// Returns `true` if the breaker is open or probing.
    pub fn is_open(&self) -> bool {
        !is_closed_in_epoch(self.epoch.load(Ordering::Acquire))
    }

    /// Returns the time until the next probe is allowed: zero if one is due, and `None` if the breaker is closed.
    pub fn time_until_probe(&self, now: Timestamp) -> Option<Duration> {
        let micros = self.rejects_until.load(Ordering::Acquire).saturating_sub(now.as_micros());
        self.is_open().then(|| Duration::from_micros(micros))
    }

    /// Returns `true` if a call would be rejected now. Does not change the state.
    pub fn would_reject_call(&self, now: Timestamp) -> bool {
        self.decide_without_probe(now) == Some(BreakerDecision::Reject)
    }

    /// Decides whether a call may be made now. Begins a probe if one is due.
    pub fn admit(&self, now: Timestamp) -> BreakerDecision {
        self.decide_without_probe(now).unwrap_or_else(|| self.start_probe_if_due(now))
    }

    /// Records that a call got a valid response. Returns the change of state if the breaker closes, otherwise `None`.
    pub fn record_success(
        &self,
        pass: BreakerCallPass,
        now: Timestamp,
    ) -> Option<BreakerStateChange> {
        if !self.is_pass_of_current_epoch(&pass) {
            return None;
        }
        if !is_closed_in_epoch(pass.epoch) {
            return self.close_after_probe(&pass, now);
        }
        self.tracker.record_success(now);
        None
    }

    /// Records that a call got no valid response. Returns the change of state if the breaker opens, otherwise `None`.
    pub fn record_failure(
        &self,
        pass: BreakerCallPass,
        now: Timestamp,
    ) -> Option<BreakerStateChange> {
        if !self.is_pass_of_current_epoch(&pass) {
            return None;
        }
        if !is_closed_in_epoch(pass.epoch) {
            self.extend_backoff(&pass, now);
            return None;
        }
        let reason = self.tracker.record_failure(now, &self.settings)?;
        self.open_after_failure(&pass, reason, now)
    }

    /// Allows a probe immediately and resets the backoff, because the server is reachable again or has been replaced.
    /// The result of a probe that is in flight is ignored, because its connection has been lost. Has no effect while
    /// the breaker is closed.
    pub fn allow_probe(&self, now: Timestamp) {
        let mut outage = self.lock_outage_state();
        if self.is_open() {
            outage.backoff = self.settings.initial_backoff;
            self.reject_calls_until(now);
            self.advance_epoch(2);
        }
    }

    /// Locks the state of the outage. If a thread has panicked while it held the lock, the state is used nevertheless,
    /// because each write leaves a consistent state.
    fn lock_outage_state(&self) -> MutexGuard<'_, OutageState> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `true` if the breaker is still in the epoch in which the call of this pass began.
    fn is_pass_of_current_epoch(&self, pass: &BreakerCallPass) -> bool {
        self.epoch.load(Ordering::Acquire) == pass.epoch
    }

    /// Decides about a call without the lock. Calls are allowed while the breaker is closed and rejected during the
    /// backoff. Returns `None` if a probe is due, because a probe needs the lock.
    fn decide_without_probe(&self, now: Timestamp) -> Option<BreakerDecision> {
        let epoch = self.epoch.load(Ordering::Acquire);
        if is_closed_in_epoch(epoch) {
            return Some(BreakerDecision::Call(BreakerCallPass { epoch }));
        }
        let rejects_until = self.rejects_until.load(Ordering::Acquire);
        (now.as_micros() < rejects_until).then_some(BreakerDecision::Reject)
    }

    /// Decides about a call under the lock. Makes the call a probe, unless another thread has begun a probe first.
    fn start_probe_if_due(&self, now: Timestamp) -> BreakerDecision {
        let _outage = self.lock_outage_state();
        // Another thread may have begun a probe, or closed the breaker, before this thread got the lock. Then this call
        // is not a probe.
        if let Some(decision) = self.decide_without_probe(now) {
            return decision;
        }
        // If the result of this probe is never reported, another probe is allowed after this timeout.
        self.reject_calls_until(now.after(self.settings.probe_timeout));
        BreakerDecision::Probe(BreakerCallPass { epoch: self.advance_epoch(2) })
    }

    /// Opens the breaker after a failed call. Returns `None` if the epoch of the call has ended.
    fn open_after_failure(
        &self,
        pass: &BreakerCallPass,
        reason: OpenReason,
        now: Timestamp,
    ) -> Option<BreakerStateChange> {
        let mut outage = self.lock_outage_state();
        if !self.is_pass_of_current_epoch(pass) {
            return None;
        }
        *outage = OutageState { opened_at: now, backoff: self.settings.initial_backoff };
        self.start_backoff(&mut outage, now);
        self.advance_epoch(1);
        Some(BreakerStateChange::Opened(reason))
    }

    /// Doubles the backoff after a failed probe.
    fn extend_backoff(&self, pass: &BreakerCallPass, now: Timestamp) {
        let mut outage = self.lock_outage_state();
        if self.is_pass_of_current_epoch(pass) {
            outage.backoff = outage.backoff.saturating_mul(2);
            self.start_backoff(&mut outage, now);
            self.advance_epoch(2);
        }
    }

    /// Closes the breaker after a successful probe. Returns `None` if the epoch of the probe has ended.
    fn close_after_probe(
        &self,
        pass: &BreakerCallPass,
        now: Timestamp,
    ) -> Option<BreakerStateChange> {
        let outage = self.lock_outage_state();
        if !self.is_pass_of_current_epoch(pass) {
            return None;
        }
        self.tracker.clear_results();
        self.advance_epoch(1);
        let after = now.as_micros().saturating_sub(outage.opened_at.as_micros());
        Some(BreakerStateChange::Closed { after: Duration::from_micros(after) })
    }

    /// Starts a random backoff between half of the upper bound and the bound, so that instances that saw the same
    /// failure do not probe at the same time.
    fn start_backoff(&self, outage: &mut OutageState, now: Timestamp) {
        outage.backoff = outage.backoff.min(self.settings.max_backoff);
        let max_us = u64::try_from(outage.backoff.as_micros()).unwrap_or(u64::MAX);
        let random = Duration::from_micros(fastrand::u64(max_us / 2..=max_us));
        self.reject_calls_until(now.after(random));
    }

    /// Makes the breaker reject calls until the time `moment`.
    fn reject_calls_until(&self, moment: Timestamp) {
        self.rejects_until.store(moment.as_micros(), Ordering::Release);
    }

    /// Adds `step` to the number of the epoch, and returns the new number. The number must be even only while the
    /// breaker is closed: the step is 1 when the breaker opens or closes, and 2 for other changes of state. The caller
    /// must hold the lock of `outage`.
    fn advance_epoch(&self, step: u64) -> u64 {
        let epoch = self.epoch.load(Ordering::Relaxed).wrapping_add(step);
        self.epoch.store(epoch, Ordering::Release);
        epoch
    }
}

/// Returns `true` if the breaker is closed in the epoch with this number: such epochs have even numbers.
fn is_closed_in_epoch(epoch: u64) -> bool {
    epoch.is_multiple_of(2)
}

/// The results of calls while a breaker is closed: the consecutive failures, and the calls and failed calls in the
/// current window of one second. Lock-free: threads that report concurrently do not wait for each other.
#[derive(Debug, Default)]
struct FailureTracker {
    /// Failures since the last success.
    consecutive: AtomicU32,
    /// The current [`WindowCallCounts`], packed into 64 bits.
    window: AtomicU64,
}

/// The number of calls and of failed calls in one window. Packed into 64 bits, so that one atomic operation can update
/// all fields.
#[derive(Clone, Copy)]
struct WindowCallCounts {
    /// Number of the window: the current time divided by the length of a window. Only the lowest 24 bits are kept, so
    /// numbers repeat after half a year.
    number: u64,
    calls: u32,
    failed: u32,
}

impl FailureTracker {
    /// Records a successful call.
    fn record_success(&self, now: Timestamp) {
        if self.consecutive.load(Ordering::Relaxed) != 0 {
            self.consecutive.store(0, Ordering::Relaxed);
        }
        self.add_call_to_current_window(now, 0);
    }

    /// Records a failed call. Returns the reason to open the breaker, or `None` if the breaker stays closed.
    fn record_failure(&self, now: Timestamp, settings: &BreakerSettings) -> Option<OpenReason> {
        let WindowCallCounts { calls, failed, .. } = self.add_call_to_current_window(now, 1);
        let consecutive = self.consecutive.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if consecutive >= settings.consecutive_failures {
            return Some(OpenReason::ConsecutiveFailures(consecutive));
        }
        let is_over_rate = calls >= settings.min_calls && failed >= calls.div_ceil(2);
        is_over_rate.then_some(OpenReason::FailureRate { failed, calls })
    }

    /// Removes all recorded results.
    fn clear_results(&self) {
        self.consecutive.store(0, Ordering::Relaxed);
        self.window.store(0, Ordering::Relaxed);
    }

    /// Adds one call to the current window, and returns the updated window. `failed` is 1 if the call failed, otherwise
    /// 0.
    fn add_call_to_current_window(&self, now: Timestamp, failed: u32) -> WindowCallCounts {
        let mut packed = self.window.load(Ordering::Relaxed);
        loop {
            let window = WindowCallCounts::unpack_from_u64(packed).with_added_call(now, failed);
            let swapped = self.window.compare_exchange_weak(
                packed,
                window.pack_into_u64(),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match swapped {
                Ok(_) => return window,
                Err(other) => packed = other,
            }
        }
    }
}

impl WindowCallCounts {
    const PACKED_CALL_COUNT_BITS: u32 = 20;
    const MAX_PACKED_CALL_COUNT: u32 = (1 << Self::PACKED_CALL_COUNT_BITS) - 1;
    const PACKED_WINDOW_NUMBER_BITS: u32 = 64 - 2 * Self::PACKED_CALL_COUNT_BITS;

    /// Returns a copy of the window with one more call. If this window has ended, the copy is a new window with only
    /// this call.
    fn with_added_call(self, now: Timestamp, failed: u32) -> Self {
        let number = (now.as_micros() / FAILURE_WINDOW_US) % (1 << Self::PACKED_WINDOW_NUMBER_BITS);
        let Self { calls, failed: before, .. } =
            if number == self.number { self } else { Self { number, calls: 0, failed: 0 } };
        // The field for the number of calls is full after a million calls, so further calls of the window are not
        // counted.
        if calls == Self::MAX_PACKED_CALL_COUNT {
            return self;
        }
        Self { number, calls: calls + 1, failed: before + failed }
    }

    /// Packs the window into 64 bits.
    fn pack_into_u64(self) -> u64 {
        let Self { number, calls, failed } = self;
        (number << (2 * Self::PACKED_CALL_COUNT_BITS))
            | (u64::from(calls) << Self::PACKED_CALL_COUNT_BITS)
            | u64::from(failed)
    }

    /// Unpacks a window from 64 bits.
    fn unpack_from_u64(packed: u64) -> Self {
        let count = |packed: u64| packed as u32 & Self::MAX_PACKED_CALL_COUNT;
        Self {
            number: packed >> (2 * Self::PACKED_CALL_COUNT_BITS),
            calls: count(packed >> Self::PACKED_CALL_COUNT_BITS),
            failed: count(packed),
        }
    }
}

impl fmt::Display for BreakerStateChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opened(OpenReason::ConsecutiveFailures(failed)) => {
                write!(f, "circuit breaker opened after {failed} consecutive failed calls")
            }
            Self::Opened(OpenReason::FailureRate { failed, calls }) => {
                write!(
                    f,
                    "circuit breaker opened after {failed} of {calls} calls within a second failed"
                )
            }
            Self::Closed { after } => {
                write!(f, "circuit breaker closed after {:.1} s", after.as_secs_f64())
            }
        }
    }
}
