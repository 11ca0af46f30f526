//! The calls of the store.

use crate::algorithm::concurrent::Concurrent;
use crate::algorithm::{AnyCounter, with_counter};
use crate::call::CallIdentity;
use crate::clock::{Clock, Timestamp};
use crate::hit::Hit;
use crate::outcome::Outcome;
use crate::store::{
    Adjustment, Charge, ChargeResult, CounterId, Edit, LocalResults, OnceResult, Outcomes,
    PermitChange, Receipt, SettleResult, Settlement, SingleChargeResult, SyncStore, change_permit,
};
use crate::sync::Ordering;

use super::single::{CounterResult, add_key_phase_to_time};
use super::{HITS_PER_BATCH, HitLocation, MemoryStore};

impl<C: Clock> SyncStore for MemoryStore<C> {
    #[inline]
    fn charge(&self, call: &[Hit<'_>]) -> ChargeResult {
        if let Some(results) = self.charge_few(call) {
            return results.into_charge_result(call);
        }
        let now = self.clock.now();
        let locate = |hit| self.locate_hit(hit, now);
        let decide = |locations: &[_]| self.decide_call(call, locations, now);
        // An array for the usual numbers of hits, because it takes fewer instructions than a list.
        match call {
            [first] => decide(&[locate(first)]),
            [first, second] => decide(&[locate(first), locate(second)]),
            [first, second, third] => decide(&[locate(first), locate(second), locate(third)]),
            hits => decide(&self.locate_hits(hits, now)),
        }
    }

    #[inline(always)]
    fn charge_one(&self, hit: &Hit<'_>) -> SingleChargeResult {
        let now = self.clock.now();
        let location = self.locate_hit(hit, now);
        if hit.is_charged_only_if_it_fits() {
            let HitLocation { fingerprint, phase_us, .. } = location;
            let result = match hit.limit.counter_ref() {
                AnyCounter::SlidingWindow(counter) => {
                    self.lock_and_charge_if_fits(counter, (fingerprint, phase_us), hit.cost, now)
                }
                AnyCounter::SlidingCounter(counter) => self.lock_and_charge_if_fits_out_of_line(
                    counter,
                    (fingerprint, phase_us),
                    hit.cost,
                    now,
                ),
                counter => self.charge_with_other_algorithm(counter, location, hit.cost, now),
            };
            result.into_charge_result(hit, location)
        } else {
            let shard = &mut *self.shards[location.shard].shard.lock();
            self.decide_unusual_hit(shard, hit, location, now)
        }
    }

    #[inline]
    fn charge_few(&self, call: &[Hit<'_>]) -> Option<Box<LocalResults>> {
        if call.len() > 1 { self.decide_few(call) } else { None }
    }

    /// Locks the shards of a batch of hits together.
    fn charge_each(&self, hits: &[Hit<'_>], mut on_result: impl FnMut(SingleChargeResult)) {
        let now = self.clock.now();
        for hits in hits.chunks(HITS_PER_BATCH) {
            let mut locations = [HitLocation::default(); HITS_PER_BATCH];
            for (location, hit) in locations.iter_mut().zip(hits) {
                *location = self.locate_hit(hit, now);
            }
            let locations = &locations[..hits.len()];
            let mut locked_shards = self.lock_shards(locations);
            for (nth, (hit, location)) in hits.iter().zip(locations).enumerate() {
                on_result(self.decide_single_hit(
                    locked_shards.shard_of_location(nth),
                    hit,
                    *location,
                    now,
                ));
            }
        }
    }

    fn charge_many(&self, calls: &[&[Hit<'_>]], mut on_result: impl FnMut(ChargeResult)) {
        let now = self.clock.now();
        for hits in calls {
            on_result(self.decide_call(hits, &self.locate_hits(hits, now), now));
        }
    }

    fn charge_once(&self, call: &[Hit<'_>], identity: &CallIdentity) -> OnceResult {
        let result = self.calls.charge_once(identity, call, self.clock.now(), || self.charge(call));
        self.evict_keys_for_records();
        result
    }

    fn settle(&self, settlement: &Settlement) -> SettleResult {
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
        self.peek_all_hits(&mut locked_shards, call, &locations, now, |_| ())
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
        Some(CounterId::Fingerprint(self.fingerprint_of(hit)))
    }

    fn edit(&self, hits: &[Hit<'_>], edit: Edit) -> Outcomes {
        let now = self.clock.now();
        let edit_hit = |hit: &Hit<'_>| match edit {
            Edit::Refund => self.refund_hit(hit, now),
            Edit::Reset => self.reset_hit(hit, now),
        };
        hits.iter().map(edit_hit).collect()
    }
}

impl<C: Clock> MemoryStore<C> {
    /// Locks the shard of a counter, and charges the counter if `cost` units fit. Not inlined, so that only the code of the
    /// default algorithm becomes a part of each caller.
    #[inline(never)]
    fn charge_with_other_algorithm(
        &self,
        counter: &AnyCounter,
        location: HitLocation,
        cost: u64,
        now: Timestamp,
    ) -> CounterResult {
        let HitLocation { fingerprint, phase_us, .. } = location;
        with_counter!(counter, counter => {
            self.lock_and_charge_if_fits_out_of_line(counter, (fingerprint, phase_us), cost, now)
        })
    }

    /// Charges the units of a charge again, even above max.
    fn charge_added_units(&self, charge: &Charge) {
        if let CounterId::Fingerprint(_) = charge.counter {
            self.charge_one(&charge.reported_hit());
        }
    }

    /// Subtracts the units of a charge from its counter.
    fn revert_charge(&self, charge: &Charge) {
        let CounterId::Fingerprint(fingerprint) = charge.counter else { return };
        let padded = &self.shards[self.shard_index(fingerprint)];
        let shard = &mut *padded.shard.lock();
        // The key is possibly not denied any more.
        padded.mark_not_denied();
        let grown = with_counter!(charge.limit.counter(), counter => {
            shard.revert(counter, fingerprint, charge.charged_at, charge.cost)
        });
        self.add_to_memory_use(grown);
    }

    /// Releases or renews the permit of one key. Returns whether it was live.
    fn change_permit_of_key(&self, charge: &Charge, change: PermitChange, now: Timestamp) -> bool {
        let AnyCounter::Concurrent(counter) = charge.limit.counter() else { return true };
        let CounterId::Fingerprint(fingerprint) = charge.counter else { return false };
        let padded = &self.shards[self.shard_index(fingerprint)];
        let shard = &mut *padded.shard.lock();
        // The key is possibly not denied any more.
        padded.mark_not_denied();
        let coarse = |time| self.to_coarse_expiry::<Concurrent>(time, charge.phase_us);
        let permit = (charge.charged_at, change);
        let (was_live, grown) = shard.change_permit(counter, fingerprint, permit, now, coarse);
        self.add_to_memory_use(grown);
        was_live
    }

    fn refund_hit(&self, hit: &Hit<'_>, now: Timestamp) -> Outcome {
        let location = self.locate_hit(hit, now);
        let padded = &self.shards[location.shard];
        let shard = &mut *padded.shard.lock();
        // The key is possibly not denied any more.
        padded.mark_not_denied();
        let (outcome, grown) = with_counter!(hit.limit.counter(), counter => {
            shard.refund(counter, location.fingerprint, add_key_phase_to_time(now, &location), hit.cost)
        });
        self.add_to_memory_use(grown);
        outcome
    }

    fn reset_hit(&self, hit: &Hit<'_>, now: Timestamp) -> Outcome {
        let location = self.locate_hit(hit, now);
        let shard = &mut *self.shards[location.shard].shard.lock();
        let (was_removed, outcome) = with_counter!(hit.limit.counter(), counter => {
            let was_removed =
                self.update_shard_and_memory_use(shard, |shard| shard.remove(counter, location.fingerprint));
            (was_removed, shard.peek_slot(counter, None, add_key_phase_to_time(now, &location), 1))
        });
        if was_removed {
            self.keys.fetch_sub(1, Ordering::Relaxed);
        }
        outcome
    }
}
