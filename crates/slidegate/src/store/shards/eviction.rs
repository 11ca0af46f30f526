//! Eviction of keys when a store reaches its maximum number of keys or exceeds its memory budget.
//!
//! The key to evict is chosen from a sample: a key of a group with at least its share of the keys, of these the least
//! [depleted](crate::store::table::Depletion), and of these the one that expires first.

use crate::clock::Timestamp;
use crate::key::KeyGroup;
use crate::layout::HeapSize;
use crate::store::table::{
    CoarseTime, Depletion, EvictableTable, EvictionCandidate, PINNED_DEPLETION, SlotIndex, Table,
};
use crate::sync::Ordering;

use super::{ShardTables, Shards};

/// The largest number of keys of a shard that are evicted to free memory for a new key. If the memory is then still not
/// enough, keys of the table of the new key are evicted, which frees a slot for the new key.
const MAX_EVICTIONS_PER_INSERT: usize = 16;

/// The largest number of keys that are evicted from a small shard at a time when memory is short. In a large shard, the
/// largest number is half of the buckets. After these evictions, the tables shrink.
const MIN_EVICTION_BATCH_KEYS: usize = 16;

/// The largest number of exhausted keys that are evicted per charge when memory is short and all keys are exhausted.
/// The number is larger than one, so that the number of keys decreases even if each charge inserts a key.
const MAX_EXHAUSTED_EVICTIONS_PER_CHARGE: usize = 2;

/// The largest number of buckets that a charge examines, in addition to small samples, to find expendable keys: keys
/// that are not exhausted, and whose group has at least its share of the keys.
const MAX_FURTHER_BUCKETS: usize = 1_024;

/// A search for keys to evict, for one charge.
struct EvictionSearch {
    now: CoarseTime,
    /// The number of buckets that may be examined in addition to small samples.
    further_buckets: usize,
}

/// The key to evict from a shard, with the index of its table.
type ShardCandidate = (EvictionCandidate, usize);

impl<T: ShardTables> Shards<T> {
    /// Inserts a fingerprint into a table of its shard. Evicts other keys if there are too many keys, or if there is no
    /// memory for the slot. Returns the index of the slot.
    pub fn insert<S: Default + HeapSize>(
        &self,
        shard: &mut T,
        (fingerprint, group): (u64, KeyGroup),
        table: fn(&mut T) -> &mut Table<S>,
        now: Timestamp,
    ) -> SlotIndex {
        self.sweep(shard, now);
        let index = self.shard_index_of(fingerprint);
        let search = &mut self.new_search(now);
        if self.keys.count_new_key(group) >= self.max_keys {
            self.evict_one_key(shard, index, search);
        }
        self.evict_to_free_slot(shard, index, table, search);
        self.update(shard, |shard| table(shard).insert(fingerprint, group))
    }

    /// Records that the state of a key has grown by `grown` bytes. Evicts other keys if the memory budget is then
    /// exceeded.
    pub fn add_state_growth<S: Default + HeapSize>(
        &self,
        shard: &mut T,
        fingerprint: u64,
        table: fn(&mut T) -> &mut Table<S>,
        grown: isize,
        now: Timestamp,
    ) {
        self.add_bytes(grown);
        if self.has_memory_for(0) {
            return;
        }
        // The key itself is not evicted: if growing keys were evicted, they would never be denied.
        let depletion = set_depletion(table(shard), fingerprint, PINNED_DEPLETION);
        self.evict_until_within_budget(shard, self.shard_index_of(fingerprint), now);
        set_depletion(table(shard), fingerprint, depletion);
    }

    /// Sets the bytes of the records of calls, and evicts keys if the memory budget is then exceeded.
    pub fn update_call_record_bytes(&self, bytes: usize, now: Timestamp) {
        self.record_bytes.store(bytes, Ordering::Relaxed);
        if self.has_memory_for(0) {
            return;
        }
        let index = self.advance_next_shard_to_evict();
        self.evict_until_within_budget(&mut *self[index].shard.lock(), index, now);
    }

    /// Adds the growth of the memory that counts against the budget, and that cannot be evicted.
    pub fn add_unevictable_bytes(&self, grown: isize) {
        self.unevictable_bytes.fetch_add(grown as usize, Ordering::Relaxed);
    }

    /// Returns the memory that counts against the budget, and that cannot be evicted.
    pub fn unevictable_bytes(&self) -> usize {
        self.unevictable_bytes.load(Ordering::Relaxed)
    }

