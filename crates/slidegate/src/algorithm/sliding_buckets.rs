//! The sliding buckets algorithm: divides the window into buckets and counts the oldest bucket **in full**.
//!
//! With n = window / precision, the current bucket and the n buckets before it are counted. Together they cover at
//! least the window, so no window ever contains more than max units; a unit is counted for at most one bucket length
//! longer than necessary. Buckets begin at multiples of the precision since the Unix epoch. A state stores only buckets
//! with units, 8 bytes each, so that a key with one request takes tens of bytes regardless of the number of buckets.

use std::cmp::Ordering;

use super::additive::{Additive, BucketLayout};
use super::counter::{
    ChargeEffect, Counter, clamp_to_max_units, fits_in_remaining, micros_until_expiry,
};
use super::ring::{RingBuffer, max_heap_bytes};
use super::tick::LimitParams;
use crate::clock::Timestamp;
use crate::heap::HeapSize;
use crate::outcome::Outcome;
use crate::quota::Quota;

/// The largest number of buckets in a window.
pub const MAX_BUCKETS: u64 = 1_440;

/// A quota that is counted in time buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingBuckets {
    max: u32,
    /// The number of buckets in a window.
    buckets: u16,
    /// The length of a bucket in microseconds.
    precision_us: u64,
}

/// The state of a key: the time of its last charge, and the units that were charged in the latest buckets.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The time of the last charge, in microseconds since the Unix epoch.
    last_us: u64,
    /// The number of units in all buckets of `entries`.
    total: u64,
    /// The buckets with units, oldest first. None of them has expired at `last_us`.
    entries: RingBuffer<BucketWithUnits>,
}

/// A bucket that has units, with the number of these units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BucketWithUnits {
    /// The lower 32 bits of the bucket number. This is sufficient, because the numbers of the buckets in a state differ
    /// by much less than 2^32.
    bucket: u32,
    /// The units charged in the bucket; never 0.
    count: u32,
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.last_us == other.last_us && self.entries.iter().eq(other.entries.iter())
    }
}

impl HeapSize for State {
    #[inline(always)]
    fn heap_bytes(&self) -> usize {
        self.entries.heap_bytes()
    }
}

impl State {
    /// Returns the number of buckets in `entries` that are more than `age` buckets before the bucket `newest`, and the
    /// sum of their units. `newest` must be the number of the bucket that contains the last charge.
    #[inline(always)]
    fn count_buckets_and_units_older_than(&self, age: u64, newest: u64) -> (usize, u64) {
        let (mut entries, mut units) = (0, 0);
        while let Some(entry) =
            self.entries.get(entries).filter(|entry| entry.age_in_buckets(newest) > age)
        {
            units += u64::from(entry.count);
            entries += 1;
        }
        (entries, units)
    }

    /// Subtracts up to `units` units from the entry at `index` and the newer entries, oldest entry first.
    fn subtract_units(&mut self, index: usize, units: u64) {
        let (mut left, mut emptied) = (units, 0);
        while let Some(entry) = self.entries.get(index + emptied).filter(|_| left > 0) {
            let removed = left.min(u64::from(entry.count));
            left -= removed;
            self.total -= removed;
            if removed < u64::from(entry.count) {
                let count = entry.count - removed as u32;
                self.entries.set(index + emptied, BucketWithUnits { count, ..entry });
                break;
            }
            emptied += 1;
        }
        if emptied > 0 {
            self.entries.remove(index, emptied);
        }
    }
}

impl BucketWithUnits {
    /// Returns the age of this bucket: the number of buckets from it to `newest`, the newest bucket that may have
    /// units.
    #[inline(always)]
    fn age_in_buckets(&self, newest: u64) -> u64 {
        u64::from((newest as u32).wrapping_sub(self.bucket))
    }
}

impl SlidingBuckets {
    pub(crate) fn new(quota: &Quota, precision_us: u64) -> Self {
        Self {
            max: quota.max() as u32,
            buckets: (quota.window_us() / precision_us) as u16,
            precision_us,
        }
    }

    /// Creates a counter with buckets of this length, which cover at least the window.
    pub(super) fn with_buckets(max: u32, window_us: u64, precision_us: u64) -> Self {
        Self { max, buckets: window_us.div_ceil(precision_us) as u16, precision_us }
    }

