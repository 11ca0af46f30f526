//! The state of a key with sliding buckets.

use super::super::ring::{RingBuffer, max_heap_bytes};
use crate::layout::{HeapSize, allocator_block_bytes};

/// The state of a key: the units of the current bucket, which is the bucket of the last charge, and of earlier buckets.
///
/// The units of the earlier buckets are on the heap.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The start of the current bucket, in microseconds since the Unix epoch.
    pub(super) start_us: u64,
    /// The units charged in the current bucket.
    pub(super) current_units: u64,
    /// The earlier buckets; `None` if none of them has units.
    earlier: Option<Box<EarlierBuckets>>,
}

/// The units that were charged before the current bucket.
#[derive(Clone, Debug, Default)]
pub(super) struct EarlierBuckets {
    /// The number of units in all earlier buckets.
    units: u64,
    /// The buckets with units, oldest first. None of them had expired at the start of the current bucket.
    earlier_buckets: RingBuffer<BucketWithUnits>,
}

/// A bucket that has units: the lowest bits of its number, and above them the number of its units, which is never 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BucketWithUnits(u64);

/// The number of bits of a bucket number that are stored, the lowest ones. They are sufficient, because the numbers of
/// the buckets in a state differ by at most [`MAX_BUCKETS`](super::MAX_BUCKETS). The other 53 bits hold the largest
/// count.
const BUCKET_BITS: u32 = 11;

const _: () = assert!(super::MAX_BUCKETS < 1 << BUCKET_BITS);

/// The buckets of a state that are no longer counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExpiredBuckets {
    /// The number of expired buckets before the current bucket.
    pub(super) earlier_buckets: usize,
    /// The number of units in all expired buckets, with the current bucket if it has expired.
    pub(super) units: u64,
    /// Whether the current bucket of the state has also expired.
    pub(super) is_current_expired: bool,
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        let current = |state: &Self| (state.start_us, state.current_units);
        current(self) == current(other) && self.earlier_buckets().eq(other.earlier_buckets())
    }
}

impl HeapSize for State {
    fn heap_bytes(&self) -> usize {
        self.earlier.as_ref().map_or(0, |earlier| {
            allocator_block_bytes(size_of::<EarlierBuckets>())
                + earlier.earlier_buckets.heap_bytes()
        })
    }
}

impl State {
    /// Returns the earlier buckets with units, oldest first.
    pub(super) fn earlier_buckets(&self) -> impl Iterator<Item = BucketWithUnits> + '_ {
        self.earlier.iter().flat_map(|earlier| earlier.earlier_buckets.iter())
    }

    /// Returns the earlier bucket with this index, counted from the oldest one.
    pub(super) fn earlier_bucket(&self, index: usize) -> Option<BucketWithUnits> {
        self.earlier.as_ref()?.earlier_buckets.get(index)
    }

    pub(super) fn earlier_bucket_count(&self) -> usize {
        self.earlier.as_ref().map_or(0, |earlier| earlier.earlier_buckets.len())
    }

    /// Returns the number of units in all buckets.
    pub(super) fn total_units(&self) -> u64 {
        let earlier = self.earlier.as_ref().map_or(0, |earlier| earlier.units);
        earlier + self.current_units
    }

    /// Returns a state with these earlier buckets, and without units in the current bucket.
    pub(super) fn with_earlier_buckets(start_us: u64, earlier: EarlierBuckets) -> Self {
        let mut state = Self { start_us, ..Self::default() };
        if !earlier.earlier_buckets.is_empty() {
            state.set_earlier_buckets(Box::new(earlier));
        }
        state
    }

    fn set_earlier_buckets(&mut self, earlier: Box<EarlierBuckets>) {
        self.earlier = (!earlier.earlier_buckets.is_empty()).then_some(earlier);
    }

    /// Begins a new current bucket at `start_us`. `ended` is the current bucket that ends, and `expired` are the
    /// buckets to remove. At most `max_earlier` earlier buckets have units.
    pub(super) fn begin_bucket(
        &mut self,
        start_us: u64,
        ended: u64,
        expired: ExpiredBuckets,
        max_earlier: usize,
    ) {
        let ended_units = std::mem::take(&mut self.current_units);
        let ExpiredBuckets { earlier_buckets, units, is_current_expired } = expired;
        self.start_us = start_us;
        if is_current_expired {
            self.earlier = None;
        } else if ended_units > 0 || earlier_buckets > 0 {
            let mut earlier = self.earlier.take().unwrap_or_default();
            earlier.earlier_buckets.remove_first(earlier_buckets);
            earlier.units -= units;
            earlier.push(ended, ended_units, max_earlier);
            self.set_earlier_buckets(earlier);
        }
    }

    /// Subtracts up to `units` units from the earlier bucket at `index` and the later ones, oldest bucket first.
    /// Returns the number of units that remain to be subtracted from the current bucket.
    pub(super) fn subtract_earlier_units(&mut self, index: usize, units: u64) -> u64 {
        let Some(mut earlier) = self.earlier.take() else { return units };
        let left = earlier.subtract_units(index, units);
        self.set_earlier_buckets(earlier);
        left
    }

    /// Subtracts up to `units` units from the current bucket.
    pub(super) fn subtract_current_units(&mut self, units: u64) {
        self.current_units = self.current_units.saturating_sub(units);
    }
}

impl EarlierBuckets {
    /// Appends a bucket, which must be later than all others. If it has no units, does nothing. There are never more
    /// than `max_len` buckets with units.
    pub(super) fn push(&mut self, bucket: u64, units: u64, max_len: usize) {
        if units > 0 {
            self.units += units;
            self.earlier_buckets.push(BucketWithUnits::new(bucket, units), max_len);
        }
    }

    /// Subtracts up to `units` units from the bucket at `index` and the later ones, oldest bucket first. Returns the
    /// number of units that remain to be subtracted.
    fn subtract_units(&mut self, index: usize, units: u64) -> u64 {
        let (mut left, mut emptied) = (units, 0);
        while let Some(earlier_bucket) =
            self.earlier_buckets.get(index + emptied).filter(|_| left > 0)
        {
            let removed = left.min(earlier_bucket.units());
            left -= removed;
            self.units -= removed;
            if removed < earlier_bucket.units() {
                let rest = BucketWithUnits::new(earlier_bucket.0, earlier_bucket.units() - removed);
                self.earlier_buckets.set(index + emptied, rest);
                break;
            }
            emptied += 1;
        }
        if emptied > 0 {
            self.earlier_buckets.remove(index, emptied);
        }
        left
    }
}

impl BucketWithUnits {
    /// Creates a bucket. Keeps only the lowest bits of its number.
    fn new(bucket: u64, units: u64) -> Self {
        Self(units << BUCKET_BITS | bucket & ((1 << BUCKET_BITS) - 1))
    }

    /// Returns the number of units.
    pub(super) fn units(self) -> u64 {
        self.0 >> BUCKET_BITS
    }

    /// Returns the age of this bucket: the number of buckets from it to `newest`, the newest bucket that may have
    /// units.
    pub(super) fn age_in_buckets(&self, newest: u64) -> u64 {
        newest.wrapping_sub(self.0) & ((1 << BUCKET_BITS) - 1)
    }
}

/// Returns the largest number of heap bytes of a state with this number of earlier buckets.
pub(super) fn max_state_heap_bytes(earlier_buckets: usize) -> usize {
    allocator_block_bytes(size_of::<EarlierBuckets>())
        + max_heap_bytes::<BucketWithUnits>(earlier_buckets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_takes_24_bytes() {
        assert_eq!(size_of::<State>(), 24);
    }
}
