//! Memory accounting, and eviction of keys above the memory limit.

use std::sync::atomic::Ordering;

use slidegate::Timestamp;
use slidegate::store::table::{CoarseTime, PINNED};

use super::shard::States;
use super::{Counters, HasTable, Shard};

/// Maximum number of keys that are evicted when one key is inserted or grows.
const MAX_EVICTIONS_PER_CALL: usize = 16;

impl Counters {
    /// Returns whether the states may grow by `growth_bytes` bytes. Replicas cannot be evicted, since other nodes need them.
    /// However large they are, half of the budget remains for states.
    fn has_memory(&self, growth_bytes: usize) -> bool {
        let replica_bytes = self.replica_bytes.load(Ordering::Relaxed);
        let budget = self.max_memory.saturating_sub(replica_bytes).max(self.max_memory / 2);
        self.state_bytes.load(Ordering::Relaxed).saturating_add(growth_bytes) <= budget
    }

    /// Returns whether the replicas use half of the budget or more. Updates of keys without a replica are then ignored.
    pub(super) fn are_replicas_full(&self) -> bool {
        self.replica_bytes.load(Ordering::Relaxed) >= self.max_memory / 2
    }

    /// Adds the growth of a locked shard's states, in bytes.
    #[inline]
    pub(super) fn count_state_growth(&self, growth_bytes: isize) {
        if growth_bytes != 0 {
            self.state_bytes.fetch_add(growth_bytes as usize, Ordering::Relaxed);
        }
    }

    /// Adds the growth of a locked shard's replicas since the last count, in bytes.
    pub(super) fn count_replica_growth(&self, shard: &mut Shard) {
        let growth_bytes = shard.replicas.take_growth();
        self.replica_bytes.fetch_add(growth_bytes as usize, Ordering::Relaxed);
    }

    /// Changes the states of a locked shard and counts their growth.
    pub(super) fn change_states<R>(
        &self,
        states: &mut States,
        change_states: impl FnOnce(&mut States) -> R,
    ) -> R {
        let before = states.bytes();
        let result = change_states(states);
        self.count_state_growth(states.bytes().wrapping_sub(before) as isize);
        result
    }

    /// Evicts keys of a shard until there is memory for one more slot. If all keys are being denied, at most one of
    /// them is evicted, as for the key limit.
    pub(super) fn evict_for_slot<C: HasTable>(&self, shard: &mut Shard, key: u64, now: Timestamp) {
        let now = self.coarse(now.as_micros());
        for attempt in 0..MAX_EVICTIONS_PER_CALL {
            let states = &mut shard.states;
            if self.has_memory(C::table(states).growth_bytes(key)) {
                return;
            }
            let evict = |states: &mut States| match attempt {
                0 => states.evict(now),
                _ => states.evict_undenied(now),
            };
            if !self.evict_one(states, now, evict) {
                return;
            }
        }
    }

    /// Counts the growth of a key's state, and evicts other keys if memory is short.
    #[cold]
    pub(super) fn count_growth<C: HasTable>(
        &self,
        shard: &mut Shard,
        key: u64,
        growth_bytes: isize,
        now: Timestamp,
    ) {
        self.count_state_growth(growth_bytes);
        if self.has_memory(0) {
            return;
        }
        // Pins the growing key. If it could be evicted, it would never be denied.
        let denied_until = set_denied_until::<C>(shard, key, PINNED);
        self.evict_while_over_budget(shard, self.coarse(now.as_micros()), MAX_EVICTIONS_PER_CALL);
        set_denied_until::<C>(shard, key, denied_until);
    }

    /// Evicts keys of a shard that are not being denied, at most `max_evictions`, while memory is short.
    pub(super) fn evict_while_over_budget(
        &self,
        shard: &mut Shard,
        now: CoarseTime,
        max_evictions: usize,
    ) {
        for _ in 0..max_evictions {
            let evict = |states: &mut States| states.evict_undenied(now);
            if self.has_memory(0) || !self.evict_one(&mut shard.states, now, evict) {
                return;
            }
        }
    }

    /// Evicts one key, and frees unused blocks if memory is short. Returns whether a key was evicted.
    pub(super) fn evict_one(
        &self,
        states: &mut States,
        now: CoarseTime,
        evict: impl FnOnce(&mut States) -> Option<CoarseTime>,
    ) -> bool {
        let expires = self.change_states(states, |states| {
            let expires = evict(states);
            if !self.has_memory(0) {
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

/// Replaces the time until which a key is denied. Returns the previous time.
fn set_denied_until<C: HasTable>(
    shard: &mut Shard,
    key: u64,
    denied_until: CoarseTime,
) -> CoarseTime {
    let table = C::table(&mut shard.states);
    let slot = table.find(key);
    slot.map_or(0, |at| std::mem::replace(&mut table.slot_mut(at).denied_until, denied_until))
}
