//! Methods of the counters that collect updates for other nodes, and merge received updates.

use std::sync::atomic::Ordering;

use slidegate::Timestamp;
use slidegate::algorithm::AnyAdditive;
use slidegate::store::table::CoarseTime;

use super::{CounterKindId, Counters, HasStateTable, Shard};
use crate::pn_counter::{BucketLayout, CounterUpdate, Incarnation, PnCounter};
use crate::replica::{KeyReplica, MergeResult};
use crate::replicated_counters::{FlushSeq, ReplicatedCounters};

/// A key with unsent changes, and its remaining units: the keys with the fewest remaining units are sent first.
struct ChangedKey {
    shard: usize,
    key: u64,
    kind: CounterKindId,
    remaining: u64,
}

impl Counters {
    /// Copies the new charges of a key's state to its replica. Creates the replica if the key has none.
    #[cold]
    pub(super) fn copy_charges_to_replica<C: HasStateTable>(
        shard: &mut Shard,
        counter: C,
        key: u64,
    ) {
        let table = C::state_table(&mut shard.states);
        if let Some(at) = table.find(key) {
            let replica =
                shard.replicas.get_or_insert_with(key, || KeyReplica::new(counter.layout()));
            replica.record_charged_units(counter, &table.slot(at).state.state);
        }
    }

    /// Empties the lists of changed keys of all shards, and returns the keys that they contained.
    fn take_changed_keys(&self) -> Vec<ChangedKey> {
        let mut changed_keys = Vec::new();
        for (index, padded) in self.shards.iter().enumerate() {
            let shard = &mut *padded.shard.lock();
            for (key, kind) in shard.replicas.take_changed_keys() {
                let remaining = with_counter!(self.kinds.counter_of_kind(kind), counter => {
                    remaining_units_of_key(shard, counter, key)
                });
                changed_keys.push(ChangedKey { shard: index, key, kind, remaining });
            }
        }
        changed_keys
    }

    fn requeue_changed_keys(&self, changed: &[ChangedKey]) {
        for ChangedKey { shard, key, kind, .. } in changed {
            self.shards[*shard].shard.lock().replicas.push_changed_key(*key, *kind);
        }
    }

    /// Passes the unsent counter changes of one key to `visit`, and marks the changes as sent.
    fn take_unsent_changes_of_key<C: HasStateTable>(
        shard: &mut Shard,
        counter: C,
        key: u64,
        (incarnation, flush, acknowledged): (Incarnation, FlushSeq, FlushSeq),
        mut visit: impl FnMut(BucketLayout, Incarnation, u64, PnCounter),
    ) {
        let table = C::state_table(&mut shard.states);
        if let Some(at) = table.find(key) {
            table.slot_mut(at).state.is_changed = false;
        }
        Self::copy_charges_to_replica(shard, counter, key);
        if let Some(replica) = shard.replicas.get(key) {
            let layout = replica.layout();
            replica.mark_flushes_acknowledged(acknowledged);
            replica.take_unsent_changes(incarnation, flush, |incarnation, bucket, units| {
                visit(layout, incarnation, bucket, units);
            });
        }
    }

    /// Returns whether a key has a replica. Creates the replica if this node has charged the key. It then has the counters
    /// of this node, and is removed when the state is evicted.
    fn find_or_create_replica_of_own_key(&self, shard: &mut Shard, key: u64) -> bool {
        if shard.replicas.get(key).is_none()
            && let Some(kind) = shard.states.kind(key)
        {
            with_counter!(self.kinds.counter_of_kind(kind), counter => {
                Self::copy_charges_to_replica(shard, counter, key);
            });
            return shard.replicas.get(key).is_some_and(|replica| replica.has_own_counters());
        }
        shard.replicas.get(key).is_some()
    }

    /// Merges an update of a counter of this node. Another node may have removed units, and it knows more charged units
    /// if this node has lost the counter. The merged counter is sent to all nodes with the next flush, since the other
    /// node may stop before its update has reached all of them.
    fn merge_own_units(&self, shard: &mut Shard, update: &CounterUpdate, latest_expiry_us: u64) {
        let replica =
            shard.replicas.get_or_insert_with(update.key, || KeyReplica::new(update.layout));
        if !replica.would_merge_own_units(update.bucket, &update.units) {
            return;
        }
        let marked = shard.states.mark_key_changed(update.key);
        if let Some((kind, is_new)) = marked {
            with_counter!(self.kinds.counter_of_kind(kind), counter => {
                Self::copy_charges_to_replica(shard, counter, update.key);
            });
            if is_new {
                shard.replicas.push_changed_key(update.key, kind);
            }
        }
        let Some(replica) = shard.replicas.get(update.key) else { return };
        if replica.merge_own_units(update.bucket, &update.units) {
            let expires_us = latest_expiry_us.saturating_add(self.max_clock_skew_us);
            shard.states.mark_key_outdated(
                update.key,
                self.shards.to_coarse_expiry(Timestamp::from_micros(expires_us)),
            );
        }
    }

