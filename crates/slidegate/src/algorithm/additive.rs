//! Algorithms that add up units by buckets of time, so that what several places have counted can be added.
//!
//! Not all do. A [`sliding_log`](super::sliding_log) knows each charge, and the level of a
//! [`token_bucket`](super::token_bucket) stops at zero: what two places have leaked is not what one would have.

use super::fixed_window::FixedWindow;
use super::sliding_buckets::SlidingBuckets;
use super::sliding_window::SlidingWindow;
use super::{AnyCounter, Counter};
use crate::clock::Timestamp;
use crate::limit::Limit;

/// A [`Counter`] whose state is a number of units for each of a few buckets of time.
pub trait Additive: Counter {
    /// How it divides time.
    fn shape(&self) -> Shape;

    /// The bucket that is running as of the last charge.
    fn running(&self, state: &Self::State) -> u64;

    /// Units that a state counts in a bucket.
    fn units(&self, state: &Self::State, bucket: u64) -> u64;

    /// The state in which so many units stand in each bucket, last charged at that moment. Asks for the running
    /// bucket and those before it that count.
    fn gather(&self, last: Timestamp, units: impl FnMut(u64) -> u64) -> Self::State;

    /// Units that count at a moment, weighted as they are for a decision; they may be more than max.
    fn used(&self, state: &Self::State, now: Timestamp) -> u64;

    /// The moment of the last charge that a state knows of.
    fn last(&self, state: &Self::State) -> Timestamp;
}

/// How a counter divides time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shape {
    /// Length of a bucket, in microseconds. Bucket n begins n times as long after the Unix epoch.
    pub bucket_us: u64,
    /// So many buckets count at once, the running one among them.
    pub buckets: u32,
}

impl Shape {
    /// The bucket in which a moment lies.
    pub fn bucket(&self, moment: Timestamp) -> u64 {
        moment.as_micros() / self.bucket_us.max(1)
    }

    /// From here on a bucket no longer counts, in microseconds since the Unix epoch.
    pub fn leaves_us(&self, bucket: u64) -> u64 {
        bucket.saturating_add(u64::from(self.buckets)).saturating_mul(self.bucket_us)
    }

    /// How long a charge can count, in microseconds.
    pub fn span_us(&self) -> u64 {
        self.bucket_us.saturating_mul(u64::from(self.buckets))
    }
}

/// An [`Additive`] of any algorithm that is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AnyAdditive {
    /// Two counts.
    SlidingWindow(SlidingWindow),
    /// Sub-buckets.
    SlidingBuckets(SlidingBuckets),
    /// One count.
    FixedWindow(FixedWindow),
}

impl AnyAdditive {
    /// How it divides time.
    pub fn shape(&self) -> Shape {
        match self {
            Self::SlidingWindow(counter) => counter.shape(),
            Self::SlidingBuckets(counter) => counter.shape(),
            Self::FixedWindow(counter) => counter.shape(),
        }
    }
}

impl Limit {
    /// What counts for this limit, if that adds up units by buckets of time.
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

    /// What both have counted, added up.
    fn sum<C: Additive>(counter: C, one: &C::State, other: &C::State) -> C::State {
        let last = counter.last(one).max(counter.last(other));
        counter.gather(last, |bucket| counter.units(one, bucket) + counter.units(other, bucket))
    }

    /// Charges of one place beside the same charges of two, added up. A moment that lies before the last charge
    /// of one place alone is counted later there: the moments only grow.
    fn added_up_is_as_if_one_had_counted<C: Additive>(counter: C, steps: &[(u64, u64, bool)]) {
        let (mut all, mut parts) =
            (C::State::default(), [C::State::default(), C::State::default()]);
        let mut now_us = 1_700_000_000_000_000;
        for &(gone_us, cost, first) in steps {
            now_us += gone_us;
            let now = Timestamp::from_micros(now_us);
            counter.charge(&mut all, now, cost);
            counter.charge(&mut parts[usize::from(first)], now, cost);
            let sum = sum(counter, &parts[0], &parts[1]);
            assert_eq!(counter.used(&sum, now), counter.used(&all, now));
            for cost in [1, 3] {
                assert_eq!(counter.peek(&sum, now, cost), counter.peek(&all, now, cost));
            }
            let later = now.after_us(gone_us);
            assert_eq!(counter.peek(&sum, later, 1), counter.peek(&all, later, 1));
            assert_eq!(counter.units(&all, counter.shape().bucket(now) + 1), 0, "nothing yet");
        }
    }

    proptest! {
        #[test]
        fn what_several_places_have_counted_adds_up(
            steps in prop::collection::vec((0..400_000_u64, 1..5_u64, any::<bool>()), 1..80),
        ) {
            let quota = "10/s".parse().unwrap();
            for algorithm in crate::Algorithm::ALL {
                match Limit::new(quota, algorithm).unwrap().additive() {
                    Some(AnyAdditive::SlidingWindow(counter)) => {
                        added_up_is_as_if_one_had_counted(counter, &steps);
                    }
                    Some(AnyAdditive::SlidingBuckets(counter)) => {
                        added_up_is_as_if_one_had_counted(counter, &steps);
                    }
                    Some(AnyAdditive::FixedWindow(counter)) => {
                        added_up_is_as_if_one_had_counted(counter, &steps);
                    }
                    None => prop_assert!(matches!(algorithm.name(), "sliding_log" | "token_bucket")),
                }
            }
        }
    }
}
