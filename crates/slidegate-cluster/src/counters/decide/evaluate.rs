//! Evaluation of hits: whether they fit, and whether this node may charge them before other nodes have acknowledged
//! earlier charges.

use std::time::Duration;

use slidegate::algorithm::AnyAdditive;
use slidegate::store::table::SlotIndex;
use slidegate::store::{Hit, Outcome, Outcomes, Veto, pending_units};
use slidegate::{StoreError, Timestamp};

use super::super::{CounterLocation, Counters, HasStateTable, LockedShards, Shard, StateFreshness};
use super::{DecisionContext, HitInEvaluation};
use crate::hit_options::HitOptions;
use crate::overshoot::BucketOvershoot;
use crate::replica::KeyReplica;

impl Counters {
    /// Returns two lists. The first contains the outcome of each hit, evaluated as if all earlier hits of the request
    /// were charged. The second contains an entry for each hit that would exceed the maximum of unacknowledged units:
    /// the index of the hit, and the outcome with which it is denied.
    pub(super) fn evaluate_hits(
        &self,
        locked: &mut LockedShards<'_, Shard>,
        hits: &[Hit<'_>],
        locations: &[CounterLocation],
        context: DecisionContext,
    ) -> Result<(Outcomes, Vec<(usize, Outcome)>), StoreError> {
        let mut outcomes = Outcomes::with_capacity(hits.len());
        let mut over_cap = Vec::new();
        for (index, (hit, location)) in hits.iter().zip(locations).enumerate() {
            let is_same = |earlier: usize| locations[earlier].fingerprint == location.fingerprint;
            let pending_units = pending_units(&hits[..index], &outcomes, is_same);
            let required = hit.required.saturating_add(pending_units);
            let pending_hit =
                HitInEvaluation { hit, required, now: location.to_counter_time(context.now) };
            let shard = locked.shard_of_hit(index);
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
        let locations = self.locate_counters(hits, now)?;
        let context = DecisionContext { now, has_no_peers: true };
        Ok(self.evaluate_hits(&mut self.lock_shards(&locations), hits, &locations, context)?.0)
    }

    /// Evaluates one hit. Returns its outcome, and `true` if charging it would exceed the maximum of unacknowledged
    /// units.
    pub(super) fn evaluate_hit<C: HasStateTable>(
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
        if C::state_table(&mut shard.states).slot(slot).state.freshness != StateFreshness::UpToDate
        {
            self.update_state_and_overshoot(shard, counter, slot, location, pending_hit);
        }
        let key_state = &mut C::state_table(&mut shard.states).slot_mut(slot).state;
        let outcome = counter.peek(&key_state.state, pending_hit.now, pending_hit.required);
        let exceeds_max_unsynced_units = key_state.unsynced > 0
            && outcome.fits()
            && !context.has_no_peers
            && pending_hit.hit.veto != Veto::Never
            && (key_state.unsynced == u32::MAX
                || !HitOptions::new(pending_hit.hit).allows_unsynced_units(
                    pending_hit.required.max(1).saturating_add(key_state.unsynced.into()),
                    self.progress.nodes(),
                ))
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
    fn update_state_and_overshoot<C: HasStateTable>(
        &self,
        shard: &mut Shard,
        counter: C,
        slot: SlotIndex,
        location: CounterLocation,
        pending_hit: HitInEvaluation<'_>,
    ) {
        let table = C::state_table(&mut shard.states);
        let key_state = &mut table.slot_mut(slot).state;
        let Some(replica) = shard.replicas.get(location.fingerprint) else {
            key_state.freshness = StateFreshness::UpToDate;
            return;
        };
        if key_state.freshness == StateFreshness::UnitsAdded {
            key_state.freshness = StateFreshness::UpToDate;
        } else if replica.has_unapplied_updates()
            || replica.must_rebuild_for_units_with_future_timestamp(pending_hit.now)
        {
            replica.record_charged_units(counter, &key_state.state);
            // Charges with a later time, made before the clock was set back, count as charges of the present.
            let rebuilt = replica.rebuild_state(counter, pending_hit.now);
            let freshness = if replica.state_has_units_with_future_timestamp() {
                StateFreshness::Outdated
            } else {
                StateFreshness::UpToDate
            };
            let (_, growth_bytes) = table.update(slot, |slot| {
                slot.state.state = rebuilt;
                slot.state.freshness = freshness;
            });
            self.shards.add_bytes(growth_bytes);
        } else {
            return;
        }
        let state = &table.slot(slot).state.state;
        let max = pending_hit.hit.limit.capacity();
        let units = counter.used(state, pending_hit.now).saturating_sub(max);
        let bucket_overshoot =
            BucketOvershoot { bucket: counter.current_bucket(state), units, max };
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
        let unit_lifetime_us = counter.layout().unit_lifetime_us();
        replica.mark_flushes_acknowledged(progress.acknowledged_flush(
            context.now,
            unit_lifetime_us,
            hit_options.on_partition(),
        ));
        let unsynced = replica.unsynced_units(pending_hit.now);
        key_state.unsynced = u32::try_from(unsynced).unwrap_or(u32::MAX);
        // A replica that was removed for lack of memory has lost the acknowledgements. So its units are sent again.
        if replica.has_unsent_units() && !key_state.is_changed {
            key_state.is_changed = true;
            shard.replicas.push_changed_key(location.fingerprint, key_state.kind);
        }
        unsynced > 0
            && !hit_options.allows_unsynced_units(
                pending_hit.required.max(1).saturating_add(unsynced),
                progress.nodes,
            )
    }

    /// Returns the outcome of a hit that is denied because too many units are unacknowledged.
    #[cold]
    pub(super) fn build_max_unsynced_denial_outcome(
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
            wait = if progress.has_silent_member() { until_expiry } else { until_expiry.min(wait) };
        }
        debug_assert!(!context.has_no_peers);
        let free = outcome.free().min(i64::try_from(available).unwrap_or(i64::MAX));
        Outcome::new(free, outcome.reset_after(), Some(wait.max(Duration::from_micros(1))))
    }
}
