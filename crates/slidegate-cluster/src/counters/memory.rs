//! Memory accounting, and eviction of keys when the memory limit is exceeded.

use std::sync::atomic::Ordering;

use slidegate::Timestamp;
use slidegate::internal::{CoarseTime, PINNED};

use super::shard::StateTables;
use super::{Counters, HasStateTable, Shard};

/// Maximum number of keys that are evicted when one key is inserted or grows.
const MAX_EVICTIONS_PER_NEW_OR_GROWN_KEY: usize = 16;

/// Maximum number of shards from which keys are evicted when the records of calls grow.
const MAX_SHARDS_PER_NEW_RECORD: usize = 4;

impl Counters {
    /// Returns `true` if the memory limit leaves room for `growth_bytes` further bytes of states. States may use the
    /// part of the limit that replicas and the records of calls do not use, and always at least a quarter of the limit.
    /// Replicas cannot be evicted, since other nodes need them.
    fn has_memory_for_state_growth(&self, growth_bytes: usize) -> bool {
        let others = self.replica_bytes.load(Ordering::Relaxed)
            + self.call_record_bytes.load(Ordering::Relaxed);
        let budget = self.max_memory.saturating_sub(others).max(self.max_memory / 4);
        self.state_bytes.load(Ordering::Relaxed).saturating_add(growth_bytes) <= budget
    }

    /// Sets the memory of the records of calls, which counts against the memory limit. Evicts keys if the limit is then
    /// exceeded.
    pub(crate) fn set_call_record_bytes(&self, bytes: usize, now: Timestamp) {
        self.call_record_bytes.store(bytes, Ordering::Relaxed);
        for _ in 0..MAX_SHARDS_PER_NEW_RECORD {
            if self.has_memory_for_state_growth(0) {
                return;
            }
            let index = self.next_evicted_shard.fetch_add(1, Ordering::Relaxed);
            let shard = &mut *self.shards[index % self.shards.len()].0.lock();
            // A table frees memory only after many evictions, so the fewest keys are lost if all are of one shard.
            let max_evictions = shard.states.bucket_count();
            self.evict_while_over_memory_limit(
                shard,
                self.to_coarse_time(now.as_micros()),
                max_evictions,
            );
        }
    }

    /// Returns `true` if the replicas use half of the memory limit or more. Updates of other nodes are then ignored for
    /// keys without a replica.
    pub(super) fn replicas_use_half_of_memory(&self) -> bool {
        self.replica_bytes.load(Ordering::Relaxed) >= self.max_memory / 2
    }

    /// Adds `growth_bytes` to the counted memory of all states. The number is negative if the states have shrunk.
    #[inline]
    pub(super) fn add_to_state_bytes(&self, growth_bytes: isize) {
        if growth_bytes != 0 {
            self.state_bytes.fetch_add(growth_bytes as usize, Ordering::Relaxed);
        }
    }

    /// Updates the counted memory of all replicas: adds the number of bytes by which the replicas of `shard` have grown
    /// since the previous call for this shard.
    pub(super) fn update_replica_bytes(&self, shard: &mut Shard) {
        let growth_bytes = shard.replicas.take_memory_growth_bytes();
        self.replica_bytes.fetch_add(growth_bytes as usize, Ordering::Relaxed);
    }

    /// Runs `change_states` on the states of a shard, and adds the growth of the states to the counted memory. Returns
    /// the result of `change_states`.
    pub(super) fn change_states_and_count_memory<R>(
        &self,
        states: &mut StateTables,
        change_states: impl FnOnce(&mut StateTables) -> R,
    ) -> R {
        let before = states.memory_bytes();
        let result = change_states(states);
        self.add_to_state_bytes(states.memory_bytes().wrapping_sub(before) as isize);
        result
    }

    /// Evicts keys of a shard until there is memory for a new key. Prefers keys that are not being denied. If all keys
    /// of the shard are being denied, evicts at most one of them.
    pub(super) fn evict_until_new_key_fits<C: HasStateTable>(
        &self,
        shard: &mut Shard,
        now: Timestamp,
    ) {
        let now = self.to_coarse_time(now.as_micros());
        for attempt in 0..MAX_EVICTIONS_PER_NEW_OR_GROWN_KEY {
            let states = &mut shard.states;
            if self.has_memory_for_state_growth(C::state_table(states).growth_bytes()) {
                return;
            }
            let evict = |states: &mut StateTables| match attempt {
                0 => states.evict_key(now),
                _ => states.evict_key_that_is_not_denied(now),
            };
            if !self.evict_selected_key(states, now, evict) {
                return;
            }
        }
    }

    /// Updates the counted memory after the state of one key has grown, and evicts other keys of the shard while the
    /// memory limit is exceeded.
    #[cold]
    pub(super) fn count_growth_and_evict_others<C: HasStateTable>(
        &self,
        shard: &mut Shard,
        key: u64,
        growth_bytes: isize,
        now: Timestamp,
    ) {
        self.add_to_state_bytes(growth_bytes);
        if self.has_memory_for_state_growth(0) {
            return;
        }
        // Pins the growing key. If it could be evicted, it would never be denied.
        let denied_until = replace_denied_until_time::<C>(shard, key, PINNED);
        self.evict_while_over_memory_limit(
            shard,
            self.to_coarse_time(now.as_micros()),
            MAX_EVICTIONS_PER_NEW_OR_GROWN_KEY,
        );
        replace_denied_until_time::<C>(shard, key, denied_until);
    }

    /// Evicts keys of a shard while the memory limit is exceeded: at most `max_evictions` keys, and no key that is
    /// being denied.
    pub(super) fn evict_while_over_memory_limit(
        &self,
        shard: &mut Shard,
        now: CoarseTime,
        max_evictions: usize,
    ) {
        for _ in 0..max_evictions {
            let evict = |states: &mut StateTables| states.evict_key_that_is_not_denied(now);
            if self.has_memory_for_state_growth(0)
                || !self.evict_selected_key(&mut shard.states, now, evict)
            {
                return;
            }
        }
    }

    /// Evicts the key that `evict` selects, and shrinks tables that have few keys if the memory limit is exceeded.
    /// Returns `true` if a key was evicted.
    pub(super) fn evict_selected_key(
        &self,
        states: &mut StateTables,
        now: CoarseTime,
        evict: impl FnOnce(&mut StateTables) -> Option<CoarseTime>,
    ) -> bool {
        let expires = self.change_states_and_count_memory(states, |states| {
            let expires = evict(states);
            if !self.has_memory_for_state_growth(0) {
                states.trim();
            }
            expires
        });
        let Some(expires) = expires else { return false };
        self.keys.fetch_sub(1, Ordering::Relaxed);
        self.evicted.fetch_add(u64::from(expires >= now), Ordering::Relaxed);
        true
    }
}

/// Replaces the time until which a key is denied. Returns the previous time, or 0 if the key has no state.
fn replace_denied_until_time<C: HasStateTable>(
    shard: &mut Shard,
    key: u64,
    denied_until: CoarseTime,
) -> CoarseTime {
    let table = C::state_table(&mut shard.states);
    let slot = table.find(key);
    slot.map_or(0, |at| std::mem::replace(&mut table.slot_mut(at).denied_until, denied_until))
}
