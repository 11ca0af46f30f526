//! Eviction of keys when the store reaches `max_keys` or exceeds its memory budget.

use crate::clock::{Clock, Timestamp};
use crate::sync::Ordering;

use super::shard::{HasStateTable, Shard};
use super::{HitLocation, MemoryStore};
use crate::store::table::{CoarseTime, PINNED, SlotIndex};

/// The largest number of keys of a shard that are evicted to free memory for a new key. If the memory is then still not
/// enough, one more key is evicted, from the table of the new key, which frees a slot for the new key.
const MAX_EVICTIONS_PER_INSERT: usize = 16;

/// The largest number of keys that are evicted from a small shard at a time when memory is short. In a large shard, the
/// largest number is half of the buckets. After these evictions, the tables shrink.
const MIN_EVICTION_BATCH_KEYS: usize = 16;

/// The largest number of denied keys that are evicted per charge when memory is short and all keys are being denied.
/// The number is larger than one, so that the number of keys decreases even if each charge inserts a key.
const MAX_DENIED_EVICTIONS_PER_CHARGE: usize = 2;

impl<C: Clock> MemoryStore<C> {
    /// Inserts a key, and evicts other keys if there are too many keys or there is no memory for the slot. Returns the
    /// index of the slot.
    #[cold]
    pub(super) fn insert_with_eviction<K: HasStateTable>(
        &self,
        shard: &mut Shard,
        counter: K,
        location: HitLocation,
        now: Timestamp,
    ) -> SlotIndex {
        let now = self.to_coarse_time(now);
        self.add_key_and_evict_if_full(shard, location.shard, now);
        self.evict_to_free_slot(shard, counter, location, now);
        self.update_shard_and_memory_use(shard, |shard| shard.insert(counter, location.fingerprint))
    }

    /// Adds one to the number of keys, and evicts another key if there are more than `max_keys`. `shard_index` is the
    /// index of `shard`.
    fn add_key_and_evict_if_full(&self, shard: &mut Shard, shard_index: usize, now: CoarseTime) {
        let swept = self.update_shard_and_memory_use(shard, |shard| shard.sweep(now));
        self.keys.fetch_sub(swept, Ordering::Relaxed);
        if self.keys.fetch_add(1, Ordering::Relaxed) < self.max_keys {
            return;
        }
        let expires = self.update_shard_and_memory_use(shard, |shard| shard.evict(now));
        let expires = expires.or_else(|| self.evict_from_other_shards(shard_index, now));
        if let Some(expires) = expires.or_else(|| self.evict_denied_key(shard, shard_index)) {
            self.count_evicted_key(expires, now);
        }
    }

    /// Evicts keys of a shard until the table of `counter` has a free slot, or the memory budget allows the table to
    /// grow: first keys that are not being denied, and denied keys of the table only if there is no other.
    fn evict_to_free_slot<K: HasStateTable>(
        &self,
        shard: &mut Shard,
        counter: K,
        location: HitLocation,
        now: CoarseTime,
    ) {
        for _ in 0..MAX_EVICTIONS_PER_INSERT {
            if self.has_memory_for(shard.growth_bytes(counter))
                || !self.evict_one_key(shard, now, |shard| shard.evict(now))
            {
                break;
            }
        }
        let growth = shard.growth_bytes(counter);
        if self.has_memory_for(growth)
            || self.evict_one_key(shard, now, |shard| shard.evict_from_table(counter, now))
        {
            return;
        }
        self.evict_from_other_shards_for(growth, location.shard, now);
        while !self.has_memory_for(shard.growth_bytes(counter)) {
            let evict = |shard: &mut Shard| shard.evict_denied_key_from_table(counter);
            if !self.evict_one_key(shard, now, evict) {
                return;
            }
        }
    }

