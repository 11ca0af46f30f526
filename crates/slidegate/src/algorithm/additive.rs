//! Algorithms whose states count units per time bucket, so that the counts of several nodes can be added.
//!
//! Two algorithms are not additive: a [`sliding_log`](super::sliding_log) records each charge, and the level of a
//! [`token_bucket`](super::token_bucket) stops at zero, so that the sum of the levels of two nodes differs from the
//! level of a single node with the same charges.

use super::fixed_window::FixedWindow;
use super::sliding_buckets::SlidingBuckets;
use super::sliding_window::SlidingWindow;
use super::{AnyCounter, Counter};
use crate::clock::Timestamp;
use crate::limit::Limit;

/// A [`Counter`] whose state is a list of numbers: the units that were charged in each of the latest time buckets.
pub trait Additive: Counter {
    /// Returns the length and the number of the time buckets.
    fn layout(&self) -> BucketLayout;

    /// Returns the number of the bucket that contains the last charge.
    fn current_bucket(&self, state: &Self::State) -> u64;

    /// Returns the number of units that a state has in the time bucket with the number `bucket`.
    fn units(&self, state: &Self::State, bucket: u64) -> u64;

    /// Builds a state from the number of units in each time bucket. `units` returns this number for a bucket; it is
    /// called for the bucket that contains `last_charged_at` and for the earlier buckets that are still counted at that
    /// time.
    fn state_from_buckets(
        &self,
        last_charged_at: Timestamp,
        units: impl FnMut(u64) -> u64,
    ) -> Self::State;

    /// Returns the number of units in use at `now`, with the same weights of the buckets that a decision uses. The
    /// result may exceed max.
    fn used(&self, state: &Self::State, now: Timestamp) -> u64;

    /// Returns the time of the last charge.
    fn last_charged_at(&self, state: &Self::State) -> Timestamp;
}

/// The length and the number of the time buckets of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketLayout {
    /// The length of a bucket in microseconds. Bucket n begins n lengths after the Unix epoch.
    pub bucket_us: u64,
    /// The number of buckets whose units are counted at any one time, including the bucket that contains this time.
    pub buckets: u32,
}

impl BucketLayout {
    /// Returns the number of the bucket that contains a time.
    pub fn bucket(&self, time: Timestamp) -> u64 {
        time.as_micros() / self.bucket_us.max(1)
    }

    /// Returns the time from which the units of a bucket are no longer counted, in microseconds since the Unix epoch.
    pub fn bucket_expires_us(&self, bucket: u64) -> u64 {
        bucket.saturating_add(u64::from(self.buckets)).saturating_mul(self.bucket_us)
    }

    /// Returns the longest duration for which the units of a charge are counted, in microseconds.
    pub fn lifetime_us(&self) -> u64 {
        self.bucket_us.saturating_mul(u64::from(self.buckets))
    }
}

/// A counter of any additive algorithm, that is, any algorithm whose states can be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AnyAdditive {
    /// The sliding window algorithm, which counts the current and the previous window.
    SlidingWindow(SlidingWindow),
    /// The sliding buckets algorithm, which counts all buckets of a window.
    SlidingBuckets(SlidingBuckets),
    /// The fixed window algorithm, which counts the current window.
    FixedWindow(FixedWindow),
}

impl AnyAdditive {
    /// Returns the length and the number of the time buckets.
    pub fn layout(&self) -> BucketLayout {
        match self {
            Self::SlidingWindow(counter) => counter.layout(),
            Self::SlidingBuckets(counter) => counter.layout(),
            Self::FixedWindow(counter) => counter.layout(),
        }
    }
}

impl Limit {
    /// Returns the counter of this limit if its algorithm is additive (the states of several nodes can be added);
    /// otherwise `None`.
    pub fn additive(&self) -> Option<AnyAdditive> {
        match self.counter() {
            AnyCounter::SlidingWindow(counter) => Some(AnyAdditive::SlidingWindow(counter)),
            AnyCounter::SlidingBuckets(counter) => Some(AnyAdditive::SlidingBuckets(counter)),
            AnyCounter::FixedWindow(counter) => Some(AnyAdditive::FixedWindow(counter)),
            AnyCounter::SlidingLog(_) | AnyCounter::TokenBucket(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Adds two states: in the returned state, each time bucket has the sum of the units that this bucket has in `left`
    /// and in `right`.
    fn sum_states<C: Additive>(counter: C, left: &C::State, right: &C::State) -> C::State {
        let last = counter.last_charged_at(left).max(counter.last_charged_at(right));
        counter.state_from_buckets(last, |bucket| {
            counter.units(left, bucket) + counter.units(right, bucket)
        })
    }

    /// Checks that the sum of two states equals a single state with the same charges. Every step makes the same charge
    /// in the single state and in one of the two other states. Times never decrease, since a time before the last
    /// charge of a state counts as the time of that charge.
    fn assert_sum_of_two_states_equals_one_state<C: Additive>(
        counter: C,
        steps: &[(u64, u64, bool)],
    ) {
        let (mut all, mut parts) =
            (C::State::default(), [C::State::default(), C::State::default()]);
        let mut now_us = 1_700_000_000_000_000;
        for &(elapsed_us, cost, is_second) in steps {
            now_us += elapsed_us;
            let now = Timestamp::from_micros(now_us);
            counter.charge(&mut all, now, cost);
            counter.charge(&mut parts[usize::from(is_second)], now, cost);
            let sum = sum_states(counter, &parts[0], &parts[1]);
            assert_eq!(counter.used(&sum, now), counter.used(&all, now));
            for cost in [1, 3] {
                assert_eq!(counter.peek(&sum, now, cost), counter.peek(&all, now, cost));
            }
            let later = now.after_us(elapsed_us);
            assert_eq!(counter.peek(&sum, later, 1), counter.peek(&all, later, 1));
            assert_eq!(counter.units(&all, counter.layout().bucket(now) + 1), 0, "future bucket");
        }
    }

    proptest! {
        #[test]
        fn sum_of_two_states_equals_one_state_with_all_charges(
            steps in prop::collection::vec((0..400_000_u64, 1..5_u64, any::<bool>()), 1..80),
        ) {
            let quota = "10/s".parse().unwrap();
            for algorithm in crate::Algorithm::ALL {
                match Limit::new(quota, algorithm).unwrap().additive() {
                    Some(AnyAdditive::SlidingWindow(counter)) => {
                        assert_sum_of_two_states_equals_one_state(counter, &steps);
                    }
                    Some(AnyAdditive::SlidingBuckets(counter)) => {
                        assert_sum_of_two_states_equals_one_state(counter, &steps);
                    }
                    Some(AnyAdditive::FixedWindow(counter)) => {
                        assert_sum_of_two_states_equals_one_state(counter, &steps);
                    }
                    None => prop_assert!(matches!(algorithm.name(), "sliding_log" | "token_bucket")),
                }
            }
        }
    }
}
