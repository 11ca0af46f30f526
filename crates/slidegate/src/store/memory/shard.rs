//! A shard of the memory store: the data behind one lock, with a separate table for each algorithm.

use crate::algorithm::concurrent::Concurrent;
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::sliding_buckets::SlidingBuckets;
use crate::algorithm::sliding_counter::SlidingCounter;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::token_bucket::TokenBucket;
use crate::algorithm::{ChargeEffect, Counter};
use crate::clock::Timestamp;
use crate::heap::HeapSize;
use crate::outcome::Outcome;
use crate::store::PermitChange;

use crate::store::table::{CoarseTime, Evict, EvictionCandidate, Slot, SlotIndex, Table};

/// The number of decisions of a shard between two sweeps. A sweep removes expired keys.
const DECISIONS_PER_SWEEP: u8 = 64;

/// One of the parts into which a store divides its keys, with the states of these keys. The table of the default
/// algorithm is on the cache line of the lock; the other tables are created on first use.
#[derive(Default)]
pub(super) struct Shard {
    /// The number of decisions until the next sweep.
    decisions_until_sweep: u8,
    sliding_window: Table<<SlidingWindow as Counter>::State>,
    other_tables: Option<Box<NonDefaultTables>>,
}

#[derive(Default)]
/// The tables of all algorithms except the default one.
struct NonDefaultTables {
    sliding_log: Table<<SlidingLog as Counter>::State>,
    sliding_buckets: Table<<SlidingBuckets as Counter>::State>,
    sliding_counter: Table<<SlidingCounter as Counter>::State>,
    fixed_window: Table<<FixedWindow as Counter>::State>,
    token_bucket: Table<<TokenBucket as Counter>::State>,
    concurrent: Table<<Concurrent as Counter>::State>,
}

/// A counter whose states have a table in every shard.
pub(super) trait HasStateTable: Counter {
    /// Returns the table of this algorithm in a shard.
    fn table(shard: &mut Shard) -> &mut Table<Self::State>;
}

impl HasStateTable for SlidingWindow {
    #[inline(always)]
    fn table(shard: &mut Shard) -> &mut Table<Self::State> {
        &mut shard.sliding_window
    }
}

/// Implements [`HasStateTable`] for the counters whose tables are in [`NonDefaultTables`].
macro_rules! impl_has_table {
    ($($counter:ident => $table:ident),+ $(,)?) => {
        $(impl HasStateTable for $counter {
            #[inline]
            fn table(shard: &mut Shard) -> &mut Table<Self::State> {
                &mut shard.other_tables.get_or_insert_default().$table
            }
        })+

        impl NonDefaultTables {
            fn tables(&mut self) -> [&mut dyn Evict; [$(stringify!($counter)),+].len()] {
                [$(&mut self.$table),+]
            }

            fn memory_bytes(&self) -> usize {
                [$(self.$table.bytes()),+].into_iter().sum()
            }
        }
    };
}

impl_has_table! {
    SlidingLog => sliding_log,
    SlidingBuckets => sliding_buckets,
    SlidingCounter => sliding_counter,
    FixedWindow => fixed_window,
    TokenBucket => token_bucket,
    Concurrent => concurrent,
}

impl Shard {
    fn tables(&mut self) -> impl Iterator<Item = &mut dyn Evict> {
        let first: &mut dyn Evict = &mut self.sliding_window;
        let others = self.other_tables.iter_mut().flat_map(|others| others.tables());
        std::iter::once(first).chain(others)
    }

    /// Returns the number of bytes that all tables and the heap allocations of their states take.
    pub(super) fn memory_bytes(&self) -> usize {
        let other_bytes = self.other_tables.as_ref().map_or(0, |others| others.memory_bytes());
        self.sliding_window.bytes() + other_bytes
    }

    /// Returns the number of buckets of all tables, with and without keys.
    pub(super) fn bucket_count(&mut self) -> usize {
        self.tables().map(|table| table.bucket_count()).sum()
    }

    /// Returns the number of bytes that the table of `C` allocates if a key is inserted.
    pub(super) fn growth_bytes<C: HasStateTable>(&mut self, _: C) -> usize {
        C::table(self).growth_bytes()
    }

    /// Removes the expired keys in the next buckets of each table, and returns the number of removed keys.
    pub(super) fn sweep(&mut self, now: CoarseTime) -> usize {
        self.tables().map(|table| table.sweep(now)).sum()
    }

    /// Removes all expired keys, and returns their number.
    pub(super) fn sweep_all(&mut self, now: CoarseTime) -> usize {
        self.tables().map(|table| table.sweep_all(now)).sum()
    }

    /// Evicts the key that expires first in a small sample, and returns the time at which the key expires. A key that
    /// is being denied is not evicted. Returns `None` if no key was evicted.
    pub(super) fn evict(&mut self, now: CoarseTime) -> Option<CoarseTime> {
        remove_first_to_expire(
            self.tables().filter_map(|table| Some((table.eviction_candidate(now)?, table))),
        )
    }

