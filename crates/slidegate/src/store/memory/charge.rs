//! Charges of one hit, which is the usual call, and of several hits, whose shards are locked together.

use smallvec::SmallVec;

use crate::algorithm::{ChargeEffect, with_counter};
use crate::clock::{Clock, Timestamp};
use crate::hit::{Hit, Veto};
use crate::outcome::Outcome;
use crate::store::shards::LockedShards;
use crate::store::table::SlotIndex;
use crate::store::{
    Charge, ChargeResult, CounterId, Outcomes, Receipt, admits, has_charge, outcome_of_charge,
    pending_units,
};

use super::shard::{HasStateTable, Shard};
use super::{HitLocation, MemoryStore};

/// The units of a hit that were charged, and the time at which they are counted.
struct ChargedUnits {
    units: u64,
    charged_at: Timestamp,
}

impl<C: Clock> MemoryStore<C> {
    /// Decides a call of one hit that is [charged if it fits, and not otherwise](Hit::is_charged_only_if_it_fits).
    /// Checks and charges the counter in one step, without the lists that a call of several hits needs.
    #[inline]
    pub(super) fn charge_hit(&self, hit: &Hit<'_>, now: Timestamp) -> ChargeResult {
        let location = self.locate_hit(hit, now);
        let shard = &mut *self.shards[location.shard].shard.lock();
        self.shards.sweep_if_due(shard, now);
        let result = with_counter!(hit.limit.counter_ref(), counter => {
            self.charge_counter_if_fits(shard, *counter, hit, location, now)
        });
        match result {
            Ok((outcome, charged_at)) => {
                let units = ChargedUnits { units: hit.cost, charged_at };
                ChargeResult {
                    allowed: true,
                    outcomes: Outcomes::one(outcome),
                    receipt: Receipt::of_charge(new_charge(hit, 0, location, units)),
                }
            }
            Err(outcome) => ChargeResult {
                allowed: hit.veto == Veto::Never,
                outcomes: Outcomes::one(outcome),
                receipt: Receipt::default(),
            },
        }
    }

    /// Charges the counter of a hit if its cost fits. Returns the outcome, and the time at which the charge is counted.
    ///
    /// # Errors
    /// Returns the outcome if the cost does not fit.
    fn charge_counter_if_fits<K: HasStateTable>(
        &self,
        shard: &mut Shard,
        counter: K,
        hit: &Hit<'_>,
        location: HitLocation,
        now: Timestamp,
    ) -> Result<(Outcome, Timestamp), Outcome> {
        let counter_now = location.to_counter_time(now);
        let coarse = |time| self.to_coarse_expiry(time, location.phase_us);
        let charged =
            shard.charge_if_fits(counter, location.fingerprint, counter_now, hit.cost, coarse);
        let effect = match charged {
            Some(result) => {
                let (effect, grown_bytes) = result?;
                if grown_bytes != 0 {
                    let id = location.fingerprint;
                    self.shards.add_state_growth(shard, id, K::table, grown_bytes, now);
                }
                effect
            }
            None => self.charge_new_or_ahead(shard, counter, hit, location, now)?,
        };
        Ok((effect.outcome.charged(), effect.charged_at))
    }

    /// Charges a counter if its cost fits, as [`charge_counter_if_fits`](Self::charge_counter_if_fits) does: a counter
    /// that does not exist, or whose state must be set back first. Both cases are rare, so they are a separate
    /// function, which keeps the usual case short.
    #[inline(never)]
    fn charge_new_or_ahead<K: HasStateTable>(
        &self,
        shard: &mut Shard,
        counter: K,
        hit: &Hit<'_>,
        location: HitLocation,
        now: Timestamp,
    ) -> Result<ChargeEffect, Outcome> {
        let counter_now = location.to_counter_time(now);
        let slot = self.find_and_set_back(shard, counter, location, now);
        let outcome = shard.peek_slot(counter, slot, counter_now, hit.cost);
        if !outcome.fits() {
            return Err(outcome);
        }
        let id = (location.fingerprint, hit.key.group());
        let slot = slot.unwrap_or_else(|| self.shards.insert(shard, id, K::table, now));
        let coarse = |time| self.to_coarse_expiry(time, location.phase_us);
        let (effect, grown_bytes) = shard.charge(counter, slot, counter_now, hit.cost, coarse);
        self.shards.add_state_growth(shard, location.fingerprint, K::table, grown_bytes, now);
        Ok(effect)
    }

