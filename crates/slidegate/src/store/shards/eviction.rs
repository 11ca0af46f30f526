//! Eviction of keys when a store reaches its maximum number of keys or exceeds its memory budget.
//!
//! The store evicts the key that expires first in a small sample of the shard of the new key. A key that is being denied is
//! evicted only if no shard has another key.

use crate::clock::Timestamp;
use crate::heap::HeapSize;
use crate::store::table::{CoarseTime, Evict, EvictionCandidate, PINNED, SlotIndex, Table};
use crate::sync::Ordering;

use super::{ShardTables, Shards};

/// The largest number of keys of a shard that are evicted to free memory for a new key. If the memory is then still not
/// enough, keys of the table of the new key are evicted, which frees a slot for the new key.
const MAX_EVICTIONS_PER_INSERT: usize = 16;

/// The largest number of keys that are evicted from a small shard at a time when memory is short. In a large shard, the
/// largest number is half of the buckets. After these evictions, the tables shrink.
const MIN_EVICTION_BATCH_KEYS: usize = 16;

/// The largest number of denied keys that are evicted per charge when memory is short and all keys are being denied.
/// The number is larger than one, so that the number of keys decreases even if each charge inserts a key.
const MAX_DENIED_EVICTIONS_PER_CHARGE: usize = 2;

impl<T: ShardTables> Shards<T> {
    /// Inserts a fingerprint into a table of its shard. Evicts other keys if there are too many keys, or if there is no
    /// memory for the slot. Returns the index of the slot.
    pub fn insert<S: Default + HeapSize>(
        &self,
        shard: &mut T,
        fingerprint: u64,
        table: fn(&mut T) -> &mut Table<S>,
        now: Timestamp,
    ) -> SlotIndex {
        self.sweep(shard, now);
        let (index, now) = (self.index_of(fingerprint), self.to_coarse_time(now));
        if self.keys.fetch_add(1, Ordering::Relaxed) >= self.max_keys {
            self.evict_for_new_key(shard, index, now);
        }
        self.evict_to_free_slot(shard, index, table, now);
        self[index].mark_not_denied();
        self.update(shard, |shard| table(shard).insert(fingerprint))
    }

    /// Records that the state of a key has grown by `grown` bytes. Evicts other keys if the memory budget is then exceeded.
    pub fn record_growth<S: Default + HeapSize>(
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
        let denied_until = set_denied_until(table(shard), fingerprint, PINNED);
        self.evict_until_within_budget(shard, self.index_of(fingerprint), now);
        set_denied_until(table(shard), fingerprint, denied_until);
    }

    /// Sets the bytes of the records of calls, and evicts keys if the memory budget is then exceeded.
    pub fn set_record_bytes(&self, bytes: usize, now: Timestamp) {
        self.record_bytes.store(bytes, Ordering::Relaxed);
        if self.has_memory_for(0) {
            return;
        }
        let index = self.advance_next_shard_to_evict();
        self.evict_until_within_budget(&mut *self[index].shard.lock(), index, now);
    }

    /// Adds the growth of the memory that counts against the budget, and that cannot be evicted.
    pub fn add_reserved_bytes(&self, grown: isize) {
        self.reserved_bytes.fetch_add(grown as usize, Ordering::Relaxed);
    }

    /// Returns the memory that counts against the budget, and that cannot be evicted.
    pub fn reserved_bytes(&self) -> usize {
        self.reserved_bytes.load(Ordering::Relaxed)
    }

    /// Evicts keys of a shard that are not being denied while the memory budget is exceeded, up to half of the shard.
    pub fn evict_while_over_budget(&self, shard: &mut T, now: Timestamp) {
        self.evict_batch(shard, 0, self.to_coarse_time(now));
    }

    /// Returns whether the memory budget has room for `growth` further bytes of keys. Keys may use the part of the budget
    /// that other data does not use, and always at least a quarter of it.
    fn has_memory_for(&self, growth: usize) -> bool {
        let others = self.record_bytes.load(Ordering::Relaxed) + self.reserved_bytes();
        let budget = self.max_bytes.saturating_sub(others).max(self.max_bytes / 4);
        self.bytes().saturating_add(growth) <= budget
    }

