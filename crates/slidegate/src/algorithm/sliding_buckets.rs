//! Sub-buckets of the window, the oldest counted **in full**.
//!
//! With n = window / precision, the running bucket and the n before it are counted. Together they cover
//! at least the window, so no window ever holds more than max; a unit is counted for at most one
//! precision longer than it has to be. Buckets begin at multiples of the precision since the Unix epoch.
//!
//! A state holds only the buckets that have units, 8 bytes each, so that a key with one request takes tens of bytes
//! however many buckets its window has.

use std::cmp::Ordering;

use super::additive::{Additive, Shape};
use super::ring::{Ring, max_heap_bytes};
use super::{Charged, Counter, lasts_us, saturate};
use crate::clock::Timestamp;
use crate::heap::HeapSize;
use crate::limit::LimitParams;
use crate::outcome::Outcome;
use crate::quota::Quota;

/// A window has at most this many buckets.
pub const MAX_BUCKETS: u64 = 1_440;

/// A quota, counted in buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingBuckets {
    max: u32,
    /// Buckets per window.
    buckets: u16,
    precision_us: u64,
}

/// The counts of the last buckets, as of the last charge.
#[derive(Clone, Debug, Default)]
pub struct State {
    last_us: u64,
    /// Sum of the counts.
    total: u64,
    /// Buckets that hold units, oldest first. All are counted at `last_us`.
    entries: Ring<Entry>,
}

/// Units of one bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    /// The lower half of the bucket's number: buckets that are counted at once differ by much less.
    bucket: u32,
    /// Never 0.
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
    /// Returns the number of entries more than `age` buckets before `newest`, the bucket of the last charge, and the sum
    /// of their units.
    #[inline(always)]
    fn older_than(&self, age: u64, newest: u64) -> (usize, u64) {
        let (mut entries, mut units) = (0, 0);
        while let Some(entry) = self.entries.get(entries).filter(|entry| entry.age(newest) > age) {
            units += u64::from(entry.count);
            entries += 1;
        }
        (entries, units)
    }

    /// Takes up to `units` units from the `nth` entry on, oldest first.
    fn take_off(&mut self, nth: usize, units: u64) {
        let (mut left, mut emptied) = (units, 0);
        while let Some(entry) = self.entries.get(nth + emptied).filter(|_| left > 0) {
            let taken = left.min(u64::from(entry.count));
            left -= taken;
            self.total -= taken;
            if taken < u64::from(entry.count) {
                let count = entry.count - taken as u32;
                self.entries.set(nth + emptied, Entry { count, ..entry });
                break;
            }
            emptied += 1;
        }
        if emptied > 0 {
            self.entries.remove(nth, emptied);
        }
    }
}

