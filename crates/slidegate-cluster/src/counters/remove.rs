//! Methods of the counters that remove units: revert, refund and reset.

use slidegate::algorithm::{AnyAdditive, Counter};
use slidegate::store::{Charge, CounterId, Hit, Outcomes};
use slidegate::{StoreError, Timestamp};

use super::{CounterLocation, Counters, HasStateTable, Shard};
use crate::replica::KeyReplica;

impl Counters {
    /// Applies `update`, which removes units from the state of a key, and records the removed units in the replica of
    /// the key. Does nothing if the key has no state. `now` is the time of the counter.
    fn remove_units_from_key<C: HasStateTable>(
        &self,
        shard: &mut Shard,
        counter: C,
        key: u64,
        now: Timestamp,
        update: impl FnOnce(&mut C::State),
    ) {
        let table = C::state_table(&mut shard.states);
        let Some(at) = table.find(key) else { return };
        let replicas = &mut shard.replicas;
        let (_, growth_bytes) = table.update(at, |slot| {
            // Units may be free again, so the key no longer counts as depleted.
            slot.depletion = 0;
            let key_state = &mut slot.state;
            if self.progress.has_no_peers() && replicas.get(key).is_none() {
                update(&mut key_state.state);
                return;
            }
            let replica = replicas.get_or_insert_with(key, || KeyReplica::new(counter.layout()));
            replica.record_charged_units(counter, &key_state.state);
            if replica.has_unapplied_updates() {
                let last_charged_at = counter.last_charged_at(&key_state.state).max(now);
                key_state.state = replica.rebuild_state(counter, last_charged_at);
            }
            update(&mut key_state.state);
            replica.record_removed_units(counter, &key_state.state);
            if !key_state.is_changed {
                key_state.is_changed = true;
                replicas.push_changed_key(key, key_state.kind);
            }
        });
        self.shards.add_bytes(growth_bytes);
    }

    /// Reverts charges. Units that have left their window are not affected.
    pub fn revert(&self, charges: impl IntoIterator<Item = Charge>, now: Timestamp) {
        for charge in charges {
            let (CounterId::Fingerprint(key), Some(counter)) =
                (&charge.counter, charge.limit.additive())
            else {
                continue;
            };
            let shard = &mut *self.shards[self.shards.shard_index_of(*key)].shard.lock();
            // The time of a charge is the time of its counter, which may be ahead of the clock of the node by the phase
            // of the key.
            let now = now.max(charge.charged_at);
            with_counter!(counter, counter => {
                self.remove_units_from_key(shard, counter, *key, now, |state| {
                    counter.revert(state, charge.charged_at, charge.cost);
                });
            });
        }
    }

    /// Subtracts each hit's cost from its counter. Returns the outcomes after the refund.
    ///
    /// # Errors
    /// Returns [`StoreError::Unsupported`] if one of the limits cannot be counted by several nodes.
    pub fn refund(&self, hits: &[Hit<'_>], now: Timestamp) -> Result<Outcomes, StoreError> {
        let locations = self.locate_counters(hits, now)?;
        let refund = |(hit, location): (&Hit<'_>, &CounterLocation)| {
            let counter_now = location.to_counter_time(now);
            with_counter!(location.counter, counter => {
                let shard = &mut *self.shards[location.shard].shard.lock();
                self.find_or_restore_state(shard, counter, hit, *location, now)?;
                self.remove_units_from_key(shard, counter, location.fingerprint, counter_now, |state| {
                    counter.refund(state, counter_now, hit.cost);
                });
            });
            Ok(self.peek(&[Hit { cost: 0, required: 1, ..*hit }], now)?[0])
        };
        hits.iter().zip(locations.iter()).map(refund).collect()
    }

    /// Resets the counters of the given hits: removes all units that this node has charged or received from other
    /// nodes. The removal is replicated to the other nodes.
    ///
    /// # Errors
    /// Returns [`StoreError::Unsupported`] if one of the limits cannot be counted by several nodes.
    pub fn reset(&self, hits: &[Hit<'_>], now: Timestamp) -> Result<Outcomes, StoreError> {
        for (hit, location) in hits.iter().zip(self.locate_counters(hits, now)?.iter()) {
            let shard = &mut *self.shards[location.shard].shard.lock();
            with_counter!(location.counter, counter => {
                self.find_or_restore_state(shard, counter, hit, *location, now)?;
                let counter_now = location.to_counter_time(now);
                self.remove_units_from_key(
                    shard,
                    counter,
                    location.fingerprint,
                    counter_now,
                    reset_state_to_default,
                );
            });
        }
        let peek = |hit: &Hit<'_>| Ok(self.peek(&[Hit { cost: 0, required: 1, ..*hit }], now)?[0]);
        hits.iter().map(peek).collect()
    }
}

fn reset_state_to_default<S: Default>(state: &mut S) {
    *state = S::default();
}
