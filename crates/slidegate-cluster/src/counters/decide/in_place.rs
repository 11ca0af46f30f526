//! Decisions in place: one search for the state, which is charged where it is. Most decisions need no more.

use slidegate::store::{CounterId, SingleCharge, SingleChargeResult};
use slidegate::{Hit, Outcome, Timestamp};

use super::super::{CounterLocation, Counters, Freshness, HasStateTable, Shard};
use super::DecisionContext;
use super::charge::mark_key_changed;
use crate::hit_options::HitOptions;

/// The outcome of a hit that was decided in place, and the time of its charge; `None` if it does not fit.
pub(super) type OutcomeInPlace = (Outcome, Option<Timestamp>);

impl Counters {
    /// Decides a hit that is charged only if it fits, if its state alone determines the decision: the state is up to date,
    /// its current bucket has not ended, and the charge does not exceed the maximum of unacknowledged units. Otherwise
    /// returns `None` and changes nothing.
    #[inline(always)]
    pub(super) fn decide_in_place<C: HasStateTable>(
        &self,
        shard: &mut Shard,
        counter: C,
        hit: &Hit<'_>,
        location: &CounterLocation,
        context: DecisionContext,
    ) -> Option<OutcomeInPlace> {
        let slot = C::state_table(&mut shard.states).find_mut(location.fingerprint)?;
        let now = location.to_counter_time(context.now);
        let key_state = &mut slot.state;
        if key_state.freshness == Freshness::Outdated
            || !counter.is_in_current_bucket(&key_state.state, now)
        {
            return None;
        }
        if !context.is_alone
            && self.may_exceed_max_unsynced(hit, key_state.unsynced)
            && counter.peek(&key_state.state, now, hit.cost).fits()
        {
            return None;
        }
        let freshness = key_state.freshness;
        match counter.charge_in_place_if_fits(&mut key_state.state, now, hit.cost)? {
            Ok(effect) => {
                self.update_key_expiry(slot, &effect.outcome, context.now);
                if !context.is_alone {
                    let key_state = &mut slot.state;
                    mark_key_changed(
                        key_state,
                        &mut shard.replicas,
                        location.fingerprint,
                        hit.cost,
                    );
                }
                Some((effect.outcome.charged(), Some(effect.charged_at)))
            }
            // More units than max may be in use.
            Err(_) if freshness == Freshness::UnitsAdded => None,
            Err(outcome) => Some((outcome, None)),
        }
    }

    /// Returns whether a charge may exceed the maximum of unacknowledged units, if at most `unsynced` units are
    /// unacknowledged.
    #[inline(always)]
    fn may_exceed_max_unsynced(&self, hit: &Hit<'_>, unsynced: u32) -> bool {
        unsynced > 0
            && !HitOptions::new(hit).allows_unsynced_units(
                hit.cost.saturating_add(unsynced.into()),
                self.progress.nodes(),
            )
    }
}

/// Returns the result of a hit that was decided in place.
#[inline(always)]
pub(super) fn new_single_result(
    (outcome, charged_at): OutcomeInPlace,
    hit: &Hit<'_>,
    location: &CounterLocation,
) -> SingleChargeResult {
    let charge = charged_at.map(|charged_at| new_single_charge(hit, location, charged_at));
    SingleChargeResult { outcome, charge }
}

/// Creates the charge of a hit at the given time.
#[inline(always)]
pub(super) fn new_single_charge(
    hit: &Hit<'_>,
    location: &CounterLocation,
    charged_at: Timestamp,
) -> SingleCharge {
    let CounterLocation { fingerprint, phase_us, .. } = *location;
    let counter = CounterId::Fingerprint(fingerprint);
    SingleCharge { counter, phase_us, charged_at, hit_cost: hit.cost, cost: hit.cost }
}
