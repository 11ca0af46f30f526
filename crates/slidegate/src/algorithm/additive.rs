//! Algorithms whose states count units per time bucket, so that the counts of several nodes can be added.
//!
//! Two of the algorithms that limit rates cannot be counted in this way: a [`sliding_log`](super::sliding_log) records
//! each charge, and the level of a [`token_bucket`](super::token_bucket) stops at zero, so that the sum of the levels
//! of two nodes differs from the level of a single node with the same charges.

use super::counter::Counter;
use crate::clock::Timestamp;

/// A [`Counter`] whose state is a list of numbers: the units that were charged in each of the latest time buckets.
pub trait AdditiveCounter: Counter {
    /// Returns the length and the number of the time buckets.
    fn layout(&self) -> BucketLayout;

    /// Returns the number of the bucket that contains the last charge.
    fn current_bucket(&self, state: &Self::State) -> u64;

    /// Returns whether `now` is in the bucket that contains the last charge, or earlier. A charge at `now` then begins
    /// no new bucket.
    fn is_in_current_bucket(&self, state: &Self::State, now: Timestamp) -> bool {
        let next_bucket = self.current_bucket(state) + 1;
        now.as_micros() < next_bucket.saturating_mul(self.layout().bucket_us)
    }

    /// Returns the number of units that a state has in the time bucket with the number `bucket`.
    fn units(&self, state: &Self::State, bucket: u64) -> u64;

    /// Calls `visit` for each bucket of a state that has units, with the number of the bucket and of its units. The
    /// oldest bucket is first.
    fn visit_units(&self, state: &Self::State, mut visit: impl FnMut(u64, u64)) {
        let current = self.current_bucket(state);
        for bucket in current.saturating_sub(u64::from(self.layout().buckets) - 1)..=current {
            match self.units(state, bucket) {
                0 => {}
                units => visit(bucket, units),
            }
        }
    }

    /// Adds units to the bucket with the number `bucket`, and returns the number of added units. Fewer than `units` are
    /// added only if the bucket would otherwise exceed the largest count. If the bucket is not the bucket of the last
    /// charge, returns `None` and changes nothing.
    fn add_to_current_bucket(
        &self,
        state: &mut Self::State,
        bucket: u64,
        units: u64,
    ) -> Option<u64>;

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

    /// Returns the time of the last charge, or an earlier time in the same bucket if the state does not contain the
    /// exact time.
    fn last_charged_at(&self, state: &Self::State) -> Timestamp;
}

/// The length and the number of the time buckets of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketLayout {
    /// The length of a bucket in microseconds. Bucket n begins n lengths after the Unix epoch.
    pub bucket_us: u64,
    /// The number of buckets whose units are counted at any one time, including the bucket that contains this time.
    pub buckets: u32,
    /// The average duration in microseconds by which a bucket is longer than the calendar period that it represents; 0
    /// if the buckets are not periods of a calendar. With each bucket, counter time advances by this much more than the
    /// clock.
    pub mean_excess_us: u64,
    /// The average duration in seconds from the start of the calendar period of bucket 0 to the Unix epoch; 0 unless
    /// the buckets are periods of a calendar that begin at a set date or time.
    pub epoch_offset_in_first_period_s: u32,
}

/// The largest difference between the end of a calendar period and the end that it would have if all periods had the
/// mean length. The difference is also never larger than the length of a bucket.
const MAX_CALENDAR_DEVIATION_US: u64 = 8 * 86_400_000_000;

impl BucketLayout {
    /// Returns the number of the bucket that contains a time.
    pub fn bucket(&self, time: Timestamp) -> u64 {
        time.as_micros() / self.bucket_us.max(1)
    }

    /// Returns the time from which the units of a bucket are no longer counted, in microseconds since the Unix epoch.
    pub fn bucket_expires_us(&self, bucket: u64) -> u64 {
        bucket.saturating_add(u64::from(self.buckets)).saturating_mul(self.bucket_us)
    }

    /// Returns a time on the clock, in microseconds since the Unix epoch, at which the units of a bucket are certainly
    /// no longer counted. [`bucket_expires_us`](Self::bucket_expires_us) returns a counter time instead: a time on the
    /// clock plus the phase of a key.
    pub fn latest_expiry_us(&self, bucket: u64) -> u64 {
        match self.mean_excess_us {
            0 => self.bucket_expires_us(bucket),
            _ => {
                self.mean_start_us(bucket.saturating_add(1)).saturating_add(self.max_deviation_us())
            }
        }
    }

    /// Returns a time on the clock, in microseconds since the Unix epoch, before which no clock charges units to a
    /// bucket.
    pub fn earliest_start_us(&self, bucket: u64) -> u64 {
        match self.mean_excess_us {
            // A counter time is at most a window ahead of the clock, because the phase of a key is less than a window.
            0 => bucket.saturating_mul(self.bucket_us).saturating_sub(self.unit_lifetime_us()),
            _ => self.mean_start_us(bucket).saturating_sub(self.max_deviation_us()),
        }
    }

    /// Returns the time at which the calendar period of a bucket would begin if all periods had the mean length.
    fn mean_start_us(&self, bucket: u64) -> u64 {
        let since_first_us =
            bucket.saturating_mul(self.bucket_us.saturating_sub(self.mean_excess_us));
        since_first_us.saturating_sub(u64::from(self.epoch_offset_in_first_period_s) * 1_000_000)
    }

    fn max_deviation_us(&self) -> u64 {
        self.bucket_us.min(MAX_CALENDAR_DEVIATION_US)
    }

    /// Returns the longest duration for which the units of a charge are counted, in microseconds.
    pub fn unit_lifetime_us(&self) -> u64 {
        self.bucket_us.saturating_mul(u64::from(self.buckets))
    }
}

#[cfg(test)]
mod tests;