    /// Evicts keys of a shard that are not exhausted while the memory budget is exceeded, up to half of the shard.
    pub fn evict_while_over_budget(&self, shard: &mut T, now: Timestamp) {
        self.evict_batch(shard, 0, &mut self.new_search(now));
    }

    /// Evicts up to `count` keys of a shard, the most expendable ones first, although the memory budget has room for
    /// them.
    pub fn evict_keys(&self, shard: &mut T, count: usize, now: Timestamp) {
        let search = &mut self.new_search(now);
        for _ in 0..count {
            let Some(first) = self.find_eviction_candidate(shard, search) else { return };
            self.evict(shard, first, search);
        }
    }

    fn new_search(&self, now: Timestamp) -> EvictionSearch {
        EvictionSearch { now: self.to_coarse_time(now), further_buckets: MAX_FURTHER_BUCKETS }
    }

    /// Returns whether the memory budget allows `growth` further bytes of keys. Keys may use the part of the budget
    /// that other data does not use, and always at least a quarter of it.
    fn has_memory_for(&self, growth: usize) -> bool {
        let others = self.record_bytes.load(Ordering::Relaxed) + self.unevictable_bytes();
        let budget = self.max_bytes.saturating_sub(others).max(self.max_bytes / 4);
        self.bytes().saturating_add(growth) <= budget
    }

    /// Returns whether a key can be inserted into a table: the table has a free slot, or the memory budget allows the
    /// larger table in addition to the present one.
    fn can_insert_key<S: Default + HeapSize>(&self, table: &Table<S>) -> bool {
        let growth = table.growth_bytes();
        growth == 0 || self.has_memory_for(growth)
    }

    /// Evicts one key, if possible an expendable key of `shard`, whose index is `index`. Otherwise, other shards are
    /// examined too, except locked ones: waiting for a lock while holding another could cause a deadlock.
    fn evict_one_key(&self, shard: &mut T, index: usize, search: &mut EvictionSearch) {
        let mut first = self.find_eviction_candidate(shard, search);
        let mut first_other = None;
        for other in (index + 1..self.shard_count()).chain(0..index) {
            let is_enough = |(first, _): ShardCandidate| {
                search.further_buckets == 0 || first.rank.is_expendable()
            };
            if first.is_some_and(is_enough) {
                break;
            }
            let Some(mut other) = self[other].shard.try_lock() else { continue };
            let candidate = self.find_eviction_candidate(&mut other, search);
            let is_lower = |(candidate, _): ShardCandidate| {
                first.is_none_or(|(first, _)| candidate.rank < first.rank)
            };
            if candidate.is_some_and(is_lower) {
                (first, first_other) = (candidate, Some(other));
            }
        }
        let Some(first) = first else { return };
        match first_other {
            Some(mut other) => self.evict(&mut *other, first, search),
            None => self.evict(shard, first, search),
        }
    }

    /// Evicts keys of a shard until a table of the shard has a free slot, or the memory budget allows the table to
    /// grow: first keys that are not exhausted, and exhausted keys of the table only if memory cannot be freed in other
    /// shards.
    fn evict_to_free_slot<S: Default + HeapSize>(
        &self,
        shard: &mut T,
        index: usize,
        table: fn(&mut T) -> &mut Table<S>,
        search: &mut EvictionSearch,
    ) {
        for _ in 0..MAX_EVICTIONS_PER_INSERT {
            if self.can_insert_key(table(shard)) {
                return;
            }
            if !self.evict_unexhausted(shard, search) {
                break;
            }
        }
        while !self.can_insert_key(table(shard))
            && self.evict_from_table(shard, table, false, search)
        {}
        if !self.can_insert_key(table(shard)) {
            self.evict_from_other_shards(table(shard).growth_bytes(), index, search);
        }
        while !self.can_insert_key(table(shard))
            && self.evict_from_table(shard, table, true, search)
        {}
    }

    /// Evicts keys until the store is within its memory budget: first keys of this shard, then keys of other shards.
    fn evict_until_within_budget(&self, shard: &mut T, index: usize, now: Timestamp) {
        let search = &mut self.new_search(now);
        self.evict_batch(shard, 0, search);
        self.evict_from_other_shards(0, index, search);
        for _ in 0..MAX_EXHAUSTED_EVICTIONS_PER_CHARGE {
            if self.has_memory_for(0) {
                return;
            }
            self.evict_one_key(shard, index, search);
        }
    }

