//! What one lock guards: a table for each algorithm, so that none meets another's state.

use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::sliding_buckets::SlidingBuckets;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::token_bucket::TokenBucket;
use crate::algorithm::{Charged, Counter};
use crate::clock::Timestamp;
use crate::heap::HeapSize;
use crate::outcome::Outcome;

use crate::store::table::{CoarseTime, Evict, EvictionCandidate, Slot, Table, WIDTH};

/// Decisions between two sweeps.
const SWEEP_EVERY: u8 = 64;

/// The states of some of the keys. The default algorithm's table stands beside the lock, on the same
/// cache line; the others are made when they are first used.
#[derive(Default)]
pub(super) struct Shard {
    /// Decisions since the last sweep.
    unswept: u8,
    sliding_window: Table<<SlidingWindow as Counter>::State>,
    others: Option<Box<Others>>,
}

#[derive(Default)]
struct Others {
    sliding_log: Table<<SlidingLog as Counter>::State>,
    sliding_buckets: Table<<SlidingBuckets as Counter>::State>,
    fixed_window: Table<<FixedWindow as Counter>::State>,
    token_bucket: Table<<TokenBucket as Counter>::State>,
}

/// A counter that has a table in every shard.
pub(super) trait HasTable: Counter {
    fn table(shard: &mut Shard) -> &mut Table<Self::State>;
}

impl HasTable for SlidingWindow {
    #[inline(always)]
    fn table(shard: &mut Shard) -> &mut Table<Self::State> {
        &mut shard.sliding_window
    }
}

macro_rules! kept_in_others {
    ($($counter:ty => $table:ident),+ $(,)?) => {
        $(impl HasTable for $counter {
            #[inline]
            fn table(shard: &mut Shard) -> &mut Table<Self::State> {
                &mut shard.others.get_or_insert_default().$table
            }
        })+

        impl Others {
            fn tables(&mut self) -> [&mut dyn Evict; [$(stringify!($counter)),+].len()] {
                [$(&mut self.$table),+]
            }

            fn bytes(&self) -> usize {
                [$(self.$table.bytes()),+].into_iter().sum()
            }
        }
    };
}

kept_in_others! {
    SlidingLog => sliding_log,
    SlidingBuckets => sliding_buckets,
    FixedWindow => fixed_window,
    TokenBucket => token_bucket,
}

impl Shard {
    fn tables(&mut self) -> impl Iterator<Item = &mut dyn Evict> {
        let first: &mut dyn Evict = &mut self.sliding_window;
        let others = self.others.iter_mut().flat_map(|others| others.tables());
        std::iter::once(first).chain(others)
    }

    /// Returns the bytes of all tables and of what their states hold.
    pub(super) fn bytes(&self) -> usize {
        self.sliding_window.bytes() + self.others.as_ref().map_or(0, |others| others.bytes())
    }

    /// Returns the slots of all tables, whether in use or not.
    pub(super) fn slots(&mut self) -> usize {
        self.tables().map(|table| table.blocks() * WIDTH).sum()
    }

    /// Returns by how many bytes the table of a counter grows if that fingerprint is inserted.
    pub(super) fn growth<C: HasTable>(&mut self, _: C, fingerprint: u64) -> usize {
        C::table(self).growth(fingerprint)
    }

    /// Forgets what has expired in the next block of each table; says how many.
    pub(super) fn sweep(&mut self, now: CoarseTime) -> usize {
        self.tables().map(|table| table.sweep(now)).sum()
    }

    /// Forgets what has expired, block by block; says how many. A table that shrinks on the way has its
    /// blocks anew, so what is left takes another call.
    pub(super) fn sweep_all(&mut self, now: CoarseTime) -> usize {
        self.tables()
            .map(|table| (0..table.blocks()).map(|_| table.sweep(now)).sum::<usize>())
            .sum()
    }

    /// Lets the key go that expires soonest of a few, but none that is being denied; says when it would
    /// have expired.
    pub(super) fn evict(&mut self, now: CoarseTime) -> Option<CoarseTime> {
        remove_soonest(self.tables().filter_map(|table| Some((table.victim(now)?, table))))
    }

    /// Evicts as [`evict`](Self::evict) does, but from the table of one counter, so that a slot of it is free.
    pub(super) fn evict_for<C: HasTable>(&mut self, _: C, now: CoarseTime) -> Option<CoarseTime> {
        let table = C::table(self);
        let victim = table.victim(now)?;
        table.remove(victim.at);
        Some(victim.expires)
    }

    /// Gives memory back where enough slots are free.
    pub(super) fn trim(&mut self) {
        self.tables().for_each(|table| table.trim());
    }

    /// Replaces the moment until which a key is being denied; returns the one before.
    pub(super) fn set_denied_until<C: HasTable>(
        &mut self,
        _: C,
        fingerprint: u64,
        denied_until: CoarseTime,
    ) -> CoarseTime {
        let table = C::table(self);
        let slot = table.find(fingerprint);
        slot.map_or(0, |at| std::mem::replace(&mut table.slot_mut(at).denied_until, denied_until))
    }

