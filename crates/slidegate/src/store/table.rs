//! A hash table of states by fingerprint, whose keys can be swept and evicted. Stores in memory consist of many tables,
//! each behind its own lock.
//!
//! The table is a [`HashTable`] with the fingerprint as hash, so it doubles when it is full. A sweep and a search for
//! an eviction candidate visit the next buckets of the table, and continue at its start after its end. Keys change
//! buckets when a table changes its size; a key that a sweep misses is visited in the next round.

#[cfg(test)]
mod tests;

use std::fmt;

use hashbrown::HashTable;

use crate::key::KeyGroup;
use crate::layout::{CompactU64, HeapSize, allocator_block_bytes};
use crate::outcome::Outcome;
use crate::store::key_counts::KeyCounts;

/// A time in steps of 2^16 microseconds since the start of the store, precise enough for the expiry of keys.
pub type CoarseTime = u32;

/// The position of a slot in its table. It is valid until a key is inserted into the table or removed from it.
pub type SlotIndex = usize;

/// The extent to which the units of a key are used up: 0 while more than half of them remain, 1 while more than a
/// quarter remains, 2 while more than an eighth remains, and then [`EXHAUSTED_DEPLETION`].
pub type Depletion = u8;

/// The depletion of a key that is denied, or nearly so.
pub const EXHAUSTED_DEPLETION: Depletion = 3;

/// The value of [`Slot::depletion`] that marks a key as not evictable.
pub const PINNED_DEPLETION: Depletion = Depletion::MAX;

/// The number of buckets that one sweep visits.
const BUCKETS_PER_SWEEP: usize = 8;

/// The number of keys that are examined to find an eviction candidate, and more if none of them is
/// [expendable](EvictionRank::is_expendable).
const KEYS_PER_EVICTION_SAMPLE: usize = 16;

/// The number of buckets of the smallest table.
const MIN_BUCKETS: usize = 4;

/// The bytes that a table takes in addition to its buckets: tags after the last bucket, which repeat the first ones.
const TABLE_OVERHEAD_BYTES: usize = 16;

/// The state of one key, with the data that determine its eviction.
#[derive(Debug, Default)]
pub struct Slot<S> {
    fingerprint: CompactU64,
    /// The time from which the state is equivalent to the state of a new key.
    pub expires: CoarseTime,
    group: KeyGroup,
    /// The depletion of the key at its last change.
    pub depletion: Depletion,
    /// The state of the key.
    pub state: S,
}

/// Returns the number of bytes that a bucket takes in a table with states of the type `S`, with its tag.
pub const fn bucket_bytes<S>() -> usize {
    size_of::<Slot<S>>() + 1
}

/// Returns the depletion of a key with a limit of this capacity. `outcome` is the outcome of the last change of the
/// key.
#[inline]
pub fn depletion(outcome: &Outcome, capacity: u64) -> Depletion {
    (1..=EXHAUSTED_DEPLETION)
        .map(|halvings| u8::from(outcome.remaining() <= capacity >> halvings))
        .sum()
}

/// A key that may be evicted to make capacity for another key.
#[derive(Clone, Copy, Debug)]
pub struct EvictionCandidate {
    /// The rank of the key.
    pub rank: EvictionRank,
    /// The position of the key's slot in the table.
    slot: SlotIndex,
}

/// The loss that the eviction of a key would cause. The key with the lowest rank is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EvictionRank {
    /// Whether the group of the key has less than its share of the keys. `false` for an expired key.
    is_within_share: bool,
    /// The depletion of the key, 0 if the key has expired.
    depletion: Depletion,
    /// The time at which the key expires. For an exhausted key, the binary logarithm of the time until then: keys that
    /// expire at about the same time have the same rank, so that a flood of exhausted keys does not evict the oldest
    /// ones first.
    expires: u32,
}

impl EvictionRank {
    fn new<S>(slot: &Slot<S>, now: CoarseTime, keys: &KeyCounts) -> Self {
        let Some(remaining) = slot.expires.checked_sub(now) else {
            return Self { is_within_share: false, depletion: 0, expires: 0 };
        };
        Self {
            is_within_share: !keys.has_full_share(slot.group),
            depletion: slot.depletion,
            expires: if slot.depletion == EXHAUSTED_DEPLETION {
                (remaining + 1).ilog2()
            } else {
                slot.expires
            },
        }
    }

    /// Returns whether the key is exhausted, so that its eviction would set a client free.
    pub fn is_exhausted(&self) -> bool {
        self.depletion == EXHAUSTED_DEPLETION
    }

    /// Returns whether the key is not exhausted, and its group has its share of the keys.
    pub fn is_expendable(&self) -> bool {
        !self.is_exhausted() && !self.is_within_share
    }
}

