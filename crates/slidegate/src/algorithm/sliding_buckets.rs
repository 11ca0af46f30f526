//! The sliding buckets algorithm: divides the window into buckets and counts the oldest bucket **in full**.
//!
//! With n = window / precision, the current bucket and the n buckets before it are counted. Together they cover at
//! least the window, so no window ever contains more than max units; a unit is counted for at most one bucket length
//! longer than necessary. Buckets begin at multiples of the precision since the Unix epoch. A state stores only buckets
//! with units, 8 bytes each, so that a key with one request takes tens of bytes regardless of the number of buckets.

mod state;

use std::cmp::Ordering;

use super::additive::{AdditiveCounter, BucketLayout};
use super::counter::{ChargeEffect, Counter, is_time_ahead_of_clock};
use super::tick::LimitParams;
use crate::clock::Timestamp;
use crate::layout::CompactU64;
use crate::outcome::Outcome;
use crate::quota::{MAX_UNITS, Quota, max_count};

pub use state::State;
use state::{EarlierBuckets, ExpiredBuckets, max_state_heap_bytes};

/// The largest number of buckets in a window.
pub const MAX_BUCKETS: u64 = 1_440;

/// A quota that is counted in time buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingBuckets {
    max: CompactU64,
    /// The number of buckets in a window.
    buckets: u16,
    /// The length of a bucket in microseconds.
    precision_us: CompactU64,
}

impl SlidingBuckets {
    pub(crate) fn new(quota: &Quota, precision_us: u64) -> Self {
        Self {
            max: quota.max().into(),
            buckets: (quota.window_us() / precision_us) as u16,
            precision_us: precision_us.into(),
        }
    }

    /// Creates a counter with buckets of this length, which need not divide the window: enough buckets to cover the
    /// window are used.
    pub(super) fn with_buckets(max: u64, window_us: u64, precision_us: u64) -> Self {
        Self {
            max: max.into(),
            buckets: window_us.div_ceil(precision_us) as u16,
            precision_us: precision_us.into(),
        }
    }

    pub(crate) fn quota(&self) -> Quota {
        Quota::from_parts(self.max.get(), self.precision_us() * u64::from(self.buckets))
    }

    pub(crate) fn limit_params(&self) -> LimitParams {
        let (max, extra) = (self.max.get(), u32::from(self.buckets) + 1);
        LimitParams {
            max,
            extra,
            max_debt: 0,
            tick_us: self.precision_us(),
            window: u64::from(self.buckets),
        }
    }

    pub(crate) fn precision_us(&self) -> u64 {
        self.precision_us.get()
    }

    /// Returns the number of buckets whose units are counted in a decision: the current bucket, and all buckets of one
    /// window before it.
    fn unexpired_bucket_count(&self) -> u64 {
        u64::from(self.buckets) + 1
    }

    /// Returns the number of the bucket that contains a time.
    fn bucket_number(&self, time_us: u64) -> u64 {
        time_us / self.precision_us()
    }

    /// Returns the time from which the units of `bucket` are no longer counted, in microseconds since the Unix epoch.
    fn bucket_expires_us(&self, bucket: u64) -> u64 {
        (bucket + self.unexpired_bucket_count()) * self.precision_us()
    }

    /// Returns the number of the oldest bucket whose units are counted while `current` is the number of the current
    /// bucket.
    fn oldest_unexpired_bucket(&self, current: u64) -> u64 {
        current.saturating_sub(self.unexpired_bucket_count() - 1)
    }

    /// Returns the buckets of a state that are no longer counted when `current` is the current bucket. `newest` is the
    /// bucket that contains the last charge, and `current` must not be less than `newest`.
    fn expired_buckets(&self, state: &State, newest: u64, current: u64) -> ExpiredBuckets {
        let Some(age) = newest.checked_sub(self.oldest_unexpired_bucket(current)) else {
            return ExpiredBuckets {
                earlier_buckets: state.earlier_bucket_count(),
                units: state.total_units(),
                is_current_expired: true,
            };
        };
        let mut expired = ExpiredBuckets::default();
        while let Some(earlier_bucket) = state
            .earlier_bucket(expired.earlier_buckets)
            .filter(|earlier_bucket| earlier_bucket.age_in_buckets(newest) > age)
        {
            expired.units += earlier_bucket.units();
            expired.earlier_buckets += 1;
        }
        expired
    }

    /// Returns the buckets of a state that are no longer counted at `now`.
    fn expired_buckets_at(&self, state: &State, now: Timestamp) -> ExpiredBuckets {
        if self.is_in_current_bucket(state, now) {
            ExpiredBuckets::default()
        } else {
            let newest = self.current_bucket(state);
            self.expired_buckets(state, newest, self.bucket_number(now.as_micros()))
        }
    }