    /// Merges an update of a counter of another node. If the other node has only charged units in the current bucket of
    /// the key's state, adds them to the state, so that the next decision does not need the replica.
    fn merge_units(
        &self,
        shard: &mut Shard,
        update: &CounterUpdate,
        latest_expiry_us: u64,
        expiry_cutoff: Timestamp,
    ) {
        let replica =
            shard.replicas.get_or_insert_with(update.key, || KeyReplica::new(update.layout));
        let growth = replica.merge(update.incarnation, update.bucket, &update.units);
        if growth == MergeResult::None {
            return;
        }
        replica.remove_expired(expiry_cutoff);
        let expires_us = latest_expiry_us.saturating_add(self.max_clock_skew_us);
        let expires = self.shards.to_coarse_expiry(Timestamp::from_micros(expires_us));
        let added = match growth {
            MergeResult::Charged(units) if replica.state_accepts_units() => {
                shard.states.add_units(update.key, (update.bucket, units), expires, |kind| {
                    self.kinds.counter_of_kind(kind)
                })
            }
            _ => None,
        };
        match added {
            Some(units) => replica.record_added_units(update.bucket, units),
            None => {
                replica.mark_updates_unapplied();
                shard.states.mark_key_outdated(update.key, expires);
            }
        }
    }

    /// Lets the next decision of each key rebuild its state at the present time, if the clock was set back by more than
    /// the maximum clock skew. Otherwise a state would keep the later time of its last charge, at which older charges
    /// have expired.
    pub(super) fn rebuild_states_if_clock_was_set_back(&self, now: Timestamp) {
        let last_time_us = self.last_time_us.swap(now.as_micros(), Ordering::Relaxed);
        if now.as_micros().saturating_add(self.max_clock_skew_us) >= last_time_us {
            return;
        }
        for padded in self.shards.iter() {
            let shard = &mut *padded.shard.lock();
            self.copy_all_charges_to_replicas(shard);
            self.update_replica_bytes(shard);
            for (key, replica) in shard.replicas.iter_mut() {
                replica.mark_updates_unapplied();
                shard.states.mark_key_outdated(key, CoarseTime::default());
            }
        }
    }

    /// Copies the new charges of the states that have a replica, and passes the charges of the other states to `visit`.
    fn visit_states_without_replica(
        &self,
        shard: &mut Shard,
        now: Timestamp,
        visit: &mut dyn FnMut(CounterUpdate),
    ) {
        let mut keys = Vec::new();
        shard.states.for_each_key(|key, kind| keys.push((key, kind)));
        for (key, kind) in keys {
            with_counter!(self.kinds.counter_of_kind(kind), counter => {
                if shard.replicas.get(key).is_some() {
                    Self::copy_charges_to_replica(shard, counter, key);
                } else {
                    self.visit_charges_of_state(shard, counter, key, now, visit);
                }
            });
        }
    }

    fn visit_charges_of_state<C: HasStateTable>(
        &self,
        shard: &mut Shard,
        counter: C,
        key: u64,
        now: Timestamp,
        visit: &mut dyn FnMut(CounterUpdate),
    ) {
        let table = C::state_table(&mut shard.states);
        let Some(at) = table.find(key) else { return };
        let layout = counter.layout();
        let mut replica = KeyReplica::new(layout);
        replica.record_charged_units(counter, &table.slot(at).state.state);
        replica.visit_counters_changed_since(
            self.incarnation,
            0,
            now,
            |incarnation, bucket, units| {
                visit(CounterUpdate { key, layout, incarnation, bucket, units });
            },
        );
    }

    /// Copies the new charges of all states of a shard to their replicas. While memory is scarce, creates no replicas.
    fn copy_all_charges_to_replicas(&self, shard: &mut Shard) {
        let is_memory_scarce = self.is_memory_scarce();
        let mut keys = Vec::new();
        shard.states.for_each_key(|key, kind| keys.push((key, kind)));
        for (key, kind) in keys {
            if is_memory_scarce && shard.replicas.get(key).is_none() {
                continue;
            }
            with_counter!(self.kinds.counter_of_kind(kind), counter => {
                Self::copy_charges_to_replica(shard, counter, key);
            });
        }
    }
}

