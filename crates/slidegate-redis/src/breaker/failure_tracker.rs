//! Records the results of calls while a circuit breaker is closed. Counts the consecutive failures, and the calls and
//! failed calls in the current window of one second.

use slidegate::Timestamp;

use super::settings::sync::{AtomicU32, AtomicU64, Ordering};
use super::settings::{OpenReason, Settings};

/// Length of the windows for which failure rates are computed, in microseconds: long enough to contain several calls,
/// short enough to drop old results.
const FAILURE_WINDOW_US: u64 = 1_000_000;

/// The recent results of calls. Lock-free: threads that report concurrently do not wait for each other.
#[derive(Debug, Default)]
pub(super) struct FailureTracker {
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
    pub(super) fn record_success(&self, now: Timestamp) {
        if self.consecutive.load(Ordering::Relaxed) != 0 {
            self.consecutive.store(0, Ordering::Relaxed);
        }
        self.add_call_to_current_window(now, 0);
    }

    /// Records a failed call. Returns the reason to open the breaker, or `None` if the breaker stays closed.
    pub(super) fn record_failure(&self, now: Timestamp, settings: &Settings) -> Option<OpenReason> {
        let WindowCallCounts { calls, failed, .. } = self.add_call_to_current_window(now, 1);
        let consecutive = self.consecutive.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if consecutive >= settings.consecutive_failures {
            return Some(OpenReason::ConsecutiveFailures(consecutive));
        }
        let is_over_rate = calls >= settings.min_calls && failed >= calls.div_ceil(2);
        is_over_rate.then_some(OpenReason::FailureRate { failed, calls })
    }

    /// Removes all recorded results.
    pub(super) fn clear_results(&self) {
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
        // Only the first million calls of a window count.
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