    /// Returns the index of a bucket among the buckets that a state stores in addition to its current bucket; `None` if
    /// the bucket has no units, is the current bucket, or is no longer counted.
    fn find_earlier_bucket(&self, state: &State, bucket: u64) -> Option<usize> {
        let newest = self.current_bucket(state);
        let age = newest.checked_sub(bucket).filter(|age| *age < self.unexpired_bucket_count())?;
        let (mut low, mut high) = (0, state.earlier_bucket_count());
        while low < high {
            let middle = (low + high) / 2;
            match state.earlier_bucket(middle)?.age_in_buckets(newest).cmp(&age) {
                Ordering::Equal => return Some(middle),
                Ordering::Greater => low = middle + 1,
                Ordering::Less => high = middle,
            }
        }
        None
    }

    /// Begins the bucket that contains `now`, unless it is the current bucket of the state or an earlier one. Removes
    /// the buckets that are no longer counted.
    fn begin_bucket_at(&self, state: &mut State, now: Timestamp) {
        if self.is_in_current_bucket(state, now) {
            return;
        }
        let (newest, current) = (self.current_bucket(state), self.bucket_number(now.as_micros()));
        let expired = self.expired_buckets(state, newest, current);
        let start_us = current * self.precision_us();
        state.begin_bucket(start_us, newest, expired, self.buckets.into());
    }

    /// Returns the largest number of heap bytes that a state can take.
    pub(crate) fn max_heap_bytes(&self) -> usize {
        max_state_heap_bytes(self.buckets.into())
    }

    /// Returns the outcome of a hit that requires `required` free units while `used` units are in use. All of these
    /// units have expired at `expires_at`.
    fn outcome(
        &self,
        state: &State,
        (used, expires_at): (u64, Timestamp),
        now: Timestamp,
        required: u64,
    ) -> Outcome {
        let reset_after_us = expires_at.as_micros().saturating_sub(now.as_micros());
        Outcome::from_used_units((used, self.max.get()), required, reset_after_us, || {
            self.earliest_fit_us(state, required) - now.as_micros()
        })
    }

    /// Returns the time from which `required` units fit, in microseconds since the Unix epoch. Must be called only if
    /// they do not fit now.
    fn earliest_fit_us(&self, state: &State, required: u64) -> u64 {
        // The buckets expire one by one, oldest first. The units fit when the buckets that remain leave enough free
        // units.
        let newest = self.current_bucket(state);
        let mut counted = state.total_units();
        for earlier_bucket in state.earlier_buckets() {
            counted -= earlier_bucket.units();
            if counted + required <= self.max.get() {
                return self.bucket_expires_us(newest - earlier_bucket.age_in_buckets(newest));
            }
        }
        self.current_bucket_expires_us(state)
    }

    /// Returns the time from which the units of a state's current bucket are no longer counted, in microseconds since
    /// the Unix epoch.
    fn current_bucket_expires_us(&self, state: &State) -> u64 {
        state.start_us + self.unexpired_bucket_count() * self.precision_us()
    }

    /// Returns the effect of a charge. `total_units` is the number of units in all buckets, none of which has expired.
    fn charge_effect(
        &self,
        state: &State,
        total_units: u64,
        expires_at: Timestamp,
        now: Timestamp,
    ) -> ChargeEffect {
        ChargeEffect {
            charged_at: now.max(Timestamp::from_micros(state.start_us)),
            expires_at,
            outcome: self.outcome(state, (total_units, expires_at), now, 1),
        }
    }
}

impl Counter for SlidingBuckets {
    type State = State;

    fn capacity(&self) -> u64 {
        self.max.get()
    }

    fn peek(&self, state: &State, now: Timestamp, required: u64) -> Outcome {
        self.outcome(state, (self.used(state, now), self.expires_at(state)), now, required)
    }

    fn charge(&self, state: &mut State, now: Timestamp, cost: u64) -> ChargeEffect {
        self.begin_bucket_at(state, now);
        state.current_units +=
            cost.min(max_count(self.max.get()).saturating_sub(state.total_units()));
        self.charge_effect(state, state.total_units(), self.expires_at(state), now)
    }

    fn revert(&self, state: &mut State, charged_at: Timestamp, cost: u64) {
        // If the clock has stepped back since the charge, its time is after the current bucket, which then contains its
        // units.
        let bucket = self.bucket_number(charged_at.as_micros()).min(self.current_bucket(state));
        if bucket == self.current_bucket(state) {
            state.subtract_current_units(cost);
        } else if let Some(index) = self.find_earlier_bucket(state, bucket) {
            let units =
                state.earlier_bucket(index).map_or(0, |earlier_bucket| earlier_bucket.units());
            state.subtract_earlier_units(index, cost.min(units));
        }
    }

    fn refund(&self, state: &mut State, now: Timestamp, cost: u64) {
        let expired = self.expired_buckets_at(state, now);
        if !expired.is_current_expired {
            let left = state.subtract_earlier_units(expired.earlier_buckets, cost);
            state.subtract_current_units(left);
        }
    }