    /// Returns whether a key can be inserted into a table: the table has a free slot, or the memory budget has room for the
    /// larger table in addition to the present one.
    fn has_slot<S: Default + HeapSize>(&self, table: &Table<S>) -> bool {
        let growth = table.growth_bytes();
        growth == 0 || self.has_memory_for(growth)
    }

    /// Evicts a key, because a key is inserted and there are `max_keys` already. `shard` has the index `index`.
    fn evict_for_new_key(&self, shard: &mut T, index: usize, now: CoarseTime) {
        let evicted = self.evict_key(shard, now, |shard| remove_soonest(shard, now))
            || self.evict_from_another_shard(index, now);
        if !evicted {
            self.evict_denied_key(shard, index, now);
        }
    }

    /// Evicts keys of a shard until a table of the shard has a free slot, or the memory budget allows the table to grow:
    /// first keys that are not being denied, and denied keys of the table only if memory cannot be freed in other shards.
    fn evict_to_free_slot<S: Default + HeapSize>(
        &self,
        shard: &mut T,
        index: usize,
        table: fn(&mut T) -> &mut Table<S>,
        now: CoarseTime,
    ) {
        for _ in 0..MAX_EVICTIONS_PER_INSERT {
            if self.has_slot(table(shard)) {
                return;
            }
            if !self.evict_key(shard, now, |shard| remove_soonest(shard, now)) {
                break;
            }
        }
        let of_table = |shard: &mut T| {
            let table = table(shard);
            remove_candidate(table.eviction_candidate(now), table)
        };
        while !self.has_slot(table(shard)) && self.evict_key(shard, now, of_table) {}
        if self.has_slot(table(shard)) {
            return;
        }
        self.evict_from_other_shards(table(shard).growth_bytes(), index, now);
        let denied = |shard: &mut T| {
            let table = table(shard);
            remove_candidate(table.candidate_by_denial_end(), table)
        };
        while !self.has_slot(table(shard)) && self.evict_key(shard, now, denied) {}
    }

    /// Evicts keys until the store is within its memory budget: first keys of this shard, then keys of other shards.
    fn evict_until_within_budget(&self, shard: &mut T, index: usize, now: Timestamp) {
        let now = self.to_coarse_time(now);
        self.evict_batch(shard, 0, now);
        self.evict_from_other_shards(0, index, now);
        for _ in 0..MAX_DENIED_EVICTIONS_PER_CHARGE {
            if self.has_memory_for(0) {
                return;
            }
            self.evict_denied_key(shard, index, now);
        }
    }

    /// Evicts keys of other shards, except keys that are being denied, until the memory budget has room for `growth`
    /// further bytes. Skips locked shards, since waiting for a lock while holding another could cause a deadlock.
    fn evict_from_other_shards(&self, growth: usize, index: usize, now: CoarseTime) {
        for _ in 0..self.count() {
            if self.has_memory_for(growth) {
                return;
            }
            let other = self.advance_next_shard_to_evict();
            self.try_evict(index, other, now, |shard| self.evict_batch(shard, growth, now));
        }
    }

    /// Evicts a key of another shard, because all keys of the shard with this index are being denied. Returns whether a key
    /// was evicted. Skips locked shards, as [`evict_from_other_shards`](Self::evict_from_other_shards) does.
    fn evict_from_another_shard(&self, index: usize, now: CoarseTime) -> bool {
        let mut others = (index + 1..self.count()).chain(0..index);
        others.any(|other| {
            self.try_evict(index, other, now, |shard| {
                self.evict_key(shard, now, |shard| remove_soonest(shard, now))
            })
        })
    }

    /// Evicts keys of another shard by calling `evict`, unless the shard is locked or all of its keys are being denied.
    /// `evict` returns `false` if it found only denied keys.
    fn try_evict(
        &self,
        index: usize,
        other: usize,
        now: CoarseTime,
        evict: impl FnOnce(&mut T) -> bool,
    ) -> bool {
        let padded = &self[other];
        if other == index || padded.all_denied_until.load(Ordering::Relaxed) > now {
            return false;
        }
        let Some(mut shard) = padded.shard.try_lock() else { return false };
        let has_evicted = evict(&mut shard);
        if !has_evicted {
            padded.all_denied_until.store(all_denied_until(&mut *shard), Ordering::Relaxed);
        }
        has_evicted
    }