/// A hash table of states by fingerprint.
pub struct Table<S> {
    slots: HashTable<Slot<S>>,
    /// The next bucket to sweep or to examine for an eviction.
    next_bucket: usize,
    /// The bytes of the table and of the heap allocations of its states.
    bytes: usize,
}

impl<S> fmt::Debug for Table<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("len", &self.slots.len()).finish_non_exhaustive()
    }
}

impl<S> Default for Table<S> {
    fn default() -> Self {
        Self { slots: HashTable::new(), next_bucket: 0, bytes: 0 }
    }
}

impl<S: Default + HeapSize> Table<S> {
    /// Returns the number of keys.
    pub fn key_count(&self) -> usize {
        self.slots.len()
    }

    /// Returns the position of the slot that has a fingerprint; `None` if the table does not contain the fingerprint.
    #[inline]
    pub fn find(&self, fingerprint: u64) -> Option<SlotIndex> {
        self.slots.find_bucket_index(fingerprint, |slot| slot.fingerprint.get() == fingerprint)
    }

    /// Returns the slot that has a fingerprint. The caller must [record](Self::add_heap_change) changes of the
    /// state's heap allocations.
    #[inline]
    pub fn find_mut(&mut self, fingerprint: u64) -> Option<&mut Slot<S>> {
        self.slots.find_mut(fingerprint, |slot| slot.fingerprint.get() == fingerprint)
    }

    /// Returns the slot at a position that [`find`](Self::find) or [`insert`](Self::insert) has returned.
    #[inline]
    pub fn slot(&self, index: SlotIndex) -> &Slot<S> {
        match self.slots.get_bucket(index) {
            Some(slot) => slot,
            None => unreachable!("a position is used only while the table has the same keys"),
        }
    }

    /// Returns the slot at a position. The caller must not change the heap allocations of its state;
    /// [`update`](Self::update) does that.
    #[inline]
    pub fn slot_mut(&mut self, index: SlotIndex) -> &mut Slot<S> {
        match self.slots.get_bucket_mut(index) {
            Some(slot) => slot,
            None => unreachable!("a position is used only while the table has the same keys"),
        }
    }

    /// Updates the state in a slot. Returns the result of `update`, and the bytes by which the heap allocations of the
    /// state have grown.
    #[inline]
    pub fn update<R>(
        &mut self,
        index: SlotIndex,
        update: impl FnOnce(&mut Slot<S>) -> R,
    ) -> (R, isize) {
        let slot = self.slot_mut(index);
        let before = slot.state.heap_bytes();
        let result = update(slot);
        let after = slot.state.heap_bytes();
        (result, self.add_heap_change(before, after))
    }

    /// Records that an allocation has changed from `before` to `after` bytes. Returns the growth in bytes.
    #[inline]
    pub fn add_heap_change(&mut self, before: usize, after: usize) -> isize {
        self.bytes = self.bytes + after - before;
        after as isize - before as isize
    }

    /// Inserts a fingerprint that is not in the table, with a default state. Returns the position of its slot. The
    /// caller must have counted the key in the `KeyCounts` of the store.
    pub fn insert(&mut self, fingerprint: u64, group: KeyGroup) -> SlotIndex {
        let slot = Slot { fingerprint: fingerprint.into(), group, ..Slot::default() };
        self.reallocate(|slots| {
            slots.insert_unique(fingerprint, slot, fingerprint_of_slot).bucket_index()
        })
    }

    /// Changes the slots by calling `change`, and counts the bytes by which their allocation grows.
    fn reallocate<R>(&mut self, change: impl FnOnce(&mut HashTable<Slot<S>>) -> R) -> R {
        let before = allocator_block_bytes(self.slots.allocation_size());
        let result = change(&mut self.slots);
        self.add_heap_change(before, allocator_block_bytes(self.slots.allocation_size()));
        result
    }

    /// Returns the number of bytes that the table allocates if a fingerprint is inserted. The former allocation is
    /// freed only afterwards.
    pub fn growth_bytes(&self) -> usize {
        let (len, full) = (self.slots.len(), self.bucket_count() / 8 * 7);
        // hashbrown reorders a table in place, without an allocation, if many of its buckets only mark where keys were
        // removed.
        if len < self.slots.capacity() || (len > 0 && len < full / 2) {
            return 0;
        }
        let buckets = (self.bucket_count() * 2).max(MIN_BUCKETS);
        allocator_block_bytes(buckets * bucket_bytes::<S>() + TABLE_OVERHEAD_BYTES)
    }

    /// Removes the key in the slot at this position.
    pub fn remove(&mut self, slot: SlotIndex, keys: &KeyCounts) {
        if let Ok(entry) = self.slots.get_bucket_entry(slot) {
            let (slot, _) = entry.remove();
            self.bytes -= slot.state.heap_bytes();
            keys.count_removed_key(slot.group);
        }
    }