    fn is_ahead_of_clock(&self, state: &State, now: Timestamp) -> bool {
        is_time_ahead_of_clock(state.start_us, now)
    }

    /// Moves all units into the bucket that contains `now`.
    fn set_state_back_to(&self, state: &mut State, now: Timestamp) {
        let start_us = self.bucket_number(now.as_micros()) * self.precision_us();
        let current_units = state.total_units();
        *state = State::with_earlier_buckets(start_us, EarlierBuckets::default());
        state.current_units = current_units;
    }

    fn expires_at(&self, state: &State) -> Timestamp {
        if state.current_units > 0 {
            return Timestamp::from_micros(self.current_bucket_expires_us(state));
        }
        let newest = self.current_bucket(state);
        state.earlier_buckets().last().map_or(Timestamp::default(), |earlier_bucket| {
            Timestamp::from_micros(
                self.bucket_expires_us(newest - earlier_bucket.age_in_buckets(newest)),
            )
        })
    }
}

impl AdditiveCounter for SlidingBuckets {
    fn layout(&self) -> BucketLayout {
        BucketLayout {
            bucket_us: self.precision_us(),
            buckets: u32::from(self.buckets) + 1,
            mean_excess_us: 0,
            epoch_offset_in_first_period_s: 0,
        }
    }

    fn current_bucket(&self, state: &State) -> u64 {
        self.bucket_number(state.start_us)
    }

    fn is_in_current_bucket(&self, state: &State, now: Timestamp) -> bool {
        now.as_micros() < state.start_us + self.precision_us()
    }

    fn units(&self, state: &State, bucket: u64) -> u64 {
        if bucket == self.current_bucket(state) {
            return state.current_units;
        }
        let earlier_bucket =
            self.find_earlier_bucket(state, bucket).and_then(|index| state.earlier_bucket(index));
        earlier_bucket.map_or(0, |earlier_bucket| earlier_bucket.units())
    }

    fn visit_units(&self, state: &State, mut visit: impl FnMut(u64, u64)) {
        let current = self.current_bucket(state);
        for earlier_bucket in state.earlier_buckets() {
            visit(current - earlier_bucket.age_in_buckets(current), earlier_bucket.units());
        }
        if state.current_units > 0 {
            visit(current, state.current_units);
        }
    }

    fn add_to_current_bucket(&self, state: &mut State, bucket: u64, units: u64) -> Option<u64> {
        let is_current = bucket == self.current_bucket(state);
        is_current.then(|| {
            let added = units.min(MAX_UNITS.saturating_sub(state.current_units));
            state.current_units += added;
            added
        })
    }

    fn state_from_buckets(
        &self,
        last_charged_at: Timestamp,
        mut units: impl FnMut(u64) -> u64,
    ) -> State {
        let current = self.bucket_number(last_charged_at.as_micros());
        let mut earlier = EarlierBuckets::default();
        for bucket in self.oldest_unexpired_bucket(current)..current {
            earlier.push(bucket, units(bucket).min(MAX_UNITS), self.buckets.into());
        }
        let mut state = State::with_earlier_buckets(current * self.precision_us(), earlier);
        state.current_units = units(current).min(MAX_UNITS);
        state
    }

    fn used(&self, state: &State, now: Timestamp) -> u64 {
        state.total_units() - self.expired_buckets_at(state, now).units
    }

    fn last_charged_at(&self, state: &State) -> Timestamp {
        Timestamp::from_micros(state.start_us)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn visited_and_added_units_equal_units_of_buckets(
            steps in prop::collection::vec((0..400_000_u64, 1..5_u64, any::<bool>()), 1..40),
        ) {
            let counter = SlidingBuckets::new(&"10/s".parse().unwrap(), 100_000);
            let (mut state, mut charged) = (State::default(), State::default());
            let mut now_us = 1_700_000_000_000_000;
            for (elapsed_us, cost, is_added) in steps {
                now_us += elapsed_us;
                let now = Timestamp::from_micros(now_us);
                let is_current = counter.is_in_current_bucket(&state, now);
                counter.charge(&mut charged, now, cost);
                let bucket = counter.layout().bucket(now);
                if is_added {
                    let added = counter.add_to_current_bucket(&mut state, bucket, cost);
                    prop_assert_eq!(added, is_current.then_some(cost));
                }
                if !is_added || !is_current {
                    counter.charge(&mut state, now, cost);
                }
                prop_assert_eq!(&state, &charged);
                let mut visited = Vec::new();
                counter.visit_units(&state, |bucket, units| visited.push((bucket, units)));
                let oldest = counter.oldest_unexpired_bucket(bucket);
                let with_units = (oldest..=bucket).map(|bucket| (bucket, counter.units(&state, bucket)));
                prop_assert_eq!(visited, with_units.filter(|(_, units)| *units > 0).collect::<Vec<_>>());
            }
        }
    }
}
