//! Decisions about requests with several hits, whose shards are locked together.

use smallvec::SmallVec;

use crate::algorithm::with_counter;
use crate::clock::{Clock, Timestamp};
use crate::hit::Hit;
use crate::store::table::SlotIndex;
use crate::store::{
    Charge, ChargeResult, CounterId, Outcomes, Receipt, admits, has_charge, pending_units,
};

use super::locked_shards::LockedShards;
use super::single::{add_key_phase_to_time, chargeable_units};
use super::{HitLocation, MemoryStore};

impl<C: Clock> MemoryStore<C> {
    /// Decides one call. `locations` are the locations of its counters.
    pub(super) fn decide_call(
        &self,
        hits: &[Hit<'_>],
        locations: &[HitLocation],
        now: Timestamp,
    ) -> ChargeResult {
        if let ([hit], [location]) = (hits, locations) {
            let shard = &mut *self.shards[location.shard].shard.lock();
            return self.decide_single_hit(shard, hit, *location, now).into_charge_result(hit);
        }
        let mut locked_shards = self.lock_shards(locations);
        for shard in locked_shards.shards() {
            self.sweep_if_due(shard, now);
        }
        self.decide_with_locked_shards(&mut locked_shards, hits, locations, now)
    }

    /// Decides one request, whose shards have been locked.
    fn decide_with_locked_shards(
        &self,
        locked_shards: &mut LockedShards<'_>,
        hits: &[Hit<'_>],
        locations: &[HitLocation],
        now: Timestamp,
    ) -> ChargeResult {
        let mut slots: SmallVec<[Option<SlotIndex>; 4]> = SmallVec::new();
        let mut outcomes =
            self.peek_all_hits(locked_shards, hits, locations, now, |slot| slots.push(slot));
        let allowed = admits(hits, &outcomes);
        let mut receipt = Receipt::with_capacity(if allowed { hits.len() } else { 0 });
        let mut have_slots_moved = false;
        let pairs = hits.iter().zip(locations).zip(&mut outcomes);
        for (nth, ((hit, location), outcome)) in pairs.enumerate() {
            if !has_charge(hit, allowed, outcome) {
                continue;
            }
            let hit_index = nth as u32;
            receipt.push(if hit.cost == 0 {
                new_charge_without_units(hit, hit_index, *location)
            } else {
                let shard = locked_shards.shard_of_location(nth);
                with_counter!(hit.limit.counter(), counter => {
                    let slot = if have_slots_moved { shard.find(counter, location.fingerprint) } else { slots[nth] };
                    let counter_now = add_key_phase_to_time(now, location);
                    let units = chargeable_units(shard, counter, slot, (hit, &*outcome), counter_now);
                    let charged = self.charge_slot(shard, counter, slot, units, *location, now);
                    have_slots_moved |= charged.has_moved_slots;
                    *outcome = charged.effect.outcome.charged_after(outcome);
                    new_charge(hit, hit_index, *location, charged.effect.charged_at, units)
                })
            });
        }
        ChargeResult { allowed, outcomes, receipt }
    }

    /// Returns the outcome of each hit under the assumption that the hits before it are charged. Calls `on_slot` with
    /// the slot of each hit's counter.
    pub(super) fn peek_all_hits(
        &self,
        locked_shards: &mut LockedShards<'_>,
        hits: &[Hit<'_>],
        locations: &[HitLocation],
        now: Timestamp,
        mut on_slot: impl FnMut(Option<SlotIndex>),
    ) -> Outcomes {
        let mut outcomes = Outcomes::new();
        for (nth, (hit, location)) in hits.iter().zip(locations).enumerate() {
            let is_same = |earlier: usize| locations[earlier].fingerprint == location.fingerprint;
            let pending = pending_units(&hits[..nth], &outcomes, is_same);
            let required = hit.required.saturating_add(pending);
            let counter_now = add_key_phase_to_time(now, location);
            let shard = locked_shards.shard_of_location(nth);
            outcomes.push(with_counter!(hit.limit.counter(), counter => {
                let slot = shard.find(counter, location.fingerprint);
                on_slot(slot);
                shard.peek_slot(counter, slot, counter_now, required)
            }));
        }
        outcomes
    }

    pub(super) fn locate_hits(
        &self,
        hits: &[Hit<'_>],
        now: Timestamp,
    ) -> SmallVec<[HitLocation; 4]> {
        hits.iter().map(|hit| self.locate_hit(hit, now)).collect()
    }
}

/// Creates the charge of `cost` units for a hit of a call with several hits. `hit_index` is the index of the hit.
#[inline(always)]
fn new_charge(
    hit: &Hit<'_>,
    hit_index: u32,
    location: HitLocation,
    charged_at: Timestamp,
    cost: u64,
) -> Charge {
    Charge {
        counter: CounterId::Fingerprint(location.fingerprint),
        limit: *hit.limit,
        hit_index,
        phase_us: location.phase_us,
        charged_at,
        hit_cost: hit.cost,
        cost,
    }
}

/// Creates the charge of a hit whose cost is 0. The state of its counter is not changed.
#[cold]
fn new_charge_without_units(hit: &Hit<'_>, hit_index: u32, location: HitLocation) -> Charge {
    new_charge(hit, hit_index, location, Timestamp::from_micros(0), 0)
}
