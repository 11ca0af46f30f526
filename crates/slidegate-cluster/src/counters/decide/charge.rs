//! Charges of hits to the states of their keys.

use slidegate::internal::{Slot, SlotIndex};
use slidegate::store::{Charge, ChargeResult, CounterId, Outcomes, Receipt};
use slidegate::{Hit, Outcome, StoreError, Timestamp, Veto};

use super::super::{CounterKindId, CounterLocation, Counters, HasStateTable, KeyState, Shard};
use super::{DecisionContext, HitInEvaluation};
use crate::hit_options::HitOptions;

impl Counters {
    /// Returns whether a hit can be decided by its state alone: the state is up to date, its current bucket has not
    /// ended, a charge does not exceed the maximum of unacknowledged units, and the hit is charged only if it fits.
    #[inline(always)]
    pub(super) fn is_usual_hit<C: HasStateTable>(
        &self,
        shard: &mut Shard,
        counter: C,
        slot: SlotIndex,
        pending_hit: HitInEvaluation<'_>,
        context: DecisionContext,
    ) -> bool {
        let HitInEvaluation { hit, required, now } = pending_hit;
        let key_state = &C::state_table(&mut shard.states).slot(slot).state;
        let bucket_us = counter.layout().bucket_us;
        let bucket_ends_us =
            (counter.current_bucket(&key_state.state) + 1).saturating_mul(bucket_us);
        hit.is_charged_only_if_it_fits()
            && !key_state.is_stale
            && now.as_micros() < bucket_ends_us
            && (context.is_alone
                || key_state.unsynced == 0
                || HitOptions::new(hit).allows_unsynced_units(
                    required.saturating_add(key_state.unsynced.into()),
                    self.progress.nodes(),
                ))
    }

    /// Charges a state if a [usual hit](Self::is_usual_hit) fits.
    #[inline(always)]
    pub(super) fn charge_state_if_hit_fits<C: HasStateTable>(
        &self,
        shard: &mut Shard,
        counter: C,
        slot: SlotIndex,
        hit: &Hit<'_>,
        location: CounterLocation,
        context: DecisionContext,
    ) -> ChargeResult {
        let now = location.to_counter_time(context.now);
        let (charged, growth_bytes) = C::state_table(&mut shard.states).update(slot, |slot| {
            let charged = counter.charge_if_fits(&mut slot.state.state, now, hit.cost)?;
            self.update_key_expiry(slot, &charged.outcome, context.now);
            Ok(charged)
        });
        let charged = match charged {
            Ok(charged) => charged,
            Err(outcome) => {
                let allowed = hit.veto == Veto::Never;
                let outcomes = Outcomes::of_one(outcome);
                return ChargeResult { allowed, outcomes, receipt: Receipt::default() };
            }
        };
        if !context.is_alone {
            mark_key_changed::<C>(shard, slot, location, hit.cost);
        }
        if growth_bytes != 0 {
            let key = location.fingerprint;
            self.count_growth_and_evict_others::<C>(shard, key, growth_bytes, context.now);
        }
        let charge = new_charge(hit, location, charged.charged_at);
        let outcomes = Outcomes::of_one(charged.outcome.charged());
        ChargeResult { allowed: true, outcomes, receipt: Receipt::from_iter([charge]) }
    }

