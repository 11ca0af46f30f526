//! Charges of hits to the states of their keys.

use slidegate::store::table::{Slot, SlotIndex, depletion};
use slidegate::store::{Hit, Outcome, outcome_of_charge};
use slidegate::{StoreError, Timestamp};

use super::super::{CounterLocation, Counters, HasStateTable, KeyState, Shard, ShardReplicas};
use super::DecisionContext;

impl Counters {
    /// Charges a hit to the state in `slot`, or to a new state if `slot` is `None`. Sets `outcome` to the status of the
    /// limit after the charge. Returns the time at which the charge is counted.
    pub(super) fn charge<C: HasStateTable>(
        &self,
        shard: &mut Shard,
        counter: C,
        slot: Option<SlotIndex>,
        location: CounterLocation,
        (hit, outcome): (&Hit<'_>, &mut Outcome),
        context: DecisionContext,
    ) -> Result<Timestamp, StoreError> {
        let now = location.to_counter_time(context.now);
        let slot = match slot {
            Some(slot) => {
                self.copy_ended_bucket_to_replica(shard, counter, slot, location, now);
                slot
            }
            None => {
                let kind = self.kinds.get_or_register_kind(hit, location.counter)?;
                self.insert_state::<C>(
                    shard,
                    (location.fingerprint, hit.key.group()),
                    kind,
                    context.now,
                )
            }
        };
        if !context.has_no_peers {
            let key_state = &mut C::state_table(&mut shard.states).slot_mut(slot).state;
            mark_key_changed(key_state, &mut shard.replicas, location.fingerprint, hit.cost);
        }
        let (charged, growth_bytes) = C::state_table(&mut shard.states).update(slot, |slot| {
            let charged = counter.charge(&mut slot.state.state, now, hit.cost);
            self.update_key_expiry(slot, counter.capacity(), &charged.outcome, context.now);
            charged
        });
        if growth_bytes != 0 {
            let key = location.fingerprint;
            self.shards.add_state_growth(shard, key, C::table, growth_bytes, context.now);
        }
        *outcome = outcome_of_charge(hit, outcome, charged.outcome);
        Ok(charged.charged_at)
    }

    /// Copies the charges of a state to its replica if the current bucket of the state has ended. The next charge then
    /// begins a new bucket, and may remove an old bucket from the state. The replica keeps the units of the old bucket,
    /// since a node whose clock is behind may still need them.
    fn copy_ended_bucket_to_replica<C: HasStateTable>(
        &self,
        shard: &mut Shard,
        counter: C,
        slot: SlotIndex,
        location: CounterLocation,
        now: Timestamp,
    ) {
        let state = &C::state_table(&mut shard.states).slot(slot).state.state;
        if counter.is_in_current_bucket(state, now) {
            return;
        }
        let expires_us = counter.layout().bucket_expires_us(counter.current_bucket(state));
        if expires_us.saturating_add(self.max_clock_skew_us) > now.as_micros() {
            Self::copy_charges_to_replica(shard, counter, location.fingerprint);
        }
    }

    /// Updates the time at which a key expires, and its depletion: how few units remain. Both decide when the key is
    /// evicted.
    #[inline(always)]
    pub(super) fn update_key_expiry<S>(
        &self,
        slot: &mut Slot<KeyState<S>>,
        capacity: u64,
        after: &Outcome,
        now: Timestamp,
    ) {
        let expires_after_us = after.reset_after_us().saturating_add(self.max_clock_skew_us);
        let expires_us = now.as_micros().saturating_add(expires_after_us);
        let expires = self.shards.to_coarse_expiry(Timestamp::from_micros(expires_us));
        slot.expires = expires.max(slot.expires);
        slot.depletion = depletion(after, capacity);
    }
}

/// Marks a key that is charged as changed, and adds the cost of the charge to the unacknowledged units of the key.
#[inline(always)]
pub(super) fn mark_key_changed<S>(
    key_state: &mut KeyState<S>,
    replicas: &mut ShardReplicas,
    key: u64,
    cost: u64,
) {
    key_state.unsynced = key_state.unsynced.saturating_add(u32::try_from(cost).unwrap_or(u32::MAX));
    if !key_state.is_changed {
        key_state.is_changed = true;
        replicas.push_changed_key(key, key_state.kind);
    }
}