    /// Decides a call of any hits: evaluates all of them, and then charges them.
    pub(super) fn charge_hits(&self, hits: &[Hit<'_>], now: Timestamp) -> ChargeResult {
        let locations = self.locate_hits(hits, now);
        let mut locked_shards = self.lock_shards(&locations);
        for shard in locked_shards.iter_mut() {
            self.shards.sweep_if_due(shard, now);
        }
        let (mut outcomes, mut slots) = self.peek_hits(&mut locked_shards, hits, &locations, now);
        let allowed = admits(hits, &outcomes);
        let mut receipt = Receipt::with_capacity(if allowed { hits.len() } else { 0 });
        let mut have_slots_moved = false;
        for (nth, (hit, location)) in hits.iter().zip(&locations).enumerate() {
            if !has_charge(hits, &outcomes, nth, allowed) {
                continue;
            }
            let outcome = &mut outcomes[nth];
            let mut charged = ChargedUnits { units: 0, charged_at: Timestamp::default() };
            if hit.cost > 0 {
                let shard = locked_shards.shard_of_hit(nth);
                with_counter!(hit.limit.counter(), counter => {
                    if have_slots_moved {
                        slots[nth] = shard.find(counter, location.fingerprint);
                    }
                    let before = *outcome;
                    let moved;
                    (*outcome, charged, moved) =
                        self.charge_slot(shard, counter, slots[nth], (hit, before), *location, now);
                    have_slots_moved |= moved;
                });
            }
            if hit.charge.block().is_none() {
                receipt.push(new_charge(hit, nth as u32, *location, charged));
            }
        }
        ChargeResult { allowed, outcomes, receipt }
    }

    /// Returns the outcome of each hit under the assumption that the hits before it are charged, and the slot of its
    /// counter.
    pub(super) fn peek_hits(
        &self,
        locked_shards: &mut LockedShards<'_, Shard>,
        hits: &[Hit<'_>],
        locations: &[HitLocation],
        now: Timestamp,
    ) -> (Outcomes, SmallVec<[Option<SlotIndex>; 4]>) {
        let (mut outcomes, mut slots) = (Outcomes::with_capacity(hits.len()), SmallVec::new());
        for (nth, (hit, location)) in hits.iter().zip(locations).enumerate() {
            let is_same = |earlier: usize| locations[earlier].fingerprint == location.fingerprint;
            let pending = pending_units(&hits[..nth], &outcomes, is_same);
            let required = hit.required.saturating_add(pending);
            let shard = locked_shards.shard_of_hit(nth);
            outcomes.push(with_counter!(hit.limit.counter(), counter => {
                let slot = self.find_and_set_back(shard, counter, *location, now);
                slots.push(slot);
                shard.peek_slot(counter, slot, location.to_counter_time(now), required)
            }));
        }
        (outcomes, slots)
    }

    /// Returns the slot of a counter, whose state is set back if it is ahead of `now`.
    pub(super) fn find_and_set_back<K: HasStateTable>(
        &self,
        shard: &mut Shard,
        counter: K,
        location: HitLocation,
        now: Timestamp,
    ) -> Option<SlotIndex> {
        let slot = shard.find(counter, location.fingerprint)?;
        let coarse = |time| self.to_coarse_expiry(time, location.phase_us);
        let counter_now = location.to_counter_time(now);
        self.shards.add_bytes(shard.set_back_if_ahead(counter, slot, counter_now, coarse));
        Some(slot)
    }

    /// Charges a hit to the state in a slot, or to the state of a new key if `slot` is `None`. `before` is the outcome of
    /// the hit. Returns the outcome after the charge, the charged units, and whether slots may have moved, because keys were
    /// inserted or evicted.
    fn charge_slot<K: HasStateTable>(
        &self,
        shard: &mut Shard,
        counter: K,
        slot: Option<SlotIndex>,
        (hit, before): (&Hit<'_>, Outcome),
        location: HitLocation,
        now: Timestamp,
    ) -> (Outcome, ChargedUnits, bool) {
        let counter_now = location.to_counter_time(now);
        // A cost that fits causes no debt, so it need not be limited.
        let units = if before.fits() && hit.cost <= hit.required {
            hit.cost
        } else {
            shard.chargeable_units(counter, slot, counter_now, hit.cost)
        };
        let is_new = slot.is_none();
        let id = (location.fingerprint, hit.key.group());
        let slot = slot.unwrap_or_else(|| self.shards.insert(shard, id, K::table, now));
        let coarse = |time| self.to_coarse_expiry(time, location.phase_us);
        let (effect, grown_bytes) = shard.charge(counter, slot, counter_now, units, coarse);
        let has_moved_slots = is_new || grown_bytes != 0;
        if has_moved_slots {
            self.shards.add_state_growth(shard, location.fingerprint, K::table, grown_bytes, now);
        }
        let charged = ChargedUnits { units, charged_at: effect.charged_at };
        (outcome_of_charge(hit, &before, effect.outcome), charged, has_moved_slots)
    }

    pub(super) fn locate_hits(
        &self,
        hits: &[Hit<'_>],
        now: Timestamp,
    ) -> SmallVec<[HitLocation; 4]> {
        hits.iter().map(|hit| self.locate_hit(hit, now)).collect()
    }
}

/// Creates the charge of a hit. `hit_index` is the index of the hit in its call.
#[inline]
fn new_charge(
    hit: &Hit<'_>,
    hit_index: u32,
    location: HitLocation,
    ChargedUnits { units, charged_at }: ChargedUnits,
) -> Charge {
    Charge {
        counter: CounterId::Fingerprint(location.fingerprint),
        limit: *hit.limit,
        hit_index,
        phase_us: location.phase_us,
        charged_at,
        hit_cost: hit.cost,
        cost: units,
    }
}
