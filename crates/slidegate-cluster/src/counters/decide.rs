//! Decisions of requests. The shards of a request are locked while the request is evaluated and charged, so that the
//! decision is one atomic step.

mod charge;
mod evaluate;

use slidegate::algorithm::AnyAdditive;
use slidegate::store::table::SlotIndex;
use slidegate::store::{
    Charge, ChargeResult, CounterId, Hit, Outcomes, Receipt, Veto, admits, has_charge,
};
use slidegate::{StoreError, Timestamp};

use super::{CounterLocation, Counters, HasStateTable, Shard};

/// The result of one attempt to decide a request.
#[derive(Clone, Debug, PartialEq)]
pub enum ChargeAttempt {
    /// The request is decided.
    Decided(ChargeResult),
    /// The request fits its limits, but a charge would exceed this node's maximum of unacknowledged units. Nothing was
    /// charged. A retry may succeed after the other members have acknowledged more units.
    Unsynced,
}

/// The action if a request fits its limits, but a charge would exceed this node's maximum of unacknowledged units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxUnsyncedAction {
    /// Return [`ChargeAttempt::Unsynced`], so that the caller can retry.
    Wait,
    /// Deny the request.
    Deny,
}

/// The inputs of one decision that are common to all of its hits.
#[derive(Clone, Copy)]
struct DecisionContext {
    now: Timestamp,
    /// Whether the cluster has no other members. The flag is read while the shards are locked, so that charges made
    /// before another node joins are part of the state that is sent to that node.
    has_no_peers: bool,
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
    pub fn try_charge_request(
        &self,
        hits: &[Hit<'_>],
        now: Timestamp,
        cap_policy: MaxUnsyncedAction,
    ) -> Result<ChargeAttempt, StoreError> {
        match hits {
            [hit] if hit.is_charged_only_if_it_fits() => self.charge_hit(hit, now, cap_policy),
            hits => self.charge_hits(hits, now, cap_policy),
        }
    }

    /// Decides a request of one hit that is [charged if it fits, and not otherwise](Hit::is_charged_only_if_it_fits), in one
    /// step and without the lists that a request of several hits needs, which take a fifth of the instructions.
    fn charge_hit(
        &self,
        hit: &Hit<'_>,
        now: Timestamp,
        cap_policy: MaxUnsyncedAction,
    ) -> Result<ChargeAttempt, StoreError> {
        let location = self.locate_counter(hit, now)?;
        let shard = &mut *self.shards[location.shard].shard.lock();
        self.shards.sweep_if_due(shard, now);
        let context = DecisionContext { now, has_no_peers: self.progress.has_no_peers() };
        let pending_hit = HitInEvaluation {
            hit,
            required: hit.required,
            now: location.to_counter_time(context.now),
        };
        with_counter!(location.counter, counter => {
            let slot = self.find_or_restore_state(shard, counter, hit, location, context.now)?;
            let (mut outcome, exceeds_max_unsynced_units) =
                self.evaluate_hit(shard, counter, slot, location, pending_hit, context);
            if exceeds_max_unsynced_units {
                if cap_policy == MaxUnsyncedAction::Wait {
                    return Ok(ChargeAttempt::Unsynced);
                }
                outcome = self.build_max_unsynced_denial_outcome(
                    shard,
                    location,
                    pending_hit,
                    &outcome,
                    context,
                );
            }
            let mut receipt = Receipt::default();
            let fits = outcome.fits();
            if fits {
                let charged = (hit, &mut outcome);
                let charged_at = self.charge(shard, counter, slot, location, charged, context)?;
                receipt = Receipt::of_charge(new_charge(hit, 0, location, charged_at));
            }
            let allowed = fits || hit.veto == Veto::Never;
            let outcomes = Outcomes::one(outcome);
            Ok(ChargeAttempt::Decided(ChargeResult { allowed, outcomes, receipt }))
        })
    }

    /// Decides a request of any hits: evaluates all of them, and then charges them.
    fn charge_hits(
        &self,
        hits: &[Hit<'_>],
        now: Timestamp,
        cap_policy: MaxUnsyncedAction,
    ) -> Result<ChargeAttempt, StoreError> {
        let locations = self.locate_counters(hits, now)?;
        let mut locked = self.lock_shards(&locations);
        for shard in locked.iter_mut() {
            self.shards.sweep_if_due(shard, now);
        }
        let context = DecisionContext { now, has_no_peers: self.progress.has_no_peers() };
        let (mut outcomes, over_cap) =
            self.evaluate_hits(&mut locked, hits, &locations, context)?;
        if !over_cap.is_empty() && admits(hits, &outcomes) {
            if cap_policy == MaxUnsyncedAction::Wait {
                return Ok(ChargeAttempt::Unsynced);
            }
            for (index, outcome) in over_cap {
                outcomes[index] = outcome;
            }
        }
        let allowed = admits(hits, &outcomes);
        let mut receipt = Receipt::with_capacity(if allowed { hits.len() } else { 0 });
        for (index, (hit, location)) in hits.iter().zip(&*locations).enumerate() {
            if !has_charge(hits, &outcomes, index, allowed) {
                continue;
            }
            let outcome = &mut outcomes[index];
            let charged_at = if hit.cost == 0 {
                Timestamp::default()
            } else {
                let shard = locked.shard_of_hit(index);
                with_counter!(location.counter, counter => {
                    let slot = self.find_or_restore_state(shard, counter, hit, *location, context.now)?;
                    self.charge(shard, counter, slot, *location, (hit, outcome), context)?
                })
            };
            if hit.charge.block().is_some() {
                continue;
            }
            receipt.push(new_charge(hit, index as u32, *location, charged_at));
        }
        Ok(ChargeAttempt::Decided(ChargeResult { allowed, outcomes, receipt }))
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
            return Ok(Some(self.insert_state::<C>(
                shard,
                (location.fingerprint, hit.key.group()),
                kind,
                now,
            )));
        }
        Ok(slot)
    }
}

/// Creates the charge of a hit. `hit_index` is the index of the hit in its request.
fn new_charge(
    hit: &Hit<'_>,
    hit_index: u32,
    location: CounterLocation,
    charged_at: Timestamp,
) -> Charge {
    let counter = CounterId::Fingerprint(location.fingerprint);
    let uncharged = Charge::without_units(hit, hit_index, counter, location.phase_us);
    Charge { charged_at, cost: hit.cost, ..uncharged }
}
