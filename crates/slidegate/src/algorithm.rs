//! The rate-limiting algorithms.
//!
//! An [`Algorithm`] is the choice of a user, with its parameters; [`Align`] is the alignment of fixed windows. The
//! other items are for [authors of stores](crate::store#write-a-store). A [`Counter`] is an algorithm with a quota:
//! integer arithmetic over the state of one key, without a clock, lock or I/O. An [`AdditiveCounter`] counter counts
//! units per bucket of time, so that a store can keep each bucket in a row, and nodes can add their buckets;
//! [`AnyAdditive`] is the counter of a limit. [`LimitParams`] are the numbers of a limit, for a store that counts in
//! another language.

// Each algorithm is implemented by a `Counter`, and `AnyCounter` has one variant for each counter. The Lua scripts in
// slidegate-redis do the same arithmetic. To add an algorithm, implement `Counter` in a new file in `algorithm/`, and
// add a variant to `AnyCounter`, a table in `store/memory/shard.rs`, and Lua scripts. The compiler reports other places
// that need a change. The conformance suite tests all algorithms in `Algorithm::ALL`.

pub(crate) mod additive;
pub(crate) mod concurrent;
mod counter;
pub(crate) mod fixed_window;
mod ring;
pub(crate) mod sliding_buckets;
pub(crate) mod sliding_counter;
pub(crate) mod sliding_log;
pub(crate) mod sliding_window;
mod tick;
pub(crate) mod token_bucket;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use concurrent::Concurrent;
use sliding_log::SlidingLog;
use sliding_window::SlidingWindow;
use token_bucket::TokenBucket;

pub use additive::{AdditiveCounter, BucketLayout};
pub(crate) use counter::MAX_AHEAD_OF_CLOCK_US;
pub use counter::{ChargeEffect, Counter};
pub use fixed_window::{Align, FixedWindow};
pub use sliding_buckets::{MAX_BUCKETS, SlidingBuckets};
pub use sliding_counter::SlidingCounter;
pub use sliding_log::MAX_LOG_UNITS;
pub use tick::LimitParams;

/// A rate-limiting algorithm with its parameters. `docs/explanation/algorithms.md` describes the guarantees of each
/// algorithm and when to choose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// Records the charges in the window, compacted to a bounded number of entries. A window never contains more than
    /// max units, and a unit is counted at most window / resolution too long. The default.
    SlidingWindow {
        /// The number of parts into which the compaction divides max and the window, from 8 to 1024. Default: 32. If
        /// max is at most the resolution, the result is exact.
        resolution: Option<u16>,
    },
    /// Records every charge in the window. The result is exact: a window never contains more than max units, and a cost
    /// that fits is never denied. Max is at most 1,000,000.
    SlidingLog,
    /// Divides the window into buckets, and counts the oldest bucket in full, even if the window covers only a part of
    /// it. Admits at most max units in any window.
    SlidingBuckets {
        /// The length of a bucket; must divide the window. Default: a tenth of the window.
        precision: Option<Duration>,
    },
    /// Counts the current and the previous window, and multiplies the previous count by the fraction of the previous
    /// window that the sliding window still covers. Admits about max units per window, and always less than twice max,
    /// with 16 bytes of state per key. Max is at most [`MAX_SMALL_UNITS`](crate::limit::MAX_SMALL_UNITS).
    SlidingCounter,
    /// Counts each window separately. Admits up to twice max in a time span of one window length that contains a window
    /// boundary.
    FixedWindow {
        /// The alignment of the windows.
        align: Align,
    },
    /// The generic cell rate algorithm (GCRA): admits a steady rate, and in addition a burst. Max, burst and debt are at
    /// most [`MAX_SMALL_UNITS`](crate::limit::MAX_SMALL_UNITS).
    TokenBucket {
        /// The number of units that fit at once if no unit of a key is in use. Default: the max of the quota.
        burst: Option<u64>,
        /// The largest debt: the number of units above the burst that can be charged without a check, for example by
        /// reports of units that a client has consumed already. Default: twice max.
        max_debt: Option<u64>,
    },
    /// Bounds the requests in flight: at most max permits of a key are live at the same time. Each charge creates a
    /// permit, which is live until it is released, or until the window of the quota, its time to live, has passed since
    /// it was created or renewed. See [`Limit::concurrent`](crate::Limit::concurrent).
    Concurrent,
}

impl Algorithm {
    /// All algorithms that limit rates, with default parameters, in the order of their numbers in Redis scripts. Does
    /// not contain [`Concurrent`](Self::Concurrent), which does not limit a rate.
    pub const ALL: [Self; 6] = [
        Self::SlidingLog,
        Self::SlidingBuckets { precision: None },
        Self::SlidingCounter,
        Self::FixedWindow { align: Align::Key },
        Self::TokenBucket { burst: None, max_debt: None },
        Self::SlidingWindow { resolution: None },
    ];

    /// Returns the name of the algorithm, as written in policies, keys and file names, for example `sliding_log`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::SlidingWindow { .. } => "sliding_window",
            Self::SlidingLog => "sliding_log",
            Self::SlidingBuckets { .. } => "sliding_buckets",
            Self::SlidingCounter => "sliding_counter",
            Self::FixedWindow { .. } => "fixed_window",
            Self::TokenBucket { .. } => "token_bucket",
            Self::Concurrent => "concurrent",
        }
    }

    /// Returns the algorithm in [`ALL`](Self::ALL) with this name, with default parameters; `None` if there is no such
    /// algorithm.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }
}

/// The default algorithm, `sliding_window`.
impl Default for Algorithm {
    fn default() -> Self {
        Self::SlidingWindow { resolution: None }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A [`Counter`] of any algorithm, as an enum with one variant for each algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AnyCounter {
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
    SlidingBuckets(SlidingBuckets),
    SlidingCounter(SlidingCounter),
    FixedWindow(FixedWindow),
    TokenBucket(TokenBucket),
    Concurrent(Concurrent),
}

/// Evaluates `$body` with `$counter` bound to the counter that the [`AnyCounter`] `$any` contains.
macro_rules! with_counter {
    ($any:expr, $counter:ident => $body:expr) => {
        match $any {
            $crate::algorithm::AnyCounter::SlidingWindow($counter) => $body,
            $crate::algorithm::AnyCounter::SlidingLog($counter) => $body,
            $crate::algorithm::AnyCounter::SlidingBuckets($counter) => $body,
            $crate::algorithm::AnyCounter::SlidingCounter($counter) => $body,
            $crate::algorithm::AnyCounter::FixedWindow($counter) => $body,
            $crate::algorithm::AnyCounter::TokenBucket($counter) => $body,
            $crate::algorithm::AnyCounter::Concurrent($counter) => $body,
        }
    };
}
pub(crate) use with_counter;

/// A counter of any additive algorithm, that is, any algorithm whose states can be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AnyAdditive {
    /// The sliding counter algorithm, which counts the current and the previous window.
    SlidingCounter(SlidingCounter),
    /// The sliding buckets algorithm, which counts all buckets of a window. Limits with the sliding window algorithm,
    /// which is not additive, are counted in such buckets too.
    SlidingBuckets(SlidingBuckets),
    /// The fixed window algorithm, which counts the current window.
    FixedWindow(FixedWindow),
}

impl AnyAdditive {
    /// Returns the length and the number of the time buckets.
    pub fn layout(&self) -> BucketLayout {
        match self {
            Self::SlidingCounter(counter) => counter.layout(),
            Self::SlidingBuckets(counter) => counter.layout(),
            Self::FixedWindow(counter) => counter.layout(),
        }
    }
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
}
