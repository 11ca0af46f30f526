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
use crate::layout::HeapSize;
use crate::outcome::Outcome;
use crate::store::PermitChange;

use crate::store::shards::ShardTables;
use crate::store::table::{CoarseTime, EvictableTable, Slot, SlotIndex, Table, depletion};

/// One of the parts into which a store divides its keys, with the states of these keys. The tables are not allocated
/// separately, because that would cost each decision a further access to memory.
#[derive(Default)]
#[repr(C)]
pub(super) struct Shard {
    /// The number of decisions until the next sweep.
    decisions_until_sweep: u8,
    sliding_window: Table<<SlidingWindow as Counter>::State>,
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

/// Implements [`HasStateTable`] for all counters.
macro_rules! impl_has_table {
    ($($counter:ident => $table:ident),+ $(,)?) => {
        $(impl HasStateTable for $counter {
            fn table(shard: &mut Shard) -> &mut Table<Self::State> {
                &mut shard.$table
            }
        })+

        impl ShardTables for Shard {
            fn tables(&mut self) -> impl Iterator<Item = &mut dyn EvictableTable> {
                let tables: [&mut dyn EvictableTable; [$(stringify!($counter)),+].len()] =
                    [$(&mut self.$table),+];
                tables.into_iter()
            }

            fn decisions_until_sweep(&mut self) -> &mut u8 {
                &mut self.decisions_until_sweep
            }
        }
    };
}

impl_has_table! {
    SlidingWindow => sliding_window,
    SlidingLog => sliding_log,
    SlidingBuckets => sliding_buckets,
    SlidingCounter => sliding_counter,
    FixedWindow => fixed_window,
    TokenBucket => token_bucket,
    Concurrent => concurrent,
}

/// Moves the state in a slot to `now` after the clock has stepped back. A separate function, because this is rare.
#[cold]
#[inline(never)]
fn set_state_back_to<C: HasStateTable>(
    table: &mut Table<C::State>,
    counter: C,
    slot: SlotIndex,
    now: Timestamp,
    coarse: impl Fn(Timestamp) -> CoarseTime,
) -> isize {
    let set_state_back_to = |slot: &mut Slot<C::State>| {
        counter.set_state_back_to(&mut slot.state, now);
        slot.expires = coarse(counter.expires_at(&slot.state).max(now));
    };
    table.update(slot, set_state_back_to).1
}

impl Shard {
    /// Extends the time for which keys with fixed windows are kept, after a step back of the wall clock.
    pub(super) fn extend_fixed_windows(&mut self, by: CoarseTime) {
        for (_, slot) in self.fixed_window.iter_mut() {
            slot.expires = slot.expires.saturating_add(by);
        }
    }

    pub(super) fn find<C: HasStateTable>(&mut self, _: C, fingerprint: u64) -> Option<SlotIndex> {
        C::table(self).find(fingerprint)
    }

    /// Sets back the state in a slot if it [is ahead](Counter::is_ahead_of_clock). Returns the bytes by which its heap
    /// allocations have grown. `coarse` converts its expiry to coarse time.
    #[inline]
    pub(super) fn set_back_if_ahead<C: HasStateTable>(
        &mut self,
        counter: C,
        slot: SlotIndex,
        now: Timestamp,
        coarse: impl Fn(Timestamp) -> CoarseTime,
    ) -> isize {
        let table = C::table(self);
        if counter.is_ahead_of_clock(&table.slot(slot).state, now) {
            return set_state_back_to(table, counter, slot, now, coarse);
        }
        0
    }

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
    pub(super) fn charge<C: HasStateTable>(
        &mut self,
        counter: C,
        slot: SlotIndex,
        now: Timestamp,
        cost: u64,
        coarse: impl Fn(Timestamp) -> CoarseTime,
    ) -> (ChargeEffect, isize) {
        C::table(self).update(slot, |slot| {
            let effect = counter.charge(&mut slot.state, now, cost);
            set_expiry(slot, counter, &effect, now, coarse);
            effect
        })
    }

    /// Charges the state of a key as [`charge`](Self::charge) does if `cost` units fit; otherwise returns the outcome
    /// of the hit as an error. Returns `None` if there is no such key, or if its state [is
    /// ahead](Counter::is_ahead_of_clock).
    #[inline]
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
        if counter.is_ahead_of_clock(&slot.state, now) {
            return None;
        }
        let before = slot.state.heap_bytes();
        let effect = match counter.charge_if_fits(&mut slot.state, now, cost) {
            Ok(effect) => effect,
            Err(outcome) => return Some(Err(outcome)),
        };
        set_expiry(slot, counter, &effect, now, coarse);
        let after = slot.state.heap_bytes();
        Some(Ok((effect, table.add_heap_change(before, after))))
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
            // The expiry time stays until the next charge, so the key may be kept longer than necessary.
            update_depletion(slot, counter, charged_at);
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
            update_depletion(slot, counter, now);
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
                let was_live = counter.release(&mut slot.state, now, id);
                update_depletion(slot, counter, now);
                was_live
            }
            PermitChange::Renew => {
                let was_live = counter.renew(&mut slot.state, now, id);
                slot.expires = slot.expires.max(coarse(counter.expires_at(&slot.state)));
                was_live
            }
        };
        table.update(slot, change)
    }
}

/// Sets the time at which a key expires, and its depletion, after a charge at `now`.
fn set_expiry<C: Counter>(
    slot: &mut Slot<C::State>,
    counter: C,
    effect: &ChargeEffect,
    now: Timestamp,
    coarse: impl Fn(Timestamp) -> CoarseTime,
) {
    // A key without units is also kept until shortly after `now`: its state has the time of the charge, in case the
    // clock steps back.
    slot.expires = coarse(effect.expires_at.max(now));
    slot.depletion = depletion(&effect.outcome, counter.capacity());
}

/// Sets the depletion of a key whose units were removed.
fn update_depletion<C: Counter>(slot: &mut Slot<C::State>, counter: C, now: Timestamp) {
    slot.depletion = depletion(&counter.peek(&slot.state, now, 1), counter.capacity());
}
