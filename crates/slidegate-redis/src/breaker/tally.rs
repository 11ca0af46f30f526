//! How the calls of a closed breaker went.

use slidegate::Timestamp;

use super::{Cause, Settings};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Calls are judged by windows of this length: long enough for some to have been made, short enough to
/// forget what has passed.
const WINDOW_US: u64 = 1_000_000;

/// How calls went of late. Threads that report at the same instant do not wait for each other.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Failures since the last success.
    in_a_row: AtomicU32,
    /// The running [`Window`], packed.
    window: AtomicU64,
}

/// The calls of one window.
#[derive(Clone, Copy)]
struct Window {
    /// Its place in time; only the lowest bits, which come back after half a year.
    nth: u64,
    calls: u32,
    failed: u32,
}

impl Tally {
    pub(super) fn succeeded(&self, now: Timestamp) {
        if self.in_a_row.load(Ordering::Relaxed) != 0 {
            self.in_a_row.store(0, Ordering::Relaxed);
        }
        self.count(now, 0);
    }

    /// What speaks for opening, if anything does.
    pub(super) fn failed(&self, now: Timestamp, settings: &Settings) -> Option<Cause> {
        let Window { calls, failed, .. } = self.count(now, 1);
        let in_a_row = self.in_a_row.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if in_a_row >= settings.failures_in_a_row {
            return Some(Cause::InARow(in_a_row));
        }
        let judged = calls >= settings.calls_to_judge && failed >= calls.div_ceil(2);
        judged.then_some(Cause::Share { failed, calls })
    }

    pub(super) fn clear(&self) {
        self.in_a_row.store(0, Ordering::Relaxed);
        self.window.store(0, Ordering::Relaxed);
    }

    /// Counts one call; the window with it.
    fn count(&self, now: Timestamp, failed: u32) -> Window {
        let mut packed = self.window.load(Ordering::Relaxed);
        loop {
            let window = Window::unpack(packed).with(now, failed);
            let swapped = self.window.compare_exchange_weak(
                packed,
                window.pack(),
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

impl Window {
    const COUNT_BITS: u32 = 20;
    const MAX: u32 = (1 << Self::COUNT_BITS) - 1;
    const NTH_BITS: u32 = 64 - 2 * Self::COUNT_BITS;

    fn with(self, now: Timestamp, failed: u32) -> Self {
        let nth = (now.as_micros() / WINDOW_US) % (1 << Self::NTH_BITS);
        let Self { calls, failed: before, .. } =
            if nth == self.nth { self } else { Self { nth, calls: 0, failed: 0 } };
        // A window is judged by its first million calls.
        if calls == Self::MAX {
            return self;
        }
        Self { nth, calls: calls + 1, failed: before + failed }
    }

    fn pack(self) -> u64 {
        let Self { nth, calls, failed } = self;
        (nth << (2 * Self::COUNT_BITS)) | (u64::from(calls) << Self::COUNT_BITS) | u64::from(failed)
    }

    fn unpack(packed: u64) -> Self {
        let count = |packed: u64| packed as u32 & Self::MAX;
        Self {
            nth: packed >> (2 * Self::COUNT_BITS),
            calls: count(packed >> Self::COUNT_BITS),
            failed: count(packed),
        }
    }
}
