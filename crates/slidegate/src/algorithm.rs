//! The rate-limiting algorithms. Users choose an [`Algorithm`]. Each algorithm is implemented by a [`Counter`], and the
//! enum `AnyCounter` has one variant for each counter.
//!
//! An algorithm is integer arithmetic without clock, locks and I/O; the Lua scripts in slidegate-redis do the same
//! arithmetic. To add an algorithm, implement [`Counter`] in a new file in `algorithm/`, and add a variant to
//! `AnyCounter`, a table in `store/memory/shard.rs`, and Lua scripts. The compiler reports other places that need a
//! change. The conformance suite tests all algorithms in [`Algorithm::ALL`].

pub mod additive;
pub mod fixed_window;
mod ring;
pub mod sliding_buckets;
pub mod sliding_log;
pub mod sliding_window;
pub mod token_bucket;

use std::fmt;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::heap::HeapSize;
use crate::limit::LimitParams;
use crate::outcome::Outcome;

use fixed_window::FixedWindow;
use sliding_buckets::SlidingBuckets;
use sliding_log::SlidingLog;
use sliding_window::SlidingWindow;
use token_bucket::TokenBucket;

/// A rate-limiting algorithm with its parameters. `docs/ALGORITHMS.md` describes the guarantees of each algorithm and
/// when to choose it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Records every charge in the window. The result is exact: a window never contains more than max units, and a cost
    /// that fits is never denied.
    SlidingLog,
    /// Divides the window into buckets, and counts the oldest bucket in full, even if the window covers only a part of
    /// it. Admits at most max units in any window.
    SlidingBuckets {
        /// The length of a bucket; must divide the window. Default: a tenth of the window.
        precision: Option<Duration>,
    },
    /// Counts the current and the previous window, and multiplies the previous count by the fraction of the previous
    /// window that the sliding window still covers. Admits about max units per window, with 16 bytes of state per key.
    #[default]
    SlidingWindow,
    /// Counts each window separately. Admits up to twice max in a time span of one window length that contains a window
    /// boundary.
    FixedWindow {
        /// The alignment of the windows.
        align: Align,
    },
    /// The generic cell rate algorithm (GCRA): admits a steady rate, and in addition a burst.
    TokenBucket {
        /// The number of units that fit at once if no unit of a key is in use. Default: the max of the quota.
        burst: Option<u64>,
        /// The largest debt: the number of units above the burst that can be charged without a check, for example by
        /// reports of units that a client has consumed already. Default: twice max.
        max_debt: Option<u64>,
    },
}

/// The alignment of fixed windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Align {
    /// Windows begin at an offset that is a stable hash of the key, so that different keys reset at different times.
    #[default]
    Key,
    /// Windows follow the calendar in UTC: a minute begins at second 0, a day at midnight.
    Clock,
}

impl Algorithm {
    /// All algorithms with default parameters, in the order of the sections in `docs/ALGORITHMS.md`.
    pub const ALL: [Self; 5] = [
        Self::SlidingLog,
        Self::SlidingBuckets { precision: None },
        Self::SlidingWindow,
        Self::FixedWindow { align: Align::Key },
        Self::TokenBucket { burst: None, max_debt: None },
    ];

    /// Returns the name of the algorithm, as written in policies, keys and file names, for example `sliding_log`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::SlidingLog => "sliding_log",
            Self::SlidingBuckets { .. } => "sliding_buckets",
            Self::SlidingWindow => "sliding_window",
            Self::FixedWindow { .. } => "fixed_window",
            Self::TokenBucket { .. } => "token_bucket",
        }
    }

    /// Returns the algorithm with this name, with default parameters; `None` if there is no such algorithm.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An algorithm with a quota: pure arithmetic over the state of one key.
///
/// A new key has the default state. The time of a key never decreases: if `now` is before the key's last charge, the
/// time of the last charge is used instead. The durations in an outcome are nevertheless measured from `now`.
pub trait Counter: Copy {
    /// The state of one key.
    type State: Clone + fmt::Debug + Default + HeapSize + PartialEq + Send + 'static;

    /// Returns the outcome of a hit that requires `required` free units at `now`. A hit that requires 0 units fits as
    /// long as at most max units are used.
    fn peek(&self, state: &Self::State, now: Timestamp, required: u64) -> Outcome;

    /// Returns the number of units that a charge of `cost` units counts: less than `cost` only if the whole cost would
    /// exceed the largest debt.
    #[inline(always)]
    fn chargeable_units(&self, _: &Self::State, _: Timestamp, cost: u64) -> u64 {
        cost
    }

    /// Charges `cost` units without checking whether they fit. The caller must have limited `cost` to the
    /// [chargeable](Self::chargeable_units) units.
    fn charge(&self, state: &mut Self::State, now: Timestamp, cost: u64) -> ChargeEffect;

    /// Reverts a charge of `cost` units that was counted at the time `charged_at`. Has no effect on units that have
    /// left the window already.
    fn revert(&self, state: &mut Self::State, charged_at: Timestamp, cost: u64);