    /// Evicts a key as [`evict`](Self::evict) does, but only from the table of `C`, so that this table gets a free
    /// slot.
    pub(super) fn evict_from_table<C: HasStateTable>(
        &mut self,
        _: C,
        now: CoarseTime,
    ) -> Option<CoarseTime> {
        let table = C::table(self);
        let candidate = table.eviction_candidate(now)?;
        table.remove(candidate.slot);
        Some(candidate.expires)
    }

    /// Shrinks tables whose keys fit into half of their buckets.
    pub(super) fn trim(&mut self) {
        self.tables().for_each(|table| table.trim());
    }

    /// Replaces the time until which a key is denied, and returns the previous time.
    pub(super) fn set_denied_until<C: HasStateTable>(
        &mut self,
        _: C,
        fingerprint: u64,
        denied_until: CoarseTime,
    ) -> CoarseTime {
        let table = C::table(self);
        let slot = table.find(fingerprint);
        slot.map_or(0, |at| std::mem::replace(&mut table.slot_mut(at).denied_until, denied_until))
    }

    /// Evicts the key of the table of `C` whose denial ends first, as [`evict_denied_key`](Self::evict_denied_key) does.
    pub(super) fn evict_denied_key_from_table<C: HasStateTable>(
        &mut self,
        _: C,
    ) -> Option<CoarseTime> {
        let table = C::table(self);
        let candidate = table.candidate_by_denial_end()?;
        table.remove(candidate.slot);
        Some(candidate.expires)
    }

    /// Evicts the key whose denial ends first. Returns the time at which the denial ends.
    pub(super) fn evict_denied_key(&mut self) -> Option<CoarseTime> {
        remove_first_to_expire(
            self.tables().filter_map(|table| Some((table.candidate_by_denial_end()?, table))),
        )
    }

    /// Returns the time until which all keys of the shard are known to be denied.
    pub(super) fn all_denied_until(&mut self) -> CoarseTime {
        let candidates = self.tables().filter_map(|table| table.candidate_by_denial_end());
        candidates.map(|candidate| candidate.expires).min().unwrap_or(CoarseTime::MAX)
    }

    /// Returns `true` if the next decision is to sweep the shard.
    #[inline(always)]
    pub(super) fn is_sweep_due(&self) -> bool {
        self.decisions_until_sweep == 0
    }

    /// Counts a decision if [no sweep is due](Self::is_sweep_due).
    #[inline(always)]
    pub(super) fn count_decision(&mut self) {
        self.decisions_until_sweep = self.decisions_until_sweep.wrapping_sub(1);
    }

    /// Begins to count the decisions until the next sweep.
    pub(super) fn restart_sweep_interval(&mut self) {
        self.decisions_until_sweep = DECISIONS_PER_SWEEP - 1;
    }

    #[inline(always)]
    pub(super) fn find<C: HasStateTable>(&mut self, _: C, fingerprint: u64) -> Option<SlotIndex> {
        C::table(self).find(fingerprint)
    }

    pub(super) fn insert<C: HasStateTable>(&mut self, _: C, fingerprint: u64) -> SlotIndex {
        C::table(self).insert(fingerprint)
    }

    #[inline(always)]
    pub(super) fn peek_slot<C: HasStateTable>(
        &mut self,
        counter: C,
        slot: Option<SlotIndex>,
        now: Timestamp,
        required: u64,
    ) -> Outcome {
        match slot {
            Some(slot) => counter.peek(&C::table(self).slot(slot).state, now, required),
            None => counter.peek(&C::State::default(), now, required),
        }
    }

    /// Returns the number of units of a cost that can be charged to the state in a slot, or to a new state if `slot` is
    /// `None`.
    pub(super) fn chargeable_units<C: HasStateTable>(
        &mut self,
        counter: C,
        slot: Option<SlotIndex>,
        now: Timestamp,
        cost: u64,
    ) -> u64 {
        match slot {
            Some(slot) => counter.chargeable_units(&C::table(self).slot(slot).state, now, cost),
            None => counter.chargeable_units(&C::State::default(), now, cost),
        }
    }

    /// Charges the state in a slot. Returns the effect, and the bytes by which the heap allocations of the state have
    /// grown. `coarse` converts the times of the effect to coarse time.
    #[inline(always)]
    pub(super) fn charge<C: HasStateTable>(
        &mut self,
        counter: C,
        slot: SlotIndex,
        now: Timestamp,
        cost: u64,
        coarse: impl Fn(Timestamp) -> CoarseTime,
    ) -> (ChargeEffect, isize) {
        charge_slot(C::table(self), slot, now, coarse, |state| counter.charge(state, now, cost))
    }