    /// Returns the bucket at which the next sweep or search for a candidate continues, and advances it.
    fn advance_next_bucket(&mut self) -> SlotIndex {
        let bucket = if self.next_bucket < self.bucket_count() { self.next_bucket } else { 0 };
        self.next_bucket = bucket + 1;
        bucket
    }

    /// Moves the keys to a smaller allocation, with space for at least `capacity` keys, if there is one.
    fn shrink_to(&mut self, capacity: usize) {
        self.reallocate(|slots| slots.shrink_to(capacity, fingerprint_of_slot));
    }
}

impl<S> Table<S> {
    /// Iterates over all fingerprints and slots in arbitrary order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut Slot<S>)> {
        self.slots.iter_mut().map(|slot| (slot.fingerprint.get(), slot))
    }
}

fn fingerprint_of_slot<S>(slot: &Slot<S>) -> u64 {
    slot.fingerprint.get()
}

/// A table from which keys can be evicted. This trait has the operations that do not depend on the type of the states.
pub trait EvictableTable {
    /// Returns the number of buckets of the table, with and without keys.
    fn bucket_count(&self) -> usize;

    /// Returns the number of bytes that the table and the heap allocations of its states take.
    fn bytes(&self) -> usize;

    /// Removes the expired keys in the next buckets. Shrinks the table if it has few keys.
    fn sweep(&mut self, now: CoarseTime, keys: &KeyCounts);

    /// Removes all expired keys.
    fn sweep_all(&mut self, now: CoarseTime, keys: &KeyCounts);

    /// Returns the key with the lowest rank in a sample, the keys of the next buckets. If no key of the sample is
    /// expendable, further buckets are examined, at most `further_buckets`, which is reduced by their number. Returns
    /// `None` if the table has no key that may be evicted.
    fn eviction_candidate(
        &mut self,
        now: CoarseTime,
        keys: &KeyCounts,
        further_buckets: &mut usize,
    ) -> Option<EvictionCandidate>;

    /// Removes the key of a candidate that was just found, and returns the time at which the key expires.
    fn evict(&mut self, candidate: EvictionCandidate, keys: &KeyCounts) -> CoarseTime;

    /// Shrinks the table if its keys fit into half of its buckets with space for some more.
    fn shrink_if_sparse(&mut self);
}

impl<S: Default + HeapSize> EvictableTable for Table<S> {
    fn bucket_count(&self) -> usize {
        // hashbrown reports one bucket for a table without an allocation, which has no buckets.
        if self.slots.capacity() == 0 { 0 } else { self.slots.num_buckets() }
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn sweep(&mut self, now: CoarseTime, keys: &KeyCounts) {
        for _ in 0..BUCKETS_PER_SWEEP.min(self.bucket_count()) {
            let bucket = self.advance_next_bucket();
            if self.slots.get_bucket(bucket).is_some_and(|slot| slot.expires < now) {
                self.remove(bucket, keys);
            }
        }
        let len = self.slots.len();
        if len * 4 < self.bucket_count() {
            self.shrink_to(len + len / 2);
        }
    }

    fn sweep_all(&mut self, now: CoarseTime, keys: &KeyCounts) {
        let bytes = &mut self.bytes;
        self.slots.retain(|slot| {
            let is_expired = slot.expires < now;
            if is_expired {
                *bytes -= slot.state.heap_bytes();
                keys.count_removed_key(slot.group);
            }
            !is_expired
        });
    }

    fn eviction_candidate(
        &mut self,
        now: CoarseTime,
        keys: &KeyCounts,
        further_buckets: &mut usize,
    ) -> Option<EvictionCandidate> {
        let mut first: Option<EvictionCandidate> = None;
        let mut examined_keys = 0;
        for _ in 0..self.bucket_count() {
            if examined_keys >= KEYS_PER_EVICTION_SAMPLE {
                if *further_buckets == 0 || first.is_some_and(|first| first.rank.is_expendable()) {
                    break;
                }
                *further_buckets -= 1;
            }
            let bucket = self.advance_next_bucket();
            let slot =
                self.slots.get_bucket(bucket).filter(|slot| slot.depletion != PINNED_DEPLETION);
            let Some(slot) = slot else { continue };
            let rank = EvictionRank::new(slot, now, keys);
            if first.is_none_or(|first| rank < first.rank) {
                first = Some(EvictionCandidate { rank, slot: bucket });
            }
            examined_keys += 1;
        }
        first
    }

    fn evict(&mut self, candidate: EvictionCandidate, keys: &KeyCounts) -> CoarseTime {
        let expires = self.slot(candidate.slot).expires;
        self.remove(candidate.slot, keys);
        expires
    }

    fn shrink_if_sparse(&mut self) {
        // The table keeps space for a thirteenth more keys, so that it does not grow at the next insertions.
        let len = self.slots.len();
        self.shrink_to(len + len / 13);
    }
}