    /// Evicts the key whose denial ends first, from any shard. Skips locked shards, as
    /// [`evict_from_other_shards`](Self::evict_from_other_shards) does.
    fn evict_denied_key(&self, shard: &mut T, index: usize, now: CoarseTime) {
        let mut soonest = all_denied_until(shard);
        let mut soonest_other = None;
        for padded in (index + 1..self.count()).chain(0..index).map(|other| &self[other]) {
            if padded.all_denied_until.load(Ordering::Relaxed) >= soonest {
                continue;
            }
            let Some(mut other) = padded.shard.try_lock() else { continue };
            let denied_until = all_denied_until(&mut *other);
            if denied_until < soonest {
                soonest = denied_until;
                soonest_other = Some((padded, other));
            }
        }
        let evict = |shard: &mut T| {
            let candidates =
                shard.tables().filter_map(|table| Some((table.candidate_by_denial_end()?, table)));
            remove_first(candidates)
        };
        let Some((padded, mut other)) = soonest_other else {
            self.evict_key(shard, now, evict);
            return;
        };
        self.evict_key(&mut *other, now, evict);
        padded.all_denied_until.store(all_denied_until(&mut *other), Ordering::Relaxed);
    }

    /// Evicts some keys of a shard until there is room for `growth` further bytes. Returns `false` if all remaining keys of
    /// the shard are being denied.
    fn evict_batch(&self, shard: &mut T, growth: usize, now: CoarseTime) -> bool {
        let buckets: usize = shard.tables().map(|table| table.bucket_count()).sum();
        (0..MIN_EVICTION_BATCH_KEYS.max(buckets / 2)).all(|_| {
            self.has_memory_for(growth)
                || self.evict_key(shard, now, |shard| remove_soonest(shard, now))
        })
    }

    /// Evicts a key by calling `evict`, which returns the time at which the key expires. Shrinks tables that have few keys.
    /// Returns whether a key was evicted.
    fn evict_key(
        &self,
        shard: &mut T,
        now: CoarseTime,
        evict: impl FnOnce(&mut T) -> Option<CoarseTime>,
    ) -> bool {
        let expires = self.update(shard, |shard| {
            let expires = evict(shard)?;
            shard.tables().for_each(|table| table.trim());
            Some(expires)
        });
        let Some(expires) = expires else { return false };
        self.keys.fetch_sub(1, Ordering::Relaxed);
        self.evicted.fetch_add(u64::from(expires >= now), Ordering::Relaxed);
        true
    }

    fn advance_next_shard_to_evict(&self) -> usize {
        self.next_shard_to_evict.fetch_add(1, Ordering::Relaxed) % self.count()
    }
}

/// Removes the key that expires first in a small sample of a shard, and returns the time at which the key expires. A key
/// that is being denied is not removed.
fn remove_soonest(shard: &mut impl ShardTables, now: CoarseTime) -> Option<CoarseTime> {
    remove_first(shard.tables().filter_map(|table| Some((table.eviction_candidate(now)?, table))))
}

/// Removes the candidate that expires first. Each candidate is paired with its table. Returns the time at which this
/// candidate expires; `None` if there are no candidates.
fn remove_first<'t>(
    candidates: impl Iterator<Item = (EvictionCandidate, &'t mut dyn Evict)>,
) -> Option<CoarseTime> {
    let (candidate, table) = candidates.min_by_key(|(candidate, _)| candidate.expires)?;
    remove_candidate(Some(candidate), table)
}

/// Removes a candidate from its table, and returns the time at which the candidate expires.
fn remove_candidate(
    candidate: Option<EvictionCandidate>,
    table: &mut dyn Evict,
) -> Option<CoarseTime> {
    let candidate = candidate?;
    table.remove(candidate.slot);
    Some(candidate.expires)
}

/// Returns the time until which all keys of a shard are known to be denied.
fn all_denied_until(shard: &mut impl ShardTables) -> CoarseTime {
    let candidates = shard.tables().filter_map(|table| table.candidate_by_denial_end());
    candidates.map(|candidate| candidate.expires).min().unwrap_or(CoarseTime::MAX)
}

/// Replaces the time until which a key is denied. Returns the previous time.
fn set_denied_until<S: Default + HeapSize>(
    table: &mut Table<S>,
    fingerprint: u64,
    denied_until: CoarseTime,
) -> CoarseTime {
    let slot = table.find_mut(fingerprint);
    slot.map_or(0, |slot| std::mem::replace(&mut slot.denied_until, denied_until))
}
