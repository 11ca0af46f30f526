//! Sub-buckets of the window, the oldest counted **in full**.
//!
//! With n = window / precision, the running bucket and the n before it are counted. Together they cover
//! at least the window, so no window ever holds more than max; a unit is counted for at most one
//! precision longer than it has to be. Buckets begin at multiples of the precision since the Unix epoch.

use super::additive::{Additive, Shape};
use super::{Charged, Counter, lasts_us, saturate};
use crate::clock::Timestamp;
use crate::limit::Numbers;
use crate::outcome::Outcome;
use crate::quota::Quota;

/// A window has at most this many buckets.
pub const MOST_BUCKETS: u64 = 1_440;

/// A quota, counted in buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingBuckets {
    max: u32,
    /// Buckets per window.
    buckets: u16,
    precision_us: u64,
}

/// The counts of the last buckets, as of the last charge.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    last_us: u64,
    /// Sum of the counts.
    total: u64,
    /// A ring: bucket number b stands at b modulo the length. Empty until the first charge.
    counts: Box<[u32]>,
}

impl SlidingBuckets {
    pub(crate) fn new(quota: &Quota, precision_us: u64) -> Self {
        Self {
            max: quota.max() as u32,
            buckets: (quota.window_us() / precision_us) as u16,
            precision_us,
        }
    }

    pub(crate) fn quota(&self) -> Quota {
        Quota::of_parts(self.max, self.precision_us * u64::from(self.buckets))
    }

    pub(crate) fn numbers(&self) -> Numbers {
        let (max, extra) = (self.max, u32::from(self.buckets) + 1);
        Numbers { max, extra, tick_us: self.precision_us, window: u64::from(self.buckets) }
    }

    fn max(&self) -> u64 {
        u64::from(self.max)
    }

    pub(crate) fn precision_us(&self) -> u64 {
        self.precision_us
    }

    /// How many buckets are counted: the running one and a window's worth before it.
    fn counted(&self) -> u64 {
        u64::from(self.buckets) + 1
    }

    fn bucket(&self, moment_us: u64) -> u64 {
        moment_us / self.precision_us
    }

    /// When what was charged in `bucket` is no longer counted.
    fn leaves_us(&self, bucket: u64) -> u64 {
        (bucket + self.counted()) * self.precision_us
    }

    /// The numbers of the buckets that a state holds, the oldest first.
    fn held(&self, state: &State) -> std::ops::RangeInclusive<u64> {
        let newest = self.bucket(state.last_us);
        newest.saturating_sub(self.counted() - 1)..=newest
    }

    fn count(&self, state: &State, bucket: u64) -> u64 {
        let slot = (bucket % self.counted()) as usize;
        state.counts.get(slot).copied().map_or(0, u64::from)
    }

    /// The oldest bucket that is counted at a moment.
    fn oldest(&self, moment_us: u64) -> u64 {
        self.bucket(moment_us).saturating_sub(self.counted() - 1)
    }

    /// What of the state's total is no longer counted at `moment_us`, which is not before the last charge.
    fn left(&self, state: &State, moment_us: u64) -> u64 {
        let oldest = self.oldest(moment_us);
        let held = self.held(state);
        if oldest > *held.end() {
            return state.total;
        }
        (*held.start()..oldest).map(|bucket| self.count(state, bucket)).sum()
    }

    /// Takes units off a bucket; says how many there were to take.
    fn take_off(&self, state: &mut State, bucket: u64, units: u64) -> u64 {
        let Some(count) = state.counts.get_mut((bucket % self.counted()) as usize) else {
            return 0;
        };
        let taken = units.min(u64::from(*count));
        *count -= taken as u32;
        state.total -= taken;
        taken
    }
}

impl Counter for SlidingBuckets {
    type State = State;

    fn peek(&self, state: &State, now: Timestamp, cost: u64) -> Outcome {
        let max = self.max();
        let remaining = max.saturating_sub(self.used(state, now));
        let reset_after_us = lasts_us(self, state, now);
        Outcome::judge((remaining, max), cost, reset_after_us, |cost| {
            // The oldest buckets leave one by one, until what is left of the total makes room.
            let mut kept = state.total;
            let mut fits_at_us = now.as_micros();
            for bucket in self.held(state) {
                if kept + cost <= max {
                    break;
                }
                kept -= self.count(state, bucket);
                fits_at_us = self.leaves_us(bucket);
            }
            fits_at_us - now.as_micros()
        })
    }

    fn charge(&self, state: &mut State, now: Timestamp, cost: u64) -> Charged {
        let counted = self.counted();
        if state.counts.len() as u64 != counted {
            *state = State { last_us: 0, total: 0, counts: vec![0; counted as usize].into() };
        }
        let now_us = now.as_micros().max(state.last_us);
        let newest = self.bucket(now_us);
        let stale = (newest - self.bucket(state.last_us)).min(counted);
        for bucket in newest + 1 - stale..=newest {
            let slot = &mut state.counts[(bucket % counted) as usize];
            state.total -= u64::from(std::mem::take(slot));
        }
        let slot = &mut state.counts[(newest % counted) as usize];
        let before = *slot;
        *slot = saturate(u64::from(before).saturating_add(cost));
        state.total += u64::from(*slot - before);
        state.last_us = now_us;
        Charged { at: Timestamp::from_micros(now_us), after: self.peek(state, now, 0) }
    }

    fn give_back(&self, state: &mut State, charged_at: Timestamp, cost: u64) {
        let bucket = self.bucket(charged_at.as_micros());
        if self.held(state).contains(&bucket) {
            self.take_off(state, bucket, cost);
        }
    }

    fn refund(&self, state: &mut State, now: Timestamp, cost: u64) {
        let oldest = self.oldest(now.as_micros().max(state.last_us));
        let mut units = cost;
        for bucket in oldest..=self.bucket(state.last_us) {
            if units == 0 {
                break;
            }
            units -= self.take_off(state, bucket, units);
        }
    }

    fn expires_at(&self, state: &State) -> Timestamp {
        let newest = self.held(state).rev().find(|&bucket| self.count(state, bucket) > 0);
        newest.map_or(Timestamp::default(), |bucket| Timestamp::from_micros(self.leaves_us(bucket)))
    }
}

impl Additive for SlidingBuckets {
    fn shape(&self) -> Shape {
        Shape { bucket_us: self.precision_us, buckets: u32::from(self.buckets) + 1 }
    }

    #[inline]
    fn running(&self, state: &State) -> u64 {
        self.bucket(state.last_us)
    }

    fn units(&self, state: &State, bucket: u64) -> u64 {
        if self.held(state).contains(&bucket) { self.count(state, bucket) } else { 0 }
    }

    fn gather(&self, last: Timestamp, mut units: impl FnMut(u64) -> u64) -> State {
        let counted = self.counted();
        let counts = vec![0; counted as usize].into();
        let mut state = State { last_us: last.as_micros(), total: 0, counts };
        for bucket in self.held(&state) {
            let count = saturate(units(bucket));
            state.counts[(bucket % counted) as usize] = count;
            state.total += u64::from(count);
        }
        state
    }

    fn used(&self, state: &State, now: Timestamp) -> u64 {
        state.total - self.left(state, now.as_micros().max(state.last_us))
    }

    fn last(&self, state: &State) -> Timestamp {
        Timestamp::from_micros(state.last_us)
    }
}