    pub(crate) fn quota(&self) -> Quota {
        Quota::from_parts(self.max, self.precision_us * u64::from(self.buckets))
    }

    pub(crate) fn params(&self) -> LimitParams {
        let (max, extra) = (self.max, u32::from(self.buckets) + 1);
        LimitParams {
            max,
            extra,
            max_debt: 0,
            tick_us: self.precision_us,
            window: u64::from(self.buckets),
        }
    }

    fn max_units(&self) -> u64 {
        u64::from(self.max)
    }

    pub(crate) fn precision_us(&self) -> u64 {
        self.precision_us
    }

    /// Returns the number of buckets whose units are counted in a decision: the current bucket, and all buckets of one
    /// window before it.
    fn unexpired_bucket_count(&self) -> u64 {
        u64::from(self.buckets) + 1
    }

    /// Returns the number of the bucket that contains a time.
    fn bucket_number(&self, time_us: u64) -> u64 {
        time_us / self.precision_us
    }

    /// Returns the time from which the units of `bucket` are no longer counted, in microseconds since the Unix epoch.
    fn bucket_expires_us(&self, bucket: u64) -> u64 {
        (bucket + self.unexpired_bucket_count()) * self.precision_us
    }

    /// Returns the number of the oldest bucket whose units are counted while `current` is the number of the current
    /// bucket.
    fn oldest_unexpired_bucket(&self, current: u64) -> u64 {
        current.saturating_sub(self.unexpired_bucket_count() - 1)
    }

    /// Returns the number of buckets in `entries` that are no longer counted when `current` is the current bucket, and
    /// the sum of their units. `newest` is the bucket that contains the last charge, and `current` must not be less
    /// than `newest`.
    #[inline(always)]
    fn count_expired_buckets_and_units(
        &self,
        state: &State,
        newest: u64,
        current: u64,
    ) -> (usize, u64) {
        if current == newest {
            return (0, 0);
        }
        match newest.checked_sub(self.oldest_unexpired_bucket(current)) {
            Some(age) => state.count_buckets_and_units_older_than(age, newest),
            None => (state.entries.len(), state.total),
        }
    }

    /// Returns the index of a bucket in `entries`; `None` if the bucket has no units.
    fn find_bucket_index(&self, state: &State, bucket: u64) -> Option<usize> {
        let newest = self.bucket_number(state.last_us);
        let age = newest.checked_sub(bucket).filter(|age| *age < self.unexpired_bucket_count())?;
        let (mut low, mut high) = (0, state.entries.len());
        while low < high {
            let middle = (low + high) / 2;
            match state.entries.get(middle)?.age_in_buckets(newest).cmp(&age) {
                Ordering::Equal => return Some(middle),
                Ordering::Greater => low = middle + 1,
                Ordering::Less => high = middle,
            }
        }
        None
    }

    /// Returns the largest number of heap bytes that a state can take.
    pub(crate) fn max_heap_bytes(&self) -> usize {
        max_heap_bytes::<BucketWithUnits>(self.unexpired_bucket_count() as usize)
    }

    /// Returns the outcome of a hit that requires `required` free units while `used` units are in use.
    #[inline(always)]
    fn outcome(&self, state: &State, used: u64, now: Timestamp, required: u64) -> Outcome {
        let max = self.max_units();
        let remaining = max.saturating_sub(used);
        let fits = fits_in_remaining(required, remaining, used > max);
        let reset_after_us = micros_until_expiry(self, state, now);
        Outcome::from_fit_and_remaining((fits, remaining, max), required, reset_after_us, || {
            // The oldest buckets expire one by one, until the rest of the total leaves enough free units.
            let newest = self.bucket_number(state.last_us);
            let (mut counted, mut index) = (state.total, 0);
            let mut fits_at_us = now.as_micros();
            while let Some(entry) = state.entries.get(index).filter(|_| counted + required > max) {
                counted -= u64::from(entry.count);
                fits_at_us = self.bucket_expires_us(newest - entry.age_in_buckets(newest));
                index += 1;
            }
            fits_at_us - now.as_micros()
        })
    }