/// Returns the remaining units of a key. A smaller number means that the key is closer to its limit. Returns `u64::MAX`
/// if the key has no state.
fn remaining_units_of_key<C: HasStateTable>(shard: &mut Shard, counter: C, key: u64) -> u64 {
    let table = C::state_table(&mut shard.states);
    let Some(at) = table.find(key) else { return u64::MAX };
    let state = &table.slot(at).state.state;
    let last_charged_at = counter.last_charged_at(state);
    counter.peek(state, last_charged_at, 1).remaining()
}

impl ReplicatedCounters for Counters {
    fn drain_changed_counters(
        &self,
        flush: FlushSeq,
        max_keys: usize,
        updates: &mut Vec<CounterUpdate>,
    ) -> bool {
        let mut changed = self.take_changed_keys();
        let has_more = changed.len() > max_keys;
        if has_more {
            changed.select_nth_unstable_by_key(max_keys, |changed| changed.remaining);
            self.requeue_changed_keys(&changed[max_keys..]);
            changed.truncate(max_keys);
        }
        let acknowledged = self.progress.load().last_flush_acknowledged_by_all();
        for ChangedKey { shard, key, kind, .. } in changed {
            let shard = &mut *self.shards[shard].shard.lock();
            with_counter!(self.kinds.counter_of_kind(kind), counter => {
                let at = (self.incarnation, flush, acknowledged);
                Self::take_unsent_changes_of_key(shard, counter, key, at, |layout, incarnation, bucket, units| {
                    updates.push(CounterUpdate { key, layout, incarnation, bucket, units });
                });
            });
        }
        has_more
    }

    fn visit_counters_changed_since(
        &self,
        flush: FlushSeq,
        include_remote: bool,
        now: Timestamp,
        visit: &mut dyn FnMut(CounterUpdate),
    ) {
        // Units that have expired here may still count on a node whose clock is behind.
        let now = self.cutoff_for_expiry_on_all_nodes(now);
        for padded in self.shards.iter() {
            let shard = &mut *padded.shard.lock();
            self.visit_states_without_replica(shard, now, visit);
            for (key, replica) in shard.replicas.iter_mut() {
                let layout = replica.layout();
                let mut visit = |incarnation, bucket, units| {
                    visit(CounterUpdate { key, layout, incarnation, bucket, units });
                };
                replica.visit_counters_changed_since(self.incarnation, flush, now, &mut visit);
                replica.visit_counters_of_other_nodes(
                    now,
                    |_, has_foreign_removals| include_remote || has_foreign_removals,
                    visit,
                );
            }
        }
    }

    fn visit_counters_of_incarnation(
        &self,
        selected: Incarnation,
        now: Timestamp,
        visit: &mut dyn FnMut(CounterUpdate),
    ) {
        let now = self.cutoff_for_expiry_on_all_nodes(now);
        for padded in self.shards.iter() {
            let shard = &mut *padded.shard.lock();
            for (key, replica) in shard.replicas.iter_mut() {
                let layout = replica.layout();
                let is_selected = |incarnation, has_foreign_removals| {
                    incarnation == selected || has_foreign_removals
                };
                replica.visit_counters_of_other_nodes(
                    now,
                    is_selected,
                    |incarnation, bucket, units| {
                        visit(CounterUpdate { key, layout, incarnation, bucket, units });
                    },
                );
            }
        }
    }

    fn merge(&self, updates: &[CounterUpdate], now: Timestamp) {
        self.rebuild_states_if_clock_was_set_back(now);
        let expiry_cutoff = self.cutoff_for_expiry_on_all_nodes(now);
        let max_replicas = (2 * self.shards.max_keys() / self.shards.shard_count()).max(64);
        for update in updates {
            let latest_expiry_us = update.layout.latest_expiry_us(update.bucket);
            let is_own = update.incarnation == self.incarnation;
            if update.key == 0 || latest_expiry_us <= expiry_cutoff.as_micros() {
                continue;
            }
            let shard = &mut *self.shards[self.shards.shard_index_of(update.key)].shard.lock();
            if shard.replicas.len() >= max_replicas {
                shard.replicas.remove_expired(expiry_cutoff, |_, _| true);
            }
            let is_full =
                shard.replicas.len() >= max_replicas || self.replicas_use_half_of_memory();
            if is_full && !self.find_or_create_replica_of_own_key(shard, update.key) {
                continue;
            }
            if is_own {
                self.merge_own_units(shard, update, latest_expiry_us);
            } else {
                self.merge_units(shard, update, latest_expiry_us, expiry_cutoff);
            }
            self.update_replica_bytes(shard);
        }
    }
}