    /// Charges a hit to the state in `slot`, or to a new state if `slot` is `None`. Sets `outcome` to the status of the
    /// limit after the charge.
    #[inline(always)]
    pub(super) fn charge<C: HasStateTable>(
        &self,
        shard: &mut Shard,
        counter: C,
        slot: Option<SlotIndex>,
        location: CounterLocation,
        (hit, outcome): (&Hit<'_>, &mut Outcome),
        context: DecisionContext,
    ) -> Result<Charge, StoreError> {
        let now = location.to_counter_time(context.now);
        let slot = match slot {
            Some(slot) => {
                self.copy_ended_bucket_to_replica(shard, counter, slot, location, now);
                slot
            }
            None => {
                let kind = self.kinds.get_or_register_kind(hit, location.counter)?;
                self.insert_state::<C>(shard, location.fingerprint, kind, context.now)
            }
        };
        if !context.is_alone {
            mark_key_changed::<C>(shard, slot, location, hit.cost);
        }
        let (charged, growth_bytes) = C::state_table(&mut shard.states).update(slot, |slot| {
            let charged = counter.charge(&mut slot.state.state, now, hit.cost);
            self.update_key_expiry(slot, &charged.outcome, context.now);
            charged
        });
        if growth_bytes != 0 {
            let key = location.fingerprint;
            self.count_growth_and_evict_others::<C>(shard, key, growth_bytes, context.now);
        }
        *outcome = charged.outcome.charged_after(outcome);
        Ok(new_charge(hit, location, charged.charged_at))
    }

    /// Copies the charges of a state to its replica if the current bucket of the state has ended. The next charge then
    /// begins a new bucket, and may remove an old bucket from the state. The replica keeps the units of the old bucket,
    /// since a node whose clock is behind may still need them.
    #[inline(always)]
    fn copy_ended_bucket_to_replica<C: HasStateTable>(
        &self,
        shard: &mut Shard,
        counter: C,
        slot: SlotIndex,
        location: CounterLocation,
        now: Timestamp,
    ) {
        let state = &C::state_table(&mut shard.states).slot(slot).state.state;
        let (current_bucket, bucket_us) =
            (counter.current_bucket(state), counter.layout().bucket_us);
        let (ends_us, now_us) = ((current_bucket + 1).saturating_mul(bucket_us), now.as_micros());
        if now_us >= ends_us {
            let bucket_expires_us = counter.layout().bucket_expires_us(current_bucket);
            if bucket_expires_us.saturating_add(self.max_clock_skew_us) > now_us {
                Self::copy_charges_to_replica(shard, counter, location.fingerprint);
            }
        }
    }

    /// Updates the time at which a key expires, and the time until which it is denied.
    #[inline]
    fn update_key_expiry<S>(&self, slot: &mut Slot<KeyState<S>>, after: &Outcome, now: Timestamp) {
        let coarse =
            |us: u64| self.to_coarse_time(now.as_micros().saturating_add(us)).saturating_add(1);
        let expires = coarse(after.reset_after_us().saturating_add(self.max_clock_skew_us));
        slot.expires = expires.max(slot.expires);
        slot.denied_until = match after.fits() {
            true => 0,
            false => coarse(after.retry_after_us().min(after.reset_after_us())),
        };
    }
}

/// Marks a key that is charged as changed, and adds the cost of the charge to the unacknowledged units of
/// the key.
#[inline(always)]
fn mark_key_changed<C: HasStateTable>(
    shard: &mut Shard,
    slot: SlotIndex,
    location: CounterLocation,
    cost: u64,
) {
    let key_state = &mut C::state_table(&mut shard.states).slot_mut(slot).state;
    key_state.unsynced = key_state.unsynced.saturating_add(u32::try_from(cost).unwrap_or(u32::MAX));
    if !key_state.is_changed {
        key_state.is_changed = true;
        let kind: CounterKindId = key_state.kind;
        shard.replicas.push_changed_key(location.fingerprint, kind);
    }
}

/// Creates the charge of a hit. Its `hit_index` is 0; the caller sets it if the call has several hits.
fn new_charge(hit: &Hit<'_>, location: CounterLocation, charged_at: Timestamp) -> Charge {
    let CounterLocation { fingerprint, phase_us, .. } = location;
    let (counter, cost) = (CounterId::Fingerprint(fingerprint), hit.cost);
    Charge { counter, limit: *hit.limit, hit_index: 0, phase_us, charged_at, hit_cost: cost, cost }
}

/// Creates the charge of a hit whose cost is 0. The state of its counter is not changed.
#[cold]
pub(super) fn new_charge_without_units(hit: &Hit<'_>, location: CounterLocation) -> Charge {
    new_charge(hit, location, Timestamp::from_micros(0))
}