    /// Lets the key go that is the soonest not to be denied any more.
    pub(super) fn evict_denied(&mut self) -> Option<CoarseTime> {
        remove_soonest(self.tables().filter_map(|table| Some((table.soonest_freed()?, table))))
    }

    /// Until when every key is being denied, as far as is known.
    pub(super) fn saturated_until(&mut self) -> CoarseTime {
        let soonest = self.tables().filter_map(|table| table.soonest_freed());
        soonest.map(|victim| victim.expires).min().unwrap_or(CoarseTime::MAX)
    }

    /// Whether it is time to sweep; counts the decisions.
    #[inline]
    pub(super) fn is_due(&mut self) -> bool {
        self.unswept = (self.unswept + 1) % SWEEP_EVERY;
        self.unswept == 0
    }

    #[inline]
    pub(super) fn touch<C: HasTable>(&mut self, _: C, fingerprint: u64) {
        C::table(self).touch(fingerprint);
    }

    #[inline(always)]
    pub(super) fn find<C: HasTable>(&mut self, _: C, fingerprint: u64) -> Option<usize> {
        C::table(self).find(fingerprint)
    }

    pub(super) fn insert<C: HasTable>(&mut self, _: C, fingerprint: u64) -> usize {
        C::table(self).insert(fingerprint)
    }

    #[inline(always)]
    pub(super) fn peek_slot<C: HasTable>(
        &mut self,
        counter: C,
        slot: Option<usize>,
        now: Timestamp,
        required: u64,
    ) -> Outcome {
        match slot {
            Some(slot) => counter.peek(&C::table(self).slot(slot).state, now, required),
            None => counter.peek(&C::State::default(), now, required),
        }
    }

    /// Returns how many units of a cost can be charged to the state in a slot.
    #[inline(always)]
    pub(super) fn chargeable<C: HasTable>(
        &mut self,
        counter: C,
        slot: usize,
        now: Timestamp,
        cost: u64,
    ) -> u64 {
        counter.chargeable(&C::table(self).slot(slot).state, now, cost)
    }

    /// Charges the state in a slot, and sets `grown` to the bytes by which the state has grown on the heap.
    #[inline(always)]
    pub(super) fn charge<C: HasTable>(
        &mut self,
        counter: C,
        slot: usize,
        now: Timestamp,
        cost: u64,
        coarse: impl Fn(Timestamp) -> CoarseTime,
        grown: &mut isize,
    ) -> Charged {
        // Not by `Table::change`: a closure of this size is not inlined.
        let table = C::table(self);
        let slot = table.slot_mut(slot);
        let before = slot.state.heap_bytes();
        let charged = counter.charge(&mut slot.state, now, cost);
        let after = &charged.after;
        slot.expires = coarse(now.after_us(after.reset_after_us()));
        slot.denied_until = if after.fits() {
            0
        } else {
            coarse(now.after_us(after.wait_us().min(after.reset_after_us())))
        };
        let heap_bytes = slot.state.heap_bytes();
        *grown = table.count_heap(before, heap_bytes);
        charged
    }

    /// Takes a charge back from a state that is there; returns by how many bytes that has grown.
    pub(super) fn revert<C: HasTable>(
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
            // It may fit again; when it expires is not sooner known than at the next charge.
            slot.denied_until = 0;
        };
        table.change(slot, revert).1
    }

    /// Takes units off a state that is there; says how its counter then stands, and by how many bytes the state has
    /// grown.
    pub(super) fn refund<C: HasTable>(
        &mut self,
        counter: C,
        fingerprint: u64,
        now: Timestamp,
        cost: u64,
    ) -> (Outcome, isize) {
        let slot = self.find(counter, fingerprint);
        let refund = |slot: &mut Slot<C::State>| {
            counter.refund(&mut slot.state, now, cost);
            // As after a give-back.
            slot.denied_until = 0;
        };
        let grown = slot.map_or(0, |slot| C::table(self).change(slot, refund).1);
        (self.peek_slot(counter, slot, now, 1), grown)
    }

    pub(super) fn forget<C: HasTable>(&mut self, _: C, fingerprint: u64) -> bool {
        let table = C::table(self);
        let slot = table.find(fingerprint);
        slot.inspect(|&slot| table.remove(slot)).is_some()
    }
}

/// Removes the soonest of the candidates from its table; says when it would have expired.
fn remove_soonest<'t>(
    candidates: impl Iterator<Item = (EvictionCandidate, &'t mut dyn Evict)>,
) -> Option<CoarseTime> {
    let (victim, table) = candidates.min_by_key(|(victim, _)| victim.expires)?;
    table.remove(victim.at);
    Some(victim.expires)
}
