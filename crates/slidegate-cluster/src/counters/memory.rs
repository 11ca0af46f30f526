//! Counts how much memory the keys take, and evicts some when that is too much.

use std::sync::atomic::Ordering;

use slidegate::Timestamp;
use slidegate::store::table::{CoarseTime, PINNED};

use super::shard::States;
use super::{Counters, HasTable, Shard};

/// Keys that are evicted for one that comes or grows, at most.
const MAX_EVICTIONS_PER_CALL: usize = 16;

impl Counters {
    /// Returns whether the states may grow by `growth` bytes. Books cannot be evicted, since other nodes have to know
    /// them; however large they are, half of the budget is for states.
    fn has_memory(&self, growth: usize) -> bool {
        let replica_bytes = self.replica_bytes.load(Ordering::Relaxed);
        let budget = self.max_memory.saturating_sub(replica_bytes).max(self.max_memory / 2);
        self.state_bytes.load(Ordering::Relaxed).saturating_add(growth) <= budget
    }

    /// Returns whether the books take half of the budget or more. Keys that only other nodes have counted are then not
    /// merged.
    pub(super) fn are_books_full(&self) -> bool {
        self.replica_bytes.load(Ordering::Relaxed) >= self.max_memory / 2
    }

    /// Counts by how many bytes the states of a locked shard have grown.
    #[inline]
    pub(super) fn count_state_growth(&self, growth: isize) {
        if growth != 0 {
            self.state_bytes.fetch_add(growth as usize, Ordering::Relaxed);
        }
    }

    /// Counts by how many bytes the books of a locked shard have grown since the last look.
    pub(super) fn count_replica_growth(&self, shard: &mut Shard) {
        let growth = shard.replicas.take_growth();
        self.replica_bytes.fetch_add(growth as usize, Ordering::Relaxed);
    }

    /// Changes the states of a locked shard, and counts by how many bytes they have grown.
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

    /// Evicts keys of a shard until there is memory for the slot of one more. Of keys that are all being denied one
    /// goes, as if there were too many.
    pub(super) fn evict_for_slot<C: HasTable>(&self, shard: &mut Shard, key: u64, now: Timestamp) {
        let now = self.coarse(now.as_micros());
        for attempt in 0..MAX_EVICTIONS_PER_CALL {
            let states = &mut shard.states;
            if self.has_memory(C::table(states).growth(key)) {
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

    /// Counts by how many bytes the state of a key has grown, and evicts others if that is too much.
    #[cold]
    pub(super) fn count_growth<C: HasTable>(
        &self,
        shard: &mut Shard,
        key: u64,
        growth: isize,
        now: Timestamp,
    ) {
        self.count_state_growth(growth);
        if self.has_memory(0) {
            return;
        }
        // The key stays: if a growing key were evicted, it would never be denied.
        let denied_until = set_denied_until::<C>(shard, key, PINNED);
        self.evict_while_over_budget(shard, self.coarse(now.as_micros()), MAX_EVICTIONS_PER_CALL);
        set_denied_until::<C>(shard, key, denied_until);
    }

    /// Evicts keys of a shard that are not being denied, while memory is short: at most `max_evictions`.
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

    /// Evicts a key, and frees unused blocks if memory is short. Returns whether there was a key.
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

/// Replaces the moment until which a key is being denied; returns the one before.
fn set_denied_until<C: HasTable>(
    shard: &mut Shard,
    key: u64,
    denied_until: CoarseTime,
) -> CoarseTime {
    let table = C::table(&mut shard.states);
    let slot = table.find(key);
    slot.map_or(0, |at| std::mem::replace(&mut table.slot_mut(at).denied_until, denied_until))
}
