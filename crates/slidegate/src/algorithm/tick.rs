//! The division of time into ticks, the time units in which algorithms count, and the parameters of a limit in ticks.

use std::num::{NonZeroU32, NonZeroU64};

use crate::clock::Timestamp;

/// The parameters of a limit as numbers, for stores outside of this process. Time is divided into ticks: `now_us /
/// tick_us`, rounded down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitParams {
    /// The number of units that fit in a window.
    pub max: u64,
    /// The burst for `token_bucket`; the resolution for `sliding_window`; the number of counted buckets, including the
    /// current one, for `sliding_buckets`; the number of the window that begins at the nearest boundary for a `fixed_window`
    /// with a calendar; 0 for the other algorithms.
    pub extra: u32,
    /// The largest debt (units charged above the burst) for `token_bucket`; the seconds by which the phase grows at the
    /// nearest boundary for a `fixed_window` with a calendar; 0 for the other algorithms.
    pub max_debt: u32,
    /// The length of a tick in microseconds: the precision for `sliding_buckets`, 1 for `fixed_window`, 0 with a calendar.
    pub tick_us: u64,
    /// The length of the window in ticks.
    pub window: u64,
}

/// The division of time into ticks, the time unit in which an algorithm counts. A window is a whole number of ticks. A
/// tick is the smallest power of ten of microseconds for which a window has no more ticks than the algorithm supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TickResolution {
    window_ticks: NonZeroU32,
    tick_us: NonZeroU32,
}

impl TickResolution {
    /// Creates the tick resolution of a window, which has at most `max_ticks` ticks. A window that is not a whole
    /// number of ticks is rounded up, so that the guarantees of the algorithm still hold.
    pub(super) fn new(window_us: u64, max_ticks: u32) -> Self {
        let mut tick_us = 1;
        while window_us.div_ceil(tick_us) > u64::from(max_ticks) {
            tick_us *= 10;
        }
        let non_zero = |count: u64| NonZeroU32::new(count as u32).unwrap_or(NonZeroU32::MIN);
        Self { window_ticks: non_zero(window_us.div_ceil(tick_us)), tick_us: non_zero(tick_us) }
    }

    /// Returns the parameters of a limit whose window is divided into these ticks. `max` and `extra` become the fields
    /// of the result with the same names.
    pub(super) fn limit_params(&self, max: u64, extra: u32) -> LimitParams {
        LimitParams {
            max,
            extra,
            max_debt: 0,
            tick_us: self.tick_us(),
            window: self.window_ticks(),
        }
    }

    /// Returns the number of ticks in a window.
    #[inline]
    pub(super) fn window_ticks(&self) -> u64 {
        u64::from(self.window_ticks.get())
    }

    /// Returns the length of a tick in microseconds.
    #[inline]
    pub(super) fn tick_us(&self) -> u64 {
        u64::from(self.tick_us.get())
    }

    /// Returns the length of the window in microseconds.
    pub(super) fn window_us(&self) -> u64 {
        self.window_ticks() * self.tick_us()
    }

    /// Returns the number of the tick that contains a time.
    #[inline]
    pub(super) fn tick_at(&self, time: Timestamp) -> u64 {
        match self.tick_us {
            NonZeroU32::MIN => time.as_micros(),
            tick_us => time.as_micros() / NonZeroU64::from(tick_us),
        }
    }

    /// Returns the number of the first tick that does not begin before a time.
    #[inline]
    pub(super) fn tick_at_or_after(&self, time: Timestamp) -> u64 {
        self.ticks_around(time).1
    }

    /// Returns the number of the tick that contains a time, and of the first tick that does not begin before it.
    #[inline]
    pub(super) fn ticks_around(&self, time: Timestamp) -> (u64, u64) {
        let tick = self.tick_at(time);
        (tick, tick + u64::from(self.tick_start_us(tick) != time.as_micros()))
    }

    /// Returns the start of a tick in microseconds.
    #[inline]
    pub(super) fn tick_start_us(&self, tick: u64) -> u64 {
        tick.saturating_mul(self.tick_us())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tick_length_is_smallest_sufficient_power_of_ten() {
        for (window_us, tick_us, window_ticks) in [
            (1_000_000, 1, 1_000_000),
            (16_777_216, 1, 16_777_216),
            (16_777_217, 10, 1_677_722),
            (60_000_000, 10, 6_000_000),
            (604_800_000_000, 100_000, 6_048_000),
        ] {
            let ticks = TickResolution::new(window_us, 1 << 24);
            assert_eq!((ticks.tick_us(), ticks.window_ticks()), (tick_us, window_ticks));
        }
    }
}