    /// Records that the state of a charged key has grown by `grown` bytes. Evicts other keys if the store then exceeds
    /// its memory budget.
    #[cold]
    pub(super) fn record_state_growth<K: HasStateTable>(
        &self,
        shard: &mut Shard,
        counter: K,
        location: HitLocation,
        now: Timestamp,
        grown: isize,
    ) {
        self.add_to_memory_use(grown);
        if self.is_within_memory_budget() {
            return;
        }
        // The charged key is not evicted: if growing keys were evicted, they would never be denied.
        let denied_until = shard.set_denied_until(counter, location.fingerprint, PINNED);
        self.evict_until_within_budget(shard, location.shard, self.to_coarse_time(now));
        shard.set_denied_until(counter, location.fingerprint, denied_until);
    }

    /// Adds `grown` to the memory use of the store: the bytes by which a locked shard has grown.
    #[inline]
    pub(super) fn add_to_memory_use(&self, grown: isize) {
        if grown != 0 {
            self.memory.fetch_add(grown as usize, Ordering::Relaxed);
        }
    }

    /// Updates a shard by calling `update`. Adds the growth of the shard, in bytes, to the memory use of the store.
    pub(super) fn update_shard_and_memory_use<R>(
        &self,
        shard: &mut Shard,
        update: impl FnOnce(&mut Shard) -> R,
    ) -> R {
        let before = shard.memory_bytes();
        let result = update(shard);
        self.add_to_memory_use(shard.memory_bytes().wrapping_sub(before) as isize);
        result
    }

    /// Returns the bytes that count against the memory budget: the bytes of keys and of the records of calls.
    fn used_memory(&self) -> usize {
        self.memory_bytes() + self.calls.memory_bytes()
    }

    /// Returns whether the memory budget has room for `growth` further bytes.
    fn has_memory_for(&self, growth: usize) -> bool {
        growth == 0 || self.used_memory() + growth <= self.max_memory
    }

    fn is_within_memory_budget(&self) -> bool {
        self.used_memory() <= self.max_memory
    }

    /// Evicts keys if a new record of a call has exceeded the memory budget.
    pub(super) fn evict_keys_for_records(&self) {
        if self.is_within_memory_budget() {
            return;
        }
        let next = self.next_shard_to_evict.fetch_add(1, Ordering::Relaxed);
        let shard_index = next % self.shards.len();
        let shard = &mut *self.shards[shard_index].shard.lock();
        self.evict_until_within_budget(shard, shard_index, self.to_coarse_time(self.clock.now()));
    }

    /// Evicts keys until the store is within its memory budget: first keys of this shard, then keys of other shards.
    /// Skips locked shards, as [`evict_from_other_shards`](Self::evict_from_other_shards) does.
    fn evict_until_within_budget(&self, shard: &mut Shard, shard_index: usize, now: CoarseTime) {
        self.evict_batch_of_keys(shard, 0, now);
        self.evict_from_other_shards_for(0, shard_index, now);
        for _ in 0..MAX_DENIED_EVICTIONS_PER_CHARGE {
            if self.is_within_memory_budget() {
                return;
            }
            if let Some(expires) = self.evict_denied_key(shard, shard_index) {
                self.count_evicted_key(expires, now);
            }
        }
    }

    /// Evicts keys of other shards, except keys that are being denied, until the memory budget has room for `growth`
    /// further bytes. Skips locked shards, as [`evict_from_other_shards`](Self::evict_from_other_shards) does.
    fn evict_from_other_shards_for(&self, growth: usize, shard_index: usize, now: CoarseTime) {
        for _ in 0..self.shards.len() {
            if self.used_memory() + growth <= self.max_memory {
                return;
            }
            let next = self.next_shard_to_evict.fetch_add(1, Ordering::Relaxed);
            let other = next % self.shards.len();
            let padded = &self.shards[other];
            if other == shard_index || padded.all_denied_until.load(Ordering::Relaxed) > now {
                continue;
            }
            let Some(mut shard) = padded.shard.try_lock() else {
                continue;
            };
            if !self.evict_batch_of_keys(&mut shard, growth, now) {
                padded.all_denied_until.store(shard.all_denied_until(), Ordering::Relaxed);
            }
        }
    }