impl Entry {
    /// Returns the number of buckets from this one to `newest`, which is the newest that may hold units.
    #[inline(always)]
    fn age(&self, newest: u64) -> u64 {
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

    pub(crate) fn quota(&self) -> Quota {
        Quota::of_parts(self.max, self.precision_us * u64::from(self.buckets))
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

    /// The oldest bucket that is counted while `running` is the running one.
    fn oldest(&self, running: u64) -> u64 {
        running.saturating_sub(self.counted() - 1)
    }

    /// Returns the number of entries that are no longer counted while `running` is the running bucket, and the sum of
    /// their units. `running` is not before `newest`, the bucket of the last charge.
    #[inline(always)]
    fn left(&self, state: &State, newest: u64, running: u64) -> (usize, u64) {
        if running == newest {
            return (0, 0);
        }
        match newest.checked_sub(self.oldest(running)) {
            Some(age) => state.older_than(age, newest),
            None => (state.entries.len(), state.total),
        }
    }

    /// The place of a bucket's entry, if it has units.
    fn find(&self, state: &State, bucket: u64) -> Option<usize> {
        let newest = self.bucket(state.last_us);
        let age = newest.checked_sub(bucket).filter(|age| *age < self.counted())?;
        let (mut low, mut high) = (0, state.entries.len());
        while low < high {
            let middle = (low + high) / 2;
            match state.entries.get(middle)?.age(newest).cmp(&age) {
                Ordering::Equal => return Some(middle),
                Ordering::Greater => low = middle + 1,
                Ordering::Less => high = middle,
            }
        }
        None
    }

    /// Returns the heap bytes of a state at worst.
    pub(crate) fn max_heap_bytes(&self) -> usize {
        max_heap_bytes::<Entry>(self.counted() as usize)
    }

    /// Adds units to the running bucket, as of the last charge.
    #[inline(always)]
    fn add(&self, state: &mut State, newest: u64, units: u64) {
        let last = state.entries.len().checked_sub(1);
        let entry = last.and_then(|nth| state.entries.get(nth));
        let running = entry.filter(|entry| entry.bucket == newest as u32);
        let before = running.map_or(0, |entry| entry.count);
        let count = saturate(u64::from(before).saturating_add(units));
        let entry = Entry { bucket: newest as u32, count };
        state.total += u64::from(count - before);
        match last.filter(|_| running.is_some()) {
            Some(nth) => state.entries.set(nth, entry),
            None if count > 0 => state.entries.push(entry, self.counted() as usize),
            None => {}
        }
    }
}

impl Counter for SlidingBuckets {
    type State = State;

    fn peek(&self, state: &State, now: Timestamp, required: u64) -> Outcome {
        let max = self.max();
        let reset_after_us = lasts_us(self, state, now);
        Outcome::judge((self.used(state, now), max), required, reset_after_us, || {
            // The oldest buckets leave one by one, until what is left of the total makes room.
            let newest = self.bucket(state.last_us);
            let (mut kept, mut nth) = (state.total, 0);
            let mut fits_at_us = now.as_micros();
            while let Some(entry) = state.entries.get(nth).filter(|_| kept + required > max) {
                kept -= u64::from(entry.count);
                fits_at_us = self.leaves_us(newest - entry.age(newest));
                nth += 1;
            }
            fits_at_us - now.as_micros()
        })
    }

    fn charge(&self, state: &mut State, now: Timestamp, cost: u64) -> Charged {
        let now_us = now.as_micros().max(state.last_us);
        let newest = self.bucket(now_us);
        let (entries, units) = self.left(state, self.bucket(state.last_us), newest);
        if entries > 0 {
            state.entries.drop_first(entries);
            state.total -= units;
        }
        state.last_us = now_us;
        self.add(state, newest, cost);
        let at = Timestamp::from_micros(now_us);
        Charged { at, after: self.peek(state, now, 1) }
    }

    fn revert(&self, state: &mut State, charged_at: Timestamp, cost: u64) {
        if let Some(nth) = self.find(state, self.bucket(charged_at.as_micros())) {
            let count = state.entries.get(nth).map_or(0, |entry| entry.count);
            state.take_off(nth, cost.min(count.into()));
        }
    }

    fn refund(&self, state: &mut State, now: Timestamp, cost: u64) {
        let running = self.bucket(now.as_micros().max(state.last_us));
        let (left, _) = self.left(state, self.bucket(state.last_us), running);
        state.take_off(left, cost);
    }

    fn expires_at(&self, state: &State) -> Timestamp {
        let last = state.entries.len().checked_sub(1).and_then(|nth| state.entries.get(nth));
        let newest = self.bucket(state.last_us);
        last.map_or(Timestamp::default(), |entry| {
            Timestamp::from_micros(self.leaves_us(newest - entry.age(newest)))
        })
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
        let entry = self.find(state, bucket).and_then(|nth| state.entries.get(nth));
        entry.map_or(0, |entry| entry.count.into())
    }

    fn gather(&self, last: Timestamp, mut units: impl FnMut(u64) -> u64) -> State {
        let mut state = State { last_us: last.as_micros(), ..State::default() };
        let running = self.bucket(state.last_us);
        for bucket in self.oldest(running)..=running {
            self.add(&mut state, bucket, units(bucket));
        }
        state
    }

    fn used(&self, state: &State, now: Timestamp) -> u64 {
        let running = self.bucket(now.as_micros().max(state.last_us));
        state.total - self.left(state, self.bucket(state.last_us), running).1
    }

    fn last(&self, state: &State) -> Timestamp {
        Timestamp::from_micros(state.last_us)
    }
}
