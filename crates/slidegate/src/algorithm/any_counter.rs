//! Counters of any algorithm: enums with one variant for each algorithm, or for each additive algorithm. The algorithms
//! do not depend on these enums.

use super::additive::{AdditiveCounter, BucketLayout};
use super::concurrent::Concurrent;
use super::fixed_window::FixedWindow;
use super::sliding_buckets::SlidingBuckets;
use super::sliding_counter::SlidingCounter;
use super::sliding_log::SlidingLog;
use super::sliding_window::SlidingWindow;
use super::token_bucket::TokenBucket;

/// A [`Counter`](super::counter::Counter) of any algorithm, as an enum with one variant for each algorithm.
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