    /// Evicts some keys of a shard until there is room for `growth` further bytes. Returns `false` if all remaining keys of
    /// the shard are being denied.
    fn evict_batch_of_keys(&self, shard: &mut Shard, growth: usize, now: CoarseTime) -> bool {
        let max_evictions = MIN_EVICTION_BATCH_KEYS.max(shard.bucket_count() / 2);
        (0..max_evictions).all(|_| {
            self.used_memory() + growth <= self.max_memory
                || self.evict_one_key(shard, now, |shard| shard.evict(now))
        })
    }

    /// Evicts a key by calling `evict`, and shrinks tables that have few keys. Returns `true` if a key was
    /// evicted.
    fn evict_one_key(
        &self,
        shard: &mut Shard,
        now: CoarseTime,
        evict: impl FnOnce(&mut Shard) -> Option<CoarseTime>,
    ) -> bool {
        let expires =
            self.update_shard_and_memory_use(shard, |shard| evict(shard).inspect(|_| shard.trim()));
        expires.inspect(|expires| self.count_evicted_key(*expires, now)).is_some()
    }

    /// Subtracts a removed key from the number of keys, and counts it as evicted unless it expired before `now`.
    /// `expires` is the time at which the key expires.
    fn count_evicted_key(&self, expires: CoarseTime, now: CoarseTime) {
        self.keys.fetch_sub(1, Ordering::Relaxed);
        self.evicted.fetch_add(u64::from(expires >= now), Ordering::Relaxed);
    }

    /// Evicts a key of another shard, because all keys of the shard at `shard_index` are being denied. Returns the time
    /// at which the evicted key expires; `None` if no key was evicted. Skips shards that are locked, since waiting for
    /// a lock while holding another could cause a deadlock.
    fn evict_from_other_shards(&self, shard_index: usize, now: CoarseTime) -> Option<CoarseTime> {
        let others = (shard_index + 1..self.shards.len()).chain(0..shard_index);
        for padded in others.map(|other| &self.shards[other]) {
            if padded.all_denied_until.load(Ordering::Relaxed) > now {
                continue;
            }
            let Some(mut shard) = padded.shard.try_lock() else {
                continue;
            };
            if let Some(expires) =
                self.update_shard_and_memory_use(&mut shard, |shard| shard.evict(now))
            {
                return Some(expires);
            }
            padded.all_denied_until.store(shard.all_denied_until(), Ordering::Relaxed);
        }
        None
    }

    /// Evicts the key whose denial ends first, from any shard, and returns the time at which the denial ends. Skips
    /// locked shards, as [`evict_from_other_shards`](Self::evict_from_other_shards) does.
    fn evict_denied_key(&self, shard: &mut Shard, shard_index: usize) -> Option<CoarseTime> {
        let mut soonest = shard.all_denied_until();
        let mut soonest_other = None;
        let others = (shard_index + 1..self.shards.len()).chain(0..shard_index);
        for padded in others.map(|other| &self.shards[other]) {
            if padded.all_denied_until.load(Ordering::Relaxed) >= soonest {
                continue;
            }
            let Some(mut shard) = padded.shard.try_lock() else {
                continue;
            };
            let denied_until = shard.all_denied_until();
            if denied_until < soonest {
                soonest = denied_until;
                soonest_other = Some((padded, shard));
            }
        }
        let evict = |shard: &mut Shard| {
            let expires = shard.evict_denied_key();
            if !self.is_within_memory_budget() {
                shard.trim();
            }
            expires
        };
        let Some((padded, mut other)) = soonest_other else {
            return self.update_shard_and_memory_use(shard, evict);
        };
        let expires = self.update_shard_and_memory_use(&mut other, evict);
        padded.all_denied_until.store(other.all_denied_until(), Ordering::Relaxed);
        expires
    }
}
