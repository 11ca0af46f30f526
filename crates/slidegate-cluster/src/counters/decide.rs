//! Decisions of requests. The shards of a request are locked while the request is evaluated and charged, so that the
//! decision is one atomic step.

use std::time::Duration;

use slidegate::internal::AnyAdditive;
use slidegate::internal::{Slot, SlotIndex};
use slidegate::store::{
    Charge, ChargeResult, CounterId, Outcomes, Receipt, admits, has_charge, pending_units,
};
use slidegate::{Hit, Outcome, StoreError, Timestamp, Veto};
use smallvec::SmallVec;

use super::{
    CounterKindId, CounterLocation, Counters, HasStateTable, KeyState, LockedShards, Shard,
    find_locked_shard,
};
use crate::hit_options::HitOptions;
use crate::overshoot::BucketOvershoot;
use crate::replica::KeyReplica;

/// The result of one attempt to decide a request.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation in each decision")]
pub enum Attempt {
    /// The request is decided.
    Decided(ChargeResult),
    /// The request fits its limits, but a charge would exceed this node's maximum of unacknowledged units. Nothing was
    /// charged. A retry may succeed after the other members have acknowledged more units.
    Unsynced,
}

/// The action if a request fits its limits, but a charge would exceed this node's maximum of unacknowledged units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapPolicy {
    /// Return [`Attempt::Unsynced`], so that the caller can retry.
    Wait,
    /// Deny the request.
    Deny,
}

/// The inputs of one decision that are common to all of its hits: the current time, whether the cluster has other
/// members, and the [`CapPolicy`].
#[derive(Clone, Copy)]
struct DecisionContext {
    now: Timestamp,
    /// Whether the cluster has no other members. The flag is read while the shards are locked, so that charges made
    /// before another node joins are part of the state that is sent to that node.
    is_alone: bool,
    cap_policy: CapPolicy,
}

/// A hit that is being evaluated, with the number of units that must be available in its limit, and the current time
/// according to its counter.
#[derive(Clone, Copy)]
struct HitInEvaluation<'a> {
    hit: &'a Hit<'a>,
    required: u64,
    now: Timestamp,
}