    /// Charges the state of a key as [`charge`](Self::charge) does if `cost` units fit; otherwise returns the outcome of
    /// the hit as an error. Returns `None` if there is no such key.
    #[inline(always)]
    pub(super) fn charge_if_fits<C: HasStateTable>(
        &mut self,
        counter: C,
        fingerprint: u64,
        now: Timestamp,
        cost: u64,
        coarse: impl Fn(Timestamp) -> CoarseTime,
    ) -> Option<Result<(ChargeEffect, isize), Outcome>> {
        let table = C::table(self);
        let slot = table.find_mut(fingerprint)?;
        let before = slot.state.heap_bytes();
        let effect = match counter.charge_if_fits(&mut slot.state, now, cost) {
            Ok(effect) => effect,
            Err(outcome) => return Some(Err(outcome)),
        };
        set_expiry(slot, &effect, now, coarse);
        let after = slot.state.heap_bytes();
        Some(Ok((effect, table.record_heap_change(before, after))))
    }

    /// Reverts a charge if the key exists. Returns the bytes by which the heap allocations of the key's state have
    /// grown.
    pub(super) fn revert<C: HasStateTable>(
        &mut self,
        counter: C,
        fingerprint: u64,
        charged_at: Timestamp,
        cost: u64,
    ) -> isize {
        let table = C::table(self);
        let Some(slot) = table.find(fingerprint) else { return 0 };
        let revert = |slot: &mut Slot<C::State>| {
            counter.revert(&mut slot.state, charged_at, cost);
            // Units may fit again. The expiry time is updated only at the next charge.
            slot.denied_until = 0;
        };
        table.update(slot, revert).1
    }

    /// Refunds units if the key exists. Returns the outcome of a hit that requires one unit after the refund, and the
    /// bytes by which the heap allocations of the state have grown.
    pub(super) fn refund<C: HasStateTable>(
        &mut self,
        counter: C,
        fingerprint: u64,
        now: Timestamp,
        cost: u64,
    ) -> (Outcome, isize) {
        let slot = self.find(counter, fingerprint);
        let refund = |slot: &mut Slot<C::State>| {
            counter.refund(&mut slot.state, now, cost);
            // Units may fit again.
            slot.denied_until = 0;
        };
        let grown = slot.map_or(0, |slot| C::table(self).update(slot, refund).1);
        (self.peek_slot(counter, slot, now, 1), grown)
    }

    /// Releases or renews a permit. Returns whether it was live, and the bytes by which the heap allocations of the key's
    /// state have grown. `coarse` converts a time to coarse time.
    pub(super) fn change_permit(
        &mut self,
        counter: Concurrent,
        fingerprint: u64,
        (id, change): (Timestamp, PermitChange),
        now: Timestamp,
        coarse: impl Fn(Timestamp) -> CoarseTime,
    ) -> (bool, isize) {
        let table = Concurrent::table(self);
        let Some(slot) = table.find(fingerprint) else { return (false, 0) };
        let change = |slot: &mut Slot<_>| match change {
            PermitChange::Release => {
                slot.denied_until = 0;
                counter.release(&mut slot.state, now, id)
            }
            PermitChange::Renew => {
                let was_live = counter.renew(&mut slot.state, now, id);
                slot.expires = slot.expires.max(coarse(counter.expires_at(&slot.state)));
                was_live
            }
        };
        table.update(slot, change)
    }

    /// Removes a key. Returns `true` if the key existed.
    pub(super) fn remove<C: HasStateTable>(&mut self, _: C, fingerprint: u64) -> bool {
        let table = C::table(self);
        let slot = table.find(fingerprint);
        slot.inspect(|&slot| table.remove(slot)).is_some()
    }
}

/// Charges the state in a slot of a table by calling `charge`. See [`Shard::charge`].
#[inline(always)]
fn charge_slot<S: Default + HeapSize>(
    table: &mut Table<S>,
    slot: SlotIndex,
    now: Timestamp,
    coarse: impl Fn(Timestamp) -> CoarseTime,
    charge: impl FnOnce(&mut S) -> ChargeEffect,
) -> (ChargeEffect, isize) {
    table.update(slot, |slot| {
        let effect = charge(&mut slot.state);
        set_expiry(slot, &effect, now, coarse);
        effect
    })
}

/// Sets the time at which a key expires, and the time until which it is denied, after a charge at `now`.
#[inline(always)]
fn set_expiry<S>(
    slot: &mut Slot<S>,
    effect: &ChargeEffect,
    now: Timestamp,
    coarse: impl Fn(Timestamp) -> CoarseTime,
) {
    // A state without units also keeps its time for a moment, in case the clock steps back.
    slot.expires = coarse(effect.expires_at.max(now));
    slot.denied_until = if effect.outcome.fits() {
        0
    } else {
        let fits_at = now.after_us(effect.outcome.retry_after_us());
        coarse(fits_at.min(effect.expires_at.max(now)))
    };
}

/// Removes the candidate that expires first. Each candidate is paired with its table. Returns the time at which this
/// candidate expires; `None` if there are no candidates.
fn remove_first_to_expire<'t>(
    candidates: impl Iterator<Item = (EvictionCandidate, &'t mut dyn Evict)>,
) -> Option<CoarseTime> {
    let (candidate, table) = candidates.min_by_key(|(candidate, _)| candidate.expires)?;
    table.remove(candidate.slot);
    Some(candidate.expires)
}
