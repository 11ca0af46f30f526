//! The algorithms: what a user chooses ([`Algorithm`]), what counts ([`Counter`]), and the one table
//! that joins the two.
//!
//! An algorithm knows neither clock nor lock nor I/O. It is arithmetic over integers, the same in Rust
//! and in Lua. To add one: a file beside the others, and a line wherever the compiler then points.

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

/// How a limit counts. `docs/ALGORITHMS.md` says what each promises and when to choose it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Every charge in the window: never more than max in any window, never denies what fits.
    SlidingLog,
    /// Sub-buckets, the oldest counted in full: never more than max in any window.
    SlidingBuckets {
        /// The length of a bucket; divides the window. A tenth of the window if not given.
        precision: Option<Duration>,
    },
    /// Two counts, the previous one weighted by its remaining share: about max, in 16 bytes.
    #[default]
    SlidingWindow,
    /// One count per window: up to twice max around a window's edge.
    FixedWindow {
        /// Where the windows begin.
        align: Align,
    },
    /// GCRA: a steady rate and a burst.
    TokenBucket {
        /// Units that fit at once; max if not given.
        burst: Option<u64>,
        /// The largest debt in units, from charges that are made without a check; twice max if not given.
        max_debt: Option<u64>,
    },
}

/// Where fixed windows begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Align {
    /// At a phase that is a stable hash of the key, so that not everybody resets together.
    #[default]
    Key,
    /// On the calendar, in UTC: minutes begin with the minute, days at midnight.
    Clock,
}

impl Algorithm {
    /// Every algorithm with its defaults, in the order in which the docs describe them.
    pub const ALL: [Self; 5] = [
        Self::SlidingLog,
        Self::SlidingBuckets { precision: None },
        Self::SlidingWindow,
        Self::FixedWindow { align: Align::Key },
        Self::TokenBucket { burst: None, max_debt: None },
    ];

    /// The name in policies, keys and file names: `sliding_log`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::SlidingLog => "sliding_log",
            Self::SlidingBuckets { .. } => "sliding_buckets",
            Self::SlidingWindow => "sliding_window",
            Self::FixedWindow { .. } => "fixed_window",
            Self::TokenBucket { .. } => "token_bucket",
        }
    }

    /// The algorithm of that name, with its defaults.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One algorithm under one quota: pure arithmetic over one key's state.
///
/// The default state is that of a key that was never seen. Time inside a key never runs backwards: a
/// `now` before the last charge is taken as the time of that charge. The times of an outcome count from the caller's
/// own `now`.
pub trait Counter: Copy {
    /// What is kept of one key.
    type State: Clone + fmt::Debug + Default + HeapSize + PartialEq + Send + 'static;

    /// Returns whether `required` units are free at `now`. 0 units are free unless more than max are used.
    fn peek(&self, state: &Self::State, now: Timestamp, required: u64) -> Outcome;

    /// Returns how many units of a cost can be charged: fewer if the largest debt would be exceeded.
    #[inline(always)]
    fn chargeable(&self, _: &Self::State, _: Timestamp, cost: u64) -> u64 {
        cost
    }

    /// Adds `cost` units, whether they fit or not. They must be [chargeable](Self::chargeable).
    fn charge(&self, state: &mut Self::State, now: Timestamp, cost: u64) -> Charged;

    /// Takes back a charge of `cost` that was counted at `charged_at`; nothing of what has left the
    /// window since.
    fn revert(&self, state: &mut Self::State, charged_at: Timestamp, cost: u64);

    /// Takes `cost` units off what counts at `now`, the oldest first, or all if there are fewer. That makes room
    /// for exactly as many.
    fn refund(&self, state: &mut Self::State, now: Timestamp, cost: u64);

    /// The moment from which the state is as if never seen.
    fn expires_at(&self, state: &Self::State) -> Timestamp;
}

/// What a charge did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charged {
    /// The moment at which it is counted.
    pub at: Timestamp,
    /// The result of a [`peek`](Counter::peek) for one unit after the charge.
    pub after: Outcome,
}

/// A [`Counter`] of any algorithm. What travels inside of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AnyCounter {
    SlidingLog(SlidingLog),
    SlidingBuckets(SlidingBuckets),
    SlidingWindow(SlidingWindow),
    FixedWindow(FixedWindow),
    TokenBucket(TokenBucket),
}

/// Runs `$body` with `$counter` bound to the counter inside of `$any`, whatever its type.
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

/// How an algorithm divides time: a window of whole ticks, a tick being the smallest power of ten of
/// microseconds for which there are not too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Scale {
    window: u32,
    tick_us: u32,
}

impl Scale {
    /// A window of at most `most` ticks. One that is no whole number of ticks counts as the next longer
    /// one that is, so that no promise is weakened.
    fn new(window_us: u64, most: u32) -> Self {
        let mut tick_us = 1;
        while window_us.div_ceil(tick_us) > u64::from(most) {
            tick_us *= 10;
        }
        Self { window: window_us.div_ceil(tick_us) as u32, tick_us: tick_us as u32 }
    }

    fn params(&self, max: u32, extra: u32) -> LimitParams {
        LimitParams {
            max,
            extra,
            max_debt: 0,
            tick_us: u64::from(self.tick_us),
            window: self.window(),
        }
    }

    /// Ticks in a window.
    fn window(&self) -> u64 {
        u64::from(self.window)
    }

    /// The window, in microseconds.
    fn window_us(&self) -> u64 {
        u64::from(self.window) * u64::from(self.tick_us)
    }

    /// The tick in which a moment lies.
    fn tick(&self, moment: Timestamp) -> u64 {
        match self.tick_us {
            1 => moment.as_micros(),
            tick_us => moment.as_micros() / u64::from(tick_us),
        }
    }

    /// The beginning of a tick, in microseconds.
    fn begins_us(&self, tick: u64) -> u64 {
        tick.saturating_mul(u64::from(self.tick_us))
    }
}

/// How long a state will outlast `now`, in microseconds.
fn lasts_us<C: Counter>(counter: &C, state: &C::State, now: Timestamp) -> u64 {
    counter.expires_at(state).as_micros().saturating_sub(now.as_micros())
}

/// Units of a count: what is beyond [`MAX_UNITS`](crate::quota::MAX_UNITS) is not told apart.
fn saturate(units: u64) -> u32 {
    units.min(crate::quota::MAX_UNITS) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_lead_back() {
        for algorithm in Algorithm::ALL {
            assert_eq!(Algorithm::by_name(algorithm.name()), Some(algorithm));
        }
        assert_eq!(Algorithm::by_name("leaky"), None);
    }

    #[test]
    fn a_tick_is_the_smallest_power_of_ten_that_suffices() {
        for (window_us, tick_us, window) in [
            (1_000_000, 1, 1_000_000),
            (16_777_216, 1, 16_777_216),
            (16_777_217, 10, 1_677_722),
            (60_000_000, 10, 6_000_000),
            (604_800_000_000, 100_000, 6_048_000),
        ] {
            assert_eq!(Scale::new(window_us, 1 << 24), Scale { window, tick_us });
        }
    }
}