impl Counters {
    /// Decides one request, and charges its hits if it is allowed. Charges nothing if a charge would exceed this node's
    /// maximum of unacknowledged units.
    ///
    /// # Errors
    /// Returns [`StoreError::Unsupported`] if one of the limits cannot be counted by several nodes.
    #[inline(always)]
    pub fn charge_call(
        &self,
        hits: &[Hit<'_>],
        now: Timestamp,
        cap_policy: CapPolicy,
    ) -> Result<Attempt, StoreError> {
        if let [hit] = hits {
            let location = self.locate_counter(hit)?;
            let shard = &mut *self.shards[location.shard].0.lock();
            self.remove_expired_keys_periodically(shard, now);
            let context = DecisionContext { now, is_alone: self.progress.is_alone(), cap_policy };
            return with_counter!(location.counter, counter => {
                self.decide_single_hit(shard, counter, hit, location, context)
            });
        }
        self.lock_shards_and_decide_request(hits, now, cap_policy)
    }

    fn lock_shards_and_decide_request(
        &self,
        hits: &[Hit<'_>],
        now: Timestamp,
        cap_policy: CapPolicy,
    ) -> Result<Attempt, StoreError> {
        let locations = self.locate_counters(hits)?;
        let mut locked = self.lock_shards(&locations);
        for (_, shard) in &mut locked {
            self.remove_expired_keys_periodically(shard, now);
        }
        let context = DecisionContext { now, is_alone: self.progress.is_alone(), cap_policy };
        self.decide_request(&mut locked, hits, &locations, context)
    }

    /// Decides a request with one hit, which is the most frequent case, with a single table lookup.
    #[inline(always)]
    fn decide_single_hit<C: HasStateTable>(
        &self,
        shard: &mut Shard,
        counter: C,
        hit: &Hit<'_>,
        location: CounterLocation,
        context: DecisionContext,
    ) -> Result<Attempt, StoreError> {
        let pending_hit = HitInEvaluation {
            hit,
            required: hit.required,
            now: location.to_counter_time(context.now),
        };
        let slot = self.find_or_restore_state(shard, counter, hit, location, context.now)?;
        if let Some(slot) = slot
            && self.is_usual_hit(shard, counter, slot, pending_hit, context)
        {
            let result =
                self.charge_state_if_hit_fits(shard, counter, slot, hit, location, context);
            return Ok(Attempt::Decided(result));
        }
        let (mut outcome, exceeds_max_unsynced_units) =
            self.evaluate_hit(shard, counter, slot, location, pending_hit, context);
        if exceeds_max_unsynced_units {
            if context.cap_policy == CapPolicy::Wait {
                return Ok(Attempt::Unsynced);
            }
            outcome = self.build_max_unsynced_denial_outcome(
                shard,
                location,
                pending_hit,
                &outcome,
                context,
            );
        }
        let allowed = outcome.fits() || hit.veto == Veto::Never;
        let charge = match has_charge(hit, allowed, &outcome) {
            true if hit.cost == 0 => Some(new_charge_without_units(hit, location)),
            true => {
                Some(self.charge(shard, counter, slot, location, (hit, &mut outcome), context)?)
            }
            false => None,
        };
        let receipt = charge.into_iter().collect();
        let outcomes = Outcomes::of_one(outcome);
        Ok(Attempt::Decided(ChargeResult { allowed, outcomes, receipt }))
    }

    /// Returns whether a hit can be decided by its state alone: the state is up to date, its current bucket has not
    /// ended, a charge does not exceed the maximum of unacknowledged units, and the hit is charged only if it fits.
    #[inline(always)]
    fn is_usual_hit<C: HasStateTable>(
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
    fn charge_state_if_hit_fits<C: HasStateTable>(
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
            self.count_key_growth_and_evict_other_keys::<C>(
                shard,
                location.fingerprint,
                growth_bytes,
                context.now,
            );
        }
        let charge = new_charge(hit, location, charged.charged_at);
        let outcomes = Outcomes::of_one(charged.outcome.charged());
        ChargeResult { allowed: true, outcomes, receipt: Receipt::from_iter([charge]) }
    }

    /// Decides one request. The caller has locked the shards of all hits.
    fn decide_request(
        &self,
        locked: &mut LockedShards<'_>,
        hits: &[Hit<'_>],
        locations: &[CounterLocation],
        context: DecisionContext,
    ) -> Result<Attempt, StoreError> {
        let (mut outcomes, over_cap) = self.evaluate_hits(locked, hits, locations, context)?;
        if !over_cap.is_empty() && admits(hits, &outcomes) {
            if context.cap_policy == CapPolicy::Wait {
                return Ok(Attempt::Unsynced);
            }
            for (index, outcome) in over_cap {
                outcomes[index] = outcome;
            }
        }
        let allowed = admits(hits, &outcomes);
        let mut charges = SmallVec::<[Charge; 4]>::new();
        for (hit_index, ((hit, location), outcome)) in
            (0..).zip(hits.iter().zip(locations).zip(&mut outcomes))
        {
            if !has_charge(hit, allowed, outcome) {
                continue;
            }
            let charge = match hit.cost {
                0 => new_charge_without_units(hit, *location),
                _ => {
                    let shard = find_locked_shard(locked, location);
                    with_counter!(location.counter, counter => {
                        let slot = self.find_or_restore_state(shard, counter, hit, *location, context.now)?;
                        self.charge(shard, counter, slot, *location, (hit, outcome), context)?
                    })
                }
            };
            charges.push(Charge { hit_index, ..charge });
        }
        let receipt = charges.into_iter().collect();
        Ok(Attempt::Decided(ChargeResult { allowed, outcomes, receipt }))
    }

    /// Returns two lists. The first contains the outcome of each hit, evaluated as if all earlier hits of the request
    /// were charged. The second contains an entry for each hit that would exceed the maximum of unacknowledged units:
    /// the index of the hit, and the outcome with which it is denied.
    #[expect(clippy::type_complexity, reason = "both are lists by index")]
    fn evaluate_hits(
        &self,
        locked: &mut LockedShards<'_>,
        hits: &[Hit<'_>],
        locations: &[CounterLocation],
        context: DecisionContext,
    ) -> Result<(Outcomes, SmallVec<[(usize, Outcome); 1]>), StoreError> {
        let mut outcomes = Outcomes::new();
        let mut over_cap = SmallVec::new();
        for (index, (hit, location)) in hits.iter().zip(locations).enumerate() {
            let is_same = |earlier: usize| locations[earlier].fingerprint == location.fingerprint;
            let pending_units = pending_units(&hits[..index], &outcomes, is_same);
            let required = hit.required.saturating_add(pending_units);
            let pending_hit =
                HitInEvaluation { hit, required, now: location.to_counter_time(context.now) };
            let shard = find_locked_shard(locked, location);
            let (outcome, exceeds_max_unsynced_units) = with_counter!(location.counter, counter => {
                let slot = self.find_or_restore_state(shard, counter, hit, *location, context.now)?;
                self.evaluate_hit(shard, counter, slot, *location, pending_hit, context)
            });
            if exceeds_max_unsynced_units {
                over_cap.push((
                    index,
                    self.build_max_unsynced_denial_outcome(
                        shard,
                        *location,
                        pending_hit,
                        &outcome,
                        context,
                    ),
                ));
            }
            outcomes.push(outcome);
        }
        Ok((outcomes, over_cap))
    }

    /// Returns the outcomes of the hits without charging them.
    ///
    /// # Errors
    /// Returns [`StoreError::Unsupported`] if one of the limits cannot be counted by several nodes.
    pub fn peek(&self, hits: &[Hit<'_>], now: Timestamp) -> Result<Outcomes, StoreError> {
        let locations = self.locate_counters(hits)?;
        let context = DecisionContext { now, is_alone: true, cap_policy: CapPolicy::Deny };
        Ok(self.evaluate_hits(&mut self.lock_shards(&locations), hits, &locations, context)?.0)
    }

    /// Returns the table slot of a key's state. Creates the state if the key has only a replica, because other nodes
    /// have sent updates of the key. Returns `None` if the key has neither a state nor a replica.
    #[inline(always)]
    pub(super) fn find_or_restore_state<C: HasStateTable>(
        &self,
        shard: &mut Shard,
        _: C,
        hit: &Hit<'_>,
        location: CounterLocation,
        now: Timestamp,
    ) -> Result<Option<SlotIndex>, StoreError> {
        let slot = C::state_table(&mut shard.states).find(location.fingerprint);
        if slot.is_none()
            && !shard.replicas.is_empty()
            && shard.replicas.get(location.fingerprint).is_some()
        {
            let kind = self.kinds.get_or_register_kind(hit, location.counter)?;
            return Ok(Some(self.insert_state::<C>(shard, location.fingerprint, kind, now)));
        }
        Ok(slot)
    }

    /// Evaluates one hit. Returns its outcome, and `true` if charging it would exceed the maximum of unacknowledged
    /// units.
    #[inline(always)]
    fn evaluate_hit<C: HasStateTable>(
        &self,
        shard: &mut Shard,
        counter: C,
        slot: Option<SlotIndex>,
        location: CounterLocation,
        pending_hit: HitInEvaluation<'_>,
        context: DecisionContext,
    ) -> (Outcome, bool) {
        let Some(slot) = slot else {
            return (
                counter.peek(&C::State::default(), pending_hit.now, pending_hit.required),
                false,
            );
        };
        if C::state_table(&mut shard.states).slot(slot).state.is_stale {
            self.rebuild_outdated_state(shard, counter, slot, location, pending_hit);
        }
        let key_state = &mut C::state_table(&mut shard.states).slot_mut(slot).state;
        let outcome = counter.peek(&key_state.state, pending_hit.now, pending_hit.required);
        let exceeds_max_unsynced_units = key_state.unsynced > 0
            && outcome.fits()
            && !context.is_alone
            && pending_hit.hit.veto != Veto::Never
            && !HitOptions::new(pending_hit.hit).allows_unsynced_units(
                pending_hit.required.max(1).saturating_add(key_state.unsynced.into()),
                self.progress.nodes(),
            )
            && self.exceeds_max_unsynced_units(
                shard,
                counter,
                slot,
                location,
                pending_hit,
                context,
            );
        (outcome, exceeds_max_unsynced_units)
    }

    /// Rebuilds the state of a key from its replica if the state is outdated. A state is outdated if the replica
    /// contains updates that the state lacks, or if the time of units with a future timestamp may have arrived. Also
    /// records the overshoot of the key.
    #[cold]
    fn rebuild_outdated_state<C: HasStateTable>(
        &self,
        shard: &mut Shard,
        counter: C,
        slot: SlotIndex,
        location: CounterLocation,
        pending_hit: HitInEvaluation<'_>,
    ) {
        let key_state = &mut C::state_table(&mut shard.states).slot_mut(slot).state;
        let Some(replica) = shard.replicas.get(location.fingerprint) else {
            key_state.is_stale = false;
            return;
        };
        if !replica.has_unapplied_updates()
            && !replica.must_rebuild_for_units_with_future_timestamp(pending_hit.now)
        {
            return;
        }
        replica.record_charged_units(counter, &key_state.state);
        let last_charged_at = counter.last_charged_at(&key_state.state).max(pending_hit.now);
        let rebuilt = replica.rebuild_state(counter, last_charged_at);
        let is_stale = replica.state_has_units_with_future_timestamp();
        let table = C::state_table(&mut shard.states);
        let (_, growth_bytes) = table.update(slot, |slot| {
            slot.state.state = rebuilt;
            slot.state.is_stale = is_stale;
        });
        self.add_to_state_bytes(growth_bytes);
        let key_state = &table.slot(slot).state;
        let max = pending_hit.hit.limit.capacity();
        let units = counter.used(&key_state.state, pending_hit.now).saturating_sub(max);
        let bucket_overshoot =
            BucketOvershoot { bucket: counter.current_bucket(&key_state.state), units, max };
        if let Some(ended) = replica.update_bucket_overshoot(bucket_overshoot) {
            self.overshoot.record_bucket_overshoot(&ended);
        }
    }

    /// Returns `true` if a charge would exceed the maximum of unacknowledged units. Computes the exact number of these
    /// units from the replica of the key and the latest acknowledgements.
    #[cold]
    fn exceeds_max_unsynced_units<C: HasStateTable>(
        &self,
        shard: &mut Shard,
        counter: C,
        slot: SlotIndex,
        location: CounterLocation,
        pending_hit: HitInEvaluation<'_>,
        context: DecisionContext,
    ) -> bool {
        let hit_options = HitOptions::new(pending_hit.hit);
        let key_state = &mut C::state_table(&mut shard.states).slot_mut(slot).state;
        let replica = shard
            .replicas
            .get_or_insert_with(location.fingerprint, || KeyReplica::new(counter.layout()));
        replica.record_charged_units(counter, &key_state.state);
        let progress = self.progress.load();
        let lifetime_us = counter.layout().lifetime_us();
        replica.mark_flushes_acknowledged(progress.acknowledged_flush(
            context.now,
            lifetime_us,
            hit_options.on_partition(),
        ));
        let unsynced = replica.unsynced_units(pending_hit.now);
        key_state.unsynced = u32::try_from(unsynced).unwrap_or(u32::MAX);
        unsynced > 0
            && !hit_options.allows_unsynced_units(
                pending_hit.required.max(1).saturating_add(unsynced),
                progress.nodes,
            )
    }

    /// Charges a hit to the state in `slot`, or to a new state if `slot` is `None`. Sets `outcome` to the status of the
    /// limit after the charge.
    #[inline(always)]
    fn charge<C: HasStateTable>(
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
            self.count_key_growth_and_evict_other_keys::<C>(
                shard,
                location.fingerprint,
                growth_bytes,
                context.now,
            );
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

    /// Returns the outcome of a hit that is denied because too many units are unacknowledged.
    #[cold]
    fn build_max_unsynced_denial_outcome(
        &self,
        shard: &mut Shard,
        location: CounterLocation,
        pending_hit: HitInEvaluation<'_>,
        outcome: &Outcome,
        context: DecisionContext,
    ) -> Outcome {
        let progress = self.progress.load();
        let max_unsynced = HitOptions::new(pending_hit.hit).max_unsynced(progress.nodes);
        let cost = pending_hit.required.max(1);
        let (mut available, mut wait) = (0, self.sync_interval);
        if let Some(replica) = shard.replicas.get(location.fingerprint) {
            available =
                max_unsynced.saturating_sub(replica.unsynced_units(pending_hit.now)).min(cost - 1);
            let until_expiry = Duration::from_micros(replica.micros_until_unsynced_units_expire(
                max_unsynced.saturating_sub(cost),
                pending_hit.now,
            ));
            wait = if progress.has_silent() { until_expiry } else { until_expiry.min(wait) };
        }
        debug_assert!(!context.is_alone);
        let remaining = u32::try_from(available.min(outcome.remaining())).unwrap_or(u32::MAX);
        Outcome::new(remaining, outcome.reset_after(), Some(wait.max(Duration::from_micros(1))))
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
fn new_charge_without_units(hit: &Hit<'_>, location: CounterLocation) -> Charge {
    new_charge(hit, location, Timestamp::from_micros(0))
}