    /// Evicts keys of other shards, except exhausted keys, until the memory budget allows `growth` further bytes. Skips
    /// locked shards, as [`evict_one_key`](Self::evict_one_key) does.
    fn evict_from_other_shards(&self, growth: usize, index: usize, search: &mut EvictionSearch) {
        for _ in 0..self.shard_count() {
            if self.has_memory_for(growth) {
                return;
            }
            let other = self.advance_next_shard_to_evict();
            if other != index
                && let Some(mut shard) = self[other].shard.try_lock()
            {
                self.evict_batch(&mut shard, growth, search);
            }
        }
    }

    /// Evicts some keys of a shard that are not exhausted, until the memory budget allows `growth` further bytes.
    fn evict_batch(&self, shard: &mut T, growth: usize, search: &mut EvictionSearch) {
        let buckets: usize = shard.tables().map(|table| table.bucket_count()).sum();
        for _ in 0..MIN_EVICTION_BATCH_KEYS.max(buckets / 2) {
            if self.has_memory_for(growth) || !self.evict_unexhausted(shard, search) {
                return;
            }
        }
    }

    /// Evicts a key of a shard that is not exhausted. Returns `false` if none was found.
    fn evict_unexhausted(&self, shard: &mut T, search: &mut EvictionSearch) -> bool {
        let first = self.find_eviction_candidate(shard, search);
        let unexhausted = first.filter(|(first, _)| !first.rank.is_exhausted());
        unexhausted.inspect(|first| self.evict(shard, *first, search)).is_some()
    }

    /// Evicts a key of one table of a shard, an exhausted key only if `is_any` is set. Returns `false` if none was
    /// found.
    fn evict_from_table<S: Default + HeapSize>(
        &self,
        shard: &mut T,
        table: fn(&mut T) -> &mut Table<S>,
        is_any: bool,
        search: &mut EvictionSearch,
    ) -> bool {
        let EvictionSearch { now, further_buckets } = search;
        let first = table(shard).eviction_candidate(*now, &self.keys, further_buckets);
        let Some(first) = first.filter(|first| is_any || !first.rank.is_exhausted()) else {
            return false;
        };
        self.evict_key_with(shard, search, |shard| Some(table(shard).evict(first, &self.keys)));
        true
    }

    /// Returns the key to evict from a shard; `None` if the shard has no key that may be evicted.
    fn find_eviction_candidate(
        &self,
        shard: &mut T,
        search: &mut EvictionSearch,
    ) -> Option<ShardCandidate> {
        let EvictionSearch { now, further_buckets } = search;
        let candidates = shard.tables().enumerate().filter_map(|(index, table)| {
            Some((table.eviction_candidate(*now, &self.keys, further_buckets)?, index))
        });
        candidates.min_by_key(|(candidate, _)| candidate.rank)
    }

    /// Evicts a candidate of a shard.
    fn evict(&self, shard: &mut T, (candidate, table): ShardCandidate, search: &EvictionSearch) {
        self.evict_key_with(shard, search, |shard| {
            shard.tables().nth(table).map(|table| table.evict(candidate, &self.keys))
        });
    }

    /// Evicts a key of a shard by calling `evict`, which returns the time at which the key expires. Shrinks tables that
    /// have few keys.
    fn evict_key_with(
        &self,
        shard: &mut T,
        search: &EvictionSearch,
        evict: impl FnOnce(&mut T) -> Option<CoarseTime>,
    ) {
        let expires = self.update(shard, |shard| {
            let expires = evict(shard);
            shard.tables().for_each(|table| table.shrink_if_sparse());
            expires
        });
        let is_live = expires.is_some_and(|expires| expires >= search.now);
        self.evicted.fetch_add(u64::from(is_live), Ordering::Relaxed);
    }

    fn advance_next_shard_to_evict(&self) -> usize {
        self.next_shard_to_evict.fetch_add(1, Ordering::Relaxed) % self.shard_count()
    }
}

/// Replaces the depletion of a key. Returns the previous one.
fn set_depletion<S: Default + HeapSize>(
    table: &mut Table<S>,
    fingerprint: u64,
    depletion: Depletion,
) -> Depletion {
    let slot = table.find_mut(fingerprint);
    slot.map_or(0, |slot| std::mem::replace(&mut slot.depletion, depletion))
}