    /// Subtracts `cost` units from the units that are in use at `now`, oldest units first, or all units in use if there
    /// are fewer. The number of free units grows by exactly the number of subtracted units.
    fn refund(&self, state: &mut Self::State, now: Timestamp, cost: u64);

    /// Returns the time from which the state is equivalent to the default state, because none of its units are in use.
    fn expires_at(&self, state: &Self::State) -> Timestamp;
}

/// The result of a charge: the time at which the charge is counted, and the outcome of a peek after the charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChargeEffect {
    /// The time at which the charge is counted.
    pub charged_at: Timestamp,
    /// The result of a [`peek`](Counter::peek) for one unit after the charge.
    pub outcome: Outcome,
}

/// A [`Counter`] of any algorithm, as an enum with one variant for each algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AnyCounter {
    SlidingLog(SlidingLog),
    SlidingBuckets(SlidingBuckets),
    SlidingWindow(SlidingWindow),
    FixedWindow(FixedWindow),
    TokenBucket(TokenBucket),
}

/// Evaluates `$body` with `$counter` bound to the counter that the [`AnyCounter`] `$any` contains.
macro_rules! with_counter {
    ($any:expr, $counter:ident => $body:expr) => {
        match $any {
            $crate::algorithm::AnyCounter::SlidingLog($counter) => $body,
            $crate::algorithm::AnyCounter::SlidingBuckets($counter) => $body,
            $crate::algorithm::AnyCounter::SlidingWindow($counter) => $body,
            $crate::algorithm::AnyCounter::FixedWindow($counter) => $body,
            $crate::algorithm::AnyCounter::TokenBucket($counter) => $body,
        }
    };
}
pub(crate) use with_counter;

/// The division of time into ticks, the time unit in which an algorithm counts. A window is a whole number of ticks. A
/// tick is the smallest power of ten of microseconds for which a window has no more ticks than the algorithm supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct TickResolution {
    window_ticks: u32,
    tick_us: u32,
}

impl TickResolution {
    /// Creates the tick resolution of a window, which has at most `max_ticks` ticks. A window that is not a whole
    /// number of ticks is rounded up, so that the guarantees of the algorithm still hold.
    fn new(window_us: u64, max_ticks: u32) -> Self {
        let mut tick_us = 1;
        while window_us.div_ceil(tick_us) > u64::from(max_ticks) {
            tick_us *= 10;
        }
        Self { window_ticks: window_us.div_ceil(tick_us) as u32, tick_us: tick_us as u32 }
    }

    /// Returns the parameters of a limit whose window is divided into these ticks. `max` and `extra` become the fields
    /// of the result with the same names.
    fn limit_params(&self, max: u32, extra: u32) -> LimitParams {
        LimitParams {
            max,
            extra,
            max_debt: 0,
            tick_us: u64::from(self.tick_us),
            window: self.window_ticks(),
        }
    }

    /// Returns the number of ticks in a window.
    fn window_ticks(&self) -> u64 {
        u64::from(self.window_ticks)
    }

    /// Returns the length of the window in microseconds.
    fn window_us(&self) -> u64 {
        self.window_ticks() * u64::from(self.tick_us)
    }

    /// Returns the number of the tick that contains a time.
    fn tick_at(&self, time: Timestamp) -> u64 {
        match self.tick_us {
            1 => time.as_micros(),
            tick_us => time.as_micros() / u64::from(tick_us),
        }
    }

    /// Returns the start of a tick in microseconds.
    fn tick_start_us(&self, tick: u64) -> u64 {
        tick.saturating_mul(u64::from(self.tick_us))
    }
}

/// Returns the duration from `now` until the state expires, in microseconds.
fn micros_until_expiry<C: Counter>(counter: &C, state: &C::State, now: Timestamp) -> u64 {
    counter.expires_at(state).as_micros().saturating_sub(now.as_micros())
}

/// Returns whether `required` units fit into `remaining` units. 0 units always fit, unless the counter is in debt, that
/// is, more units are used than max.
#[inline(always)]
fn fits_in_remaining(required: u64, remaining: u64, is_in_debt: bool) -> bool {
    required.max(u64::from(is_in_debt)) <= remaining
}

/// Limits a number of units to [`MAX_UNITS`](crate::quota::MAX_UNITS), the largest count.
fn clamp_to_max_units(units: u64) -> u32 {
    units.min(crate::quota::MAX_UNITS) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn algorithm_names_are_distinct_and_parseable() {
        for algorithm in Algorithm::ALL {
            assert_eq!(Algorithm::by_name(algorithm.name()), Some(algorithm));
        }
        assert_eq!(Algorithm::by_name("leaky"), None);
    }

    #[test]
    fn tick_length_is_smallest_sufficient_power_of_ten() {
        for (window_us, tick_us, window_ticks) in [
            (1_000_000, 1, 1_000_000),
            (16_777_216, 1, 16_777_216),
            (16_777_217, 10, 1_677_722),
            (60_000_000, 10, 6_000_000),
            (604_800_000_000, 100_000, 6_048_000),
        ] {
            assert_eq!(
                TickResolution::new(window_us, 1 << 24),
                TickResolution { window_ticks, tick_us }
            );
        }
    }
}
