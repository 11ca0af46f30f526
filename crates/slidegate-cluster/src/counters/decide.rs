//! Decisions of requests. The shards of a request are locked while the request is evaluated and charged, so that the
//! decision is one atomic step.

mod charge;
mod evaluate;
mod in_place;

use slidegate::internal::{AnyAdditive, SlotIndex};
use slidegate::store::{Charge, ChargeResult, SingleChargeResult, admits, has_charge};
use slidegate::{Hit, StoreError, Timestamp, Veto};
use smallvec::SmallVec;

use super::{CounterLocation, Counters, HasStateTable, LockedShards, Shard, find_locked_shard};

use in_place::{new_single_charge, new_single_result};

/// The result of one attempt to decide a request.
#[derive(Clone, Debug, PartialEq)]
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
    pub fn charge_call(
        &self,
        hits: &[Hit<'_>],
        now: Timestamp,
        cap_policy: CapPolicy,
    ) -> Result<Attempt, StoreError> {
        let [hit] = hits else {
            return self.lock_shards_and_decide_request(hits, now, cap_policy);
        };
        Ok(match self.charge_hit(hit, now, cap_policy)? {
            Some(result) => Attempt::Decided(result.into_charge_result(hit)),
            None => Attempt::Unsynced,
        })
    }

    /// Decides a request with one hit, which is the most frequent request, as [`charge_call`](Self::charge_call) does.
    /// Returns `None` if the call would return [`Attempt::Unsynced`].
    ///
    /// # Errors
    /// Returns [`StoreError::Unsupported`] if the limit cannot be counted by several nodes.
    #[inline(always)]
    pub fn charge_hit(
        &self,
        hit: &Hit<'_>,
        now: Timestamp,
        cap_policy: CapPolicy,
    ) -> Result<Option<SingleChargeResult>, StoreError> {
        let location = self.locate_counter(hit, now)?;
        let shard = &mut *self.shards[location.shard].0.lock();
        self.remove_expired_keys_periodically(shard, now);
        let context = DecisionContext { now, is_alone: self.progress.is_alone(), cap_policy };
        if hit.is_charged_only_if_it_fits() {
            let decided = with_counter!(location.counter, counter => {
                self.decide_in_place(shard, counter, hit, &location, context)
            });
            if let Some(decided) = decided {
                return Ok(Some(new_single_result(decided, hit, &location)));
            }
        }
        self.decide_hit(shard, hit, location, context)
    }

    fn lock_shards_and_decide_request(
        &self,
        hits: &[Hit<'_>],
        now: Timestamp,
        cap_policy: CapPolicy,
    ) -> Result<Attempt, StoreError> {
        let locations = self.locate_counters(hits, now)?;
        let mut locked = self.lock_shards(&locations);
        for (_, shard) in &mut locked {
            self.remove_expired_keys_periodically(shard, now);
        }
        let context = DecisionContext { now, is_alone: self.progress.is_alone(), cap_policy };
        self.decide_request(&mut locked, hits, &locations, context)
    }

    /// Decides a request with one hit that was not [decided in place](Self::decide_in_place). Not inlined, so that a
    /// decision in place needs few registers.
    #[cold]
    #[inline(never)]
    fn decide_hit(
        &self,
        shard: &mut Shard,
        hit: &Hit<'_>,
        location: CounterLocation,
        context: DecisionContext,
    ) -> Result<Option<SingleChargeResult>, StoreError> {
        with_counter!(location.counter, counter => {
            self.decide_hit_of_counter(shard, counter, hit, location, context)
        })
    }

    fn decide_hit_of_counter<C: HasStateTable>(
        &self,
        shard: &mut Shard,
        counter: C,
        hit: &Hit<'_>,
        location: CounterLocation,
        context: DecisionContext,
    ) -> Result<Option<SingleChargeResult>, StoreError> {
        let pending_hit = HitInEvaluation {
            hit,
            required: hit.required,
            now: location.to_counter_time(context.now),
        };
        let slot = self.find_or_restore_state(shard, counter, hit, location, context.now)?;
        let (mut outcome, exceeds_max_unsynced_units) =
            self.evaluate_hit(shard, counter, slot, location, pending_hit, context);
        if exceeds_max_unsynced_units {
            if context.cap_policy == CapPolicy::Wait {
                return Ok(None);
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
        let charge = if !has_charge(hit, allowed, &outcome) {
            None
        } else if hit.cost == 0 {
            Some(new_single_charge(hit, &location, Timestamp::from_micros(0)))
        } else {
            Some(self.charge(shard, counter, slot, location, (hit, &mut outcome), context)?)
        };
        Ok(Some(SingleChargeResult { outcome, charge }))
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
                0 => new_single_charge(hit, location, Timestamp::from_micros(0)),
                _ => {
                    let shard = find_locked_shard(locked, location);
                    with_counter!(location.counter, counter => {
                        let slot = self.find_or_restore_state(shard, counter, hit, *location, context.now)?;
                        self.charge(shard, counter, slot, *location, (hit, outcome), context)?
                    })
                }
            };
            charges.push(Charge { hit_index, ..charge.into_charge(*hit.limit) });
        }
        let receipt = charges.into_iter().collect();
        Ok(Attempt::Decided(ChargeResult { allowed, outcomes, receipt }))
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
}
