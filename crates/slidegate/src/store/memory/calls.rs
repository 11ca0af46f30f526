//! The operations of the memory store: charges, peeks, changes of receipts and permits, settlements and edits.

use std::hint::black_box;

use crate::algorithm::{AnyCounter, with_counter};
use crate::call::CallIdentity;
use crate::clock::{Clock, Timestamp};
use crate::hit::Hit;
use crate::outcome::Outcome;
use crate::store::{
    Adjustment, CallSettlement, Charge, ChargeOnceResult, ChargeResult, CounterId, Edit, Outcomes,
    PermitChange, Receipt, SettleResult, SyncStore, change_permit,
};

use super::shard::{HasStateTable, Shard};
use super::{HitLocation, MemoryStore};

/// The number of calls in a batch, whose states are read together before the calls are decided.
const CALLS_PER_BATCH: usize = 16;

impl<C: Clock> SyncStore for MemoryStore<C> {
    #[inline]
    fn charge(&self, call: &[Hit<'_>]) -> ChargeResult {
        let now = self.clock.now();
        match call {
            [hit] if hit.is_charged_only_if_it_fits() => self.charge_hit(hit, now),
            hits => self.charge_hits(hits, now),
        }
    }

    fn charge_many(&self, calls: &[&[Hit<'_>]]) -> Vec<ChargeResult> {
        let mut results = Vec::with_capacity(calls.len());
        for calls in calls.chunks(CALLS_PER_BATCH) {
            self.prefetch_states(calls);
            results.extend(calls.iter().map(|call| self.charge(call)));
        }
        results
    }

    fn charge_once(&self, call: &[Hit<'_>], identity: &CallIdentity) -> ChargeOnceResult {
        let result = self.calls.charge_once(identity, call, self.clock.now(), || self.charge(call));
        self.evict_keys_for_records();
        result
    }

    fn settle(&self, settlement: &CallSettlement) -> SettleResult {
        let result = self.calls.settle(settlement, self.clock.now(), || {
            settlement.reverted.iter().for_each(|charge| self.revert_charge(charge));
            settlement.added.iter().for_each(|charge| self.charge_added_units(charge));
        });
        self.evict_keys_for_records();
        result
    }

    fn peek(&self, call: &[Hit<'_>]) -> Outcomes {
        let now = self.clock.now();
        let locations = self.locate_hits(call, now);
        let mut locked_shards = self.lock_shards(&locations);
        self.peek_hits(&mut locked_shards, call, &locations, now).0
    }

    fn adjust(&self, receipt: &Receipt, adjustment: Adjustment) {
        for charge in receipt.charges_to_revert(adjustment) {
            self.revert_charge(&charge);
        }
        for charge in receipt.additional_charges(adjustment) {
            self.charge_added_units(&charge);
        }
    }

    fn change_permit(&self, permit: &Receipt, change: PermitChange) -> bool {
        let now = self.clock.now();
        change_permit(permit, change, |charge, change| {
            self.change_permit_of_key(charge, change, now)
        })
    }

    fn local_counter_id(&self, hit: &Hit<'_>) -> Option<CounterId> {
        Some(CounterId::Fingerprint(self.hit_fingerprint(hit)))
    }

    fn edit(&self, hits: &[Hit<'_>], edit: Edit) -> Outcomes {
        let now = self.clock.now();
        let edit_hit = |hit: &Hit<'_>| match edit {
            Edit::Refund => self.refund_hit(hit, now),
            Edit::Reset => self.reset_counter_of_hit(hit, now),
        };
        hits.iter().map(edit_hit).collect()
    }
}

impl<C: Clock> MemoryStore<C> {
    /// Reads the states of a batch of calls together, so that the processor waits for memory once and not for each of
    /// them: with 10 million keys, a batch takes half the time.
    fn prefetch_states(&self, calls: &[&[Hit<'_>]]) {
        let hits = calls.concat();
        let locations = self.locate_hits(&hits, self.clock.now());
        let mut locked_shards = self.lock_shards(&locations);
        for (nth, (hit, location)) in hits.iter().zip(&locations).enumerate() {
            let shard = locked_shards.shard_of_hit(nth);
            with_counter!(hit.limit.counter(), counter => {
                black_box(shard.find(counter, location.fingerprint));
            });
        }
    }

    /// Charges the units that an adjustment or a settlement adds to a charge, even above max.
    fn charge_added_units(&self, charge: &Charge) {
        if let CounterId::Fingerprint(_) = charge.counter {
            self.charge(&[charge.reported_hit()]);
        }
    }

    /// Subtracts the units of a charge from its counter.
    fn revert_charge(&self, charge: &Charge) {
        let CounterId::Fingerprint(fingerprint) = charge.counter else { return };
        let shard = &mut *self.shards[self.shards.shard_index_of(fingerprint)].shard.lock();
        let grown = with_counter!(charge.limit.counter(), counter => {
            shard.revert(counter, fingerprint, charge.charged_at, charge.cost)
        });
        self.shards.add_bytes(grown);
    }

    /// Releases or renews the permit of one key. Returns whether it was live.
    fn change_permit_of_key(&self, charge: &Charge, change: PermitChange, now: Timestamp) -> bool {
        let AnyCounter::Concurrent(counter) = charge.limit.counter() else { return true };
        let CounterId::Fingerprint(fingerprint) = charge.counter else { return false };
        let shard = &mut *self.shards[self.shards.shard_index_of(fingerprint)].shard.lock();
        let location =
            HitLocation { fingerprint, phase_us: charge.phase_us, ..HitLocation::default() };
        self.find_and_set_back(shard, counter, location, now);
        let coarse = |time| self.to_coarse_expiry(time, charge.phase_us);
        let permit = (charge.charged_at, change);
        let (was_live, grown) = shard.change_permit(counter, fingerprint, permit, now, coarse);
        self.shards.add_bytes(grown);
        was_live
    }

    fn refund_hit(&self, hit: &Hit<'_>, now: Timestamp) -> Outcome {
        let location = self.locate_hit(hit, now);
        let shard = &mut *self.shards[location.shard].shard.lock();
        let (outcome, grown) = with_counter!(hit.limit.counter(), counter => {
            self.find_and_set_back(shard, counter, location, now);
            shard.refund(counter, location.fingerprint, location.to_counter_time(now), hit.cost)
        });
        self.shards.add_bytes(grown);
        outcome
    }

    fn reset_counter_of_hit(&self, hit: &Hit<'_>, now: Timestamp) -> Outcome {
        let location = self.locate_hit(hit, now);
        let shard = &mut *self.shards[location.shard].shard.lock();
        with_counter!(hit.limit.counter(), counter => {
            self.remove_key(shard, counter, location.fingerprint);
            shard.peek_slot(counter, None, location.to_counter_time(now), 1)
        })
    }

    fn remove_key<K: HasStateTable>(&self, shard: &mut Shard, _: K, fingerprint: u64) {
        self.shards.remove(shard, fingerprint, K::table);
    }
}