    /// Adds units to the bucket with the number `newest`. No bucket with a higher number may have units.
    #[inline(always)]
    fn add_units(&self, state: &mut State, newest: u64, units: u64) {
        let last = state.entries.len().checked_sub(1);
        let entry = last.and_then(|index| state.entries.get(index));
        let current = entry.filter(|entry| entry.bucket == newest as u32);
        let before = current.map_or(0, |entry| entry.count);
        let count = clamp_to_max_units(u64::from(before).saturating_add(units));
        let entry = BucketWithUnits { bucket: newest as u32, count };
        state.total += u64::from(count - before);
        match last.filter(|_| current.is_some()) {
            Some(index) => state.entries.set(index, entry),
            None if count > 0 => state.entries.push(entry, self.unexpired_bucket_count() as usize),
            None => {}
        }
    }
}

impl Counter for SlidingBuckets {
    type State = State;

    fn peek(&self, state: &State, now: Timestamp, required: u64) -> Outcome {
        self.outcome(state, self.used(state, now), now, required)
    }

    fn charge(&self, state: &mut State, now: Timestamp, cost: u64) -> ChargeEffect {
        let now_us = now.as_micros().max(state.last_us);
        let newest = self.bucket_number(now_us);
        let (entries, units) =
            self.count_expired_buckets_and_units(state, self.bucket_number(state.last_us), newest);
        if entries > 0 {
            state.entries.remove_first(entries);
            state.total -= units;
        }
        state.last_us = now_us;
        self.add_units(state, newest, cost);
        let charged_at = Timestamp::from_micros(now_us);
        // Expired units have been removed from the total above.
        ChargeEffect {
            charged_at,
            expires_at: self.expires_at(state),
            outcome: self.outcome(state, state.total, now, 1),
        }
    }

    fn revert(&self, state: &mut State, charged_at: Timestamp, cost: u64) {
        if let Some(index) =
            self.find_bucket_index(state, self.bucket_number(charged_at.as_micros()))
        {
            let count = state.entries.get(index).map_or(0, |entry| entry.count);
            state.subtract_units(index, cost.min(count.into()));
        }
    }

    fn refund(&self, state: &mut State, now: Timestamp, cost: u64) {
        let current = self.bucket_number(now.as_micros().max(state.last_us));
        let (expired, _) =
            self.count_expired_buckets_and_units(state, self.bucket_number(state.last_us), current);
        state.subtract_units(expired, cost);
    }

    fn expires_at(&self, state: &State) -> Timestamp {
        let last = state.entries.len().checked_sub(1).and_then(|index| state.entries.get(index));
        let newest = self.bucket_number(state.last_us);
        last.map_or(Timestamp::default(), |entry| {
            Timestamp::from_micros(self.bucket_expires_us(newest - entry.age_in_buckets(newest)))
        })
    }
}

impl Additive for SlidingBuckets {
    fn layout(&self) -> BucketLayout {
        BucketLayout {
            bucket_us: self.precision_us,
            buckets: u32::from(self.buckets) + 1,
            drift_us: 0,
        }
    }

    #[inline]
    fn current_bucket(&self, state: &State) -> u64 {
        self.bucket_number(state.last_us)
    }

    fn units(&self, state: &State, bucket: u64) -> u64 {
        let entry =
            self.find_bucket_index(state, bucket).and_then(|index| state.entries.get(index));
        entry.map_or(0, |entry| entry.count.into())
    }

    fn state_from_buckets(
        &self,
        last_charged_at: Timestamp,
        mut units: impl FnMut(u64) -> u64,
    ) -> State {
        let mut state = State { last_us: last_charged_at.as_micros(), ..State::default() };
        let current = self.bucket_number(state.last_us);
        for bucket in self.oldest_unexpired_bucket(current)..=current {
            self.add_units(&mut state, bucket, units(bucket));
        }
        state
    }

    fn used(&self, state: &State, now: Timestamp) -> u64 {
        let current = self.bucket_number(now.as_micros().max(state.last_us));
        state.total
            - self
                .count_expired_buckets_and_units(state, self.bucket_number(state.last_us), current)
                .1
    }

    fn last_charged_at(&self, state: &State) -> Timestamp {
        Timestamp::from_micros(state.last_us)
    }
}
