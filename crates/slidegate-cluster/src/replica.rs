//! The replica of one key: the replicated counters from which the local state of the key is built.
//!
//! A decision charges only the local state, not the replica. The charges are copied to the replica later: they are the
//! difference between the units in the state and the units that the replica has already recorded. Charges are recorded
//! before each send, merge and removal, and before a changed bucket leaves the state. After updates from other nodes
//! have arrived, the state is rebuilt from all counters. If a node whose clock is ahead sends units with a future
//! timestamp, these units are added to the current bucket until their own bucket begins. This module is pure: no I/O,
//! no clock.

mod merge;

use slidegate::Timestamp;
use slidegate::algorithm::{AdditiveCounter, BucketLayout};
use slidegate::store::allocator_block_bytes;
use smallvec::SmallVec;

use crate::overshoot::BucketOvershoot;
use crate::pn_counter::{Incarnation, PnCounter};
use crate::replicated_counters::FlushSeq;

pub(crate) use merge::MergeResult;

/// Maximum number of expired buckets that are kept for nodes whose clocks are behind.
const MAX_EXPIRED_BUCKETS_KEPT: usize = 64;

/// The counter of this node in one time bucket, the value that was last sent, and the number of acknowledged units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LocalBucketCounter {
    bucket: u64,
    units: PnCounter,
    /// The value of the counter in the last update that was sent.
    sent: PnCounter,
    /// The number of units that this node had charged when the snapshot that awaits acknowledgement was taken. A
    /// snapshot contains the counter values of one flush.
    in_flight: u64,
    /// Units charged by this node that every member has acknowledged.
    acknowledged: u64,
}

/// The counter of another incarnation in one time bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RemoteBucketCounter {
    bucket: u64,
    incarnation: Incarnation,
    units: PnCounter,
    /// The number of removed units that this node last sent to the other nodes or received from one of them.
    known_removed: u64,
    /// Whether some of the units may have been removed by a node other than the node that charged them. The removing
    /// node may stop before its update has reached all members, so this counter is sent again when a node leaves.
    has_foreign_removals: bool,
}

/// All replicated counters of one key.
#[derive(Debug)]
pub(crate) struct KeyReplica {
    layout: BucketLayout,
    local: SmallVec<[LocalBucketCounter; 2]>,
    remote: Vec<RemoteBucketCounter>,
    /// The number of units in each bucket of the key's state when the state was last compared with this replica. Each
    /// pair is a bucket and its number of units.
    recorded_units: SmallVec<[(u64, u64); 2]>,
    /// The bucket that was current when the state was last rebuilt, to which units with a future timestamp were added;
    /// `None` if there were no such units.
    future_units_since: Option<u64>,
    /// Whether updates of other nodes have arrived that the state does not contain yet.
    has_unapplied_updates: bool,
    /// The number of the flush whose snapshot awaits acknowledgement; 0 if no snapshot awaits acknowledgement.
    snapshot_seq: FlushSeq,
    /// The last flush that contained a counter of this key.
    last_sent_seq: FlushSeq,
    overshoot: BucketOvershoot,
}

impl KeyReplica {
    pub(crate) fn new(layout: BucketLayout) -> Self {
        Self {
            layout,
            local: SmallVec::new(),
            remote: Vec::new(),
            recorded_units: SmallVec::new(),
            future_units_since: None,
            has_unapplied_updates: false,
            snapshot_seq: 0,
            last_sent_seq: 0,
            overshoot: BucketOvershoot::default(),
        }
    }

    /// Finds the units that were charged to `state` since the previous comparison with this replica, and adds them to
    /// the counters of this node.
    pub(crate) fn record_charged_units<C: AdditiveCounter>(
        &mut self,
        counter: C,
        state: &C::State,
    ) {
        counter.visit_units(state, |bucket, units| {
            let recorded_units = self.recorded_units(bucket);
            if units > recorded_units {
                let local = self.get_or_create_local_bucket_counter(bucket);
                local.units.charged = local.units.charged.saturating_add(units - recorded_units);
            }
        });
        self.update_recorded_units(counter, state);
    }

    fn recorded_units(&self, bucket: u64) -> u64 {
        self.recorded_units
            .iter()
            .find(|(candidate, _)| *candidate == bucket)
            .map_or(0, |(_, units)| *units)
    }

    /// Records the current units of `state`. A later comparison of the state with this record finds the units that were
    /// charged or removed after this call.
    fn update_recorded_units<C: AdditiveCounter>(&mut self, counter: C, state: &C::State) {
        self.recorded_units.clear();
        counter.visit_units(state, |bucket, units| self.recorded_units.push((bucket, units)));
    }

    /// Returns a new state that contains the units of all counters. All charges to the previous state must be recorded
    /// before this call.
    pub(crate) fn rebuild_state<C: AdditiveCounter>(
        &mut self,
        counter: C,
        last: Timestamp,
    ) -> C::State {
        let current_bucket = counter.layout().bucket(last);
        let sums = self.units_by_bucket();
        let units = |is_unexpired: &dyn Fn(u64) -> bool| {
            let counted = sums.iter().filter(|(bucket, _)| is_unexpired(*bucket));
            counted.map(|(_, units)| *units).fold(0, u64::saturating_add)
        };
        let state = counter.state_from_buckets(last, |bucket| {
            if bucket == current_bucket {
                units(&|candidate| candidate >= current_bucket)
            } else {
                units(&|candidate| candidate == bucket)
            }
        });
        self.future_units_since =
            sums.iter().any(|(bucket, _)| *bucket > current_bucket).then_some(current_bucket);
        self.has_unapplied_updates = false;
        self.update_recorded_units(counter, &state);
        state
    }

    /// Prepares the replica for a new state that contains no units yet: resets the recorded units. Returns the time at
    /// which the last counter certainly has expired, in microseconds since the Unix epoch; 0 without counters.
    pub(crate) fn prepare_for_new_state(&mut self) -> u64 {
        self.recorded_units.clear();
        self.future_units_since = None;
        self.has_unapplied_updates = true;
        let local = self.local.last().map(|local| local.bucket);
        let latest = self.remote.iter().map(|remote| remote.bucket).chain(local).max();
        latest.map_or(0, |bucket| self.layout.latest_expiry_us(bucket))
    }

    /// Returns `true` if updates of other nodes have arrived that the state does not contain yet.
    pub(crate) fn has_unapplied_updates(&self) -> bool {
        self.has_unapplied_updates
    }

    /// Returns `true` if the state contains units with a future timestamp, and a later bucket has begun since the state
    /// was built. The time of these units may have come, so the state must be rebuilt.
    pub(crate) fn must_rebuild_for_units_with_future_timestamp(&self, now: Timestamp) -> bool {
        self.future_units_since
            .is_some_and(|current_bucket| self.layout.bucket(now) > current_bucket)
    }

    /// Returns `true` if the state contains units with a future timestamp.
    pub(crate) fn state_has_units_with_future_timestamp(&self) -> bool {
        self.future_units_since.is_some()
    }

    /// Returns the number of units in each bucket: the units that were charged by any incarnation and not removed. Each
    /// pair is a bucket and its number of units. The oldest bucket is first.
    fn units_by_bucket(&self) -> SmallVec<[(u64, u64); 4]> {
        let mut sums: SmallVec<[(u64, u64); 4]> = SmallVec::new();
        let local = self.local.iter().map(|local| (local.bucket, local.units.value()));
        let remote = self.remote.iter().map(|remote| (remote.bucket, remote.units.value()));
        for (bucket, units) in local.chain(remote) {
            let index = sums.partition_point(|(candidate, _)| *candidate < bucket);
            match sums.get_mut(index) {
                Some((candidate, sum)) if *candidate == bucket => *sum = sum.saturating_add(units),
                _ => sums.insert(index, (bucket, units)),
            }
        }
        sums
    }

    /// Returns the counter of this node in a bucket. Creates the counter if it does not exist.
    fn get_or_create_local_bucket_counter(&mut self, bucket: u64) -> &mut LocalBucketCounter {
        let index = self.local.partition_point(|local| local.bucket < bucket);
        if self.local.get(index).is_none_or(|local| local.bucket != bucket) {
            self.local
                .insert(index, LocalBucketCounter { bucket, ..LocalBucketCounter::default() });
        }
        &mut self.local[index]
    }

    /// Removes the counters of buckets that expired before `since`. Returns `true` if counters remain.
    pub(crate) fn remove_expired(&mut self, since: Timestamp) -> bool {
        let layout = self.layout;
        let max_buckets = layout.buckets as usize + MAX_EXPIRED_BUCKETS_KEPT;
        let is_expired = |bucket: u64| layout.latest_expiry_us(bucket) <= since.as_micros();
        let expired = self.local.iter().take_while(|local| is_expired(local.bucket)).count();
        self.local.drain(..expired.max(self.local.len().saturating_sub(max_buckets)));
        self.remote.retain(|remote| !is_expired(remote.bucket));
        !self.local.is_empty() || !self.remote.is_empty()
    }

    /// Returns whether this node has charged units of the key.
    pub(crate) fn has_own_counters(&self) -> bool {
        !self.local.is_empty()
    }

    /// Returns whether the state of the key has everything that the replica has, apart from the acknowledgements: units
    /// that this node alone has charged, none of which was removed, and which are sent.
    pub(crate) fn is_contained_in_state(&self) -> bool {
        self.remote.is_empty()
            && !self.has_unapplied_updates
            && !self.has_unsent_units()
            && self.local.iter().all(|local| local.units.removed == 0)
    }

    /// Returns whether this node has charged or removed units that it has not sent yet.
    pub(crate) fn has_unsent_units(&self) -> bool {
        self.local.iter().any(|local| local.units != local.sent)
    }

    /// Returns the heap memory of the replica in bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        let local = if self.local.spilled() {
            self.local.capacity() * size_of::<LocalBucketCounter>()
        } else {
            0
        };
        let recorded_units = if self.recorded_units.spilled() {
            self.recorded_units.capacity() * size_of::<(u64, u64)>()
        } else {
            0
        };
        let remote = self.remote.capacity() * size_of::<RemoteBucketCounter>();
        [local, recorded_units, remote].map(allocator_block_bytes).iter().sum()
    }

    /// Finds the units that were removed from `state` since the previous comparison with this replica, and removes them
    /// from the counters. All earlier charges to the state must be recorded before this call.
    pub(crate) fn record_removed_units<C: AdditiveCounter>(
        &mut self,
        counter: C,
        state: &C::State,
    ) {
        for (bucket, recorded_units) in self.recorded_units.clone() {
            let units = counter.units(state, bucket);
            if units < recorded_units {
                self.remove_units_in_bucket(bucket, recorded_units - units);
            }
        }
        self.update_recorded_units(counter, state);
    }

    /// Removes units in a bucket: first from the charges of this node, then from the charges of other nodes. Two nodes
    /// that remove units at the same time thus seldom remove the same units. If they do, the units are subtracted only
    /// once, since a merge takes the larger number of each counter.
    fn remove_units_in_bucket(&mut self, bucket: u64, units: u64) {
        let mut remaining = units;
        if let Some(local) = self.local.iter_mut().find(|local| local.bucket == bucket) {
            let part = remaining.min(local.units.value());
            local.units.removed += part;
            remaining -= part;
        }
        for remote in self.remote.iter_mut().filter(|remote| remote.bucket == bucket) {
            let part = remaining.min(remote.units.value());
            if part > 0 {
                remote.units.removed += part;
                remote.has_foreign_removals = true;
                remaining -= part;
            }
        }
    }

    /// Records that every member has acknowledged all flushes up to `acknowledged`. If the current snapshot is one of
    /// them, its units become acknowledged, and the next snapshot can be taken.
    pub(crate) fn mark_flushes_acknowledged(&mut self, acknowledged: FlushSeq) {
        let is_snapshot_acknowledged = self.snapshot_seq != 0 && self.snapshot_seq <= acknowledged;
        for local in &mut self.local {
            if acknowledged == FlushSeq::MAX {
                local.acknowledged = local.units.charged;
            } else if is_snapshot_acknowledged {
                local.acknowledged = local.acknowledged.max(local.in_flight);
            }
        }
        if is_snapshot_acknowledged || acknowledged == FlushSeq::MAX {
            self.snapshot_seq = 0;
        }
    }

    /// Returns the unexpired units charged by this node that not every member has acknowledged.
    pub(crate) fn unsynced_units(&self, now: Timestamp) -> u64 {
        self.unsynced_units_by_bucket(now).map(|(_, units)| units).fold(0, u64::saturating_add)
    }

    /// Returns the number of unacknowledged units in each unexpired bucket: units that this node has charged, but that
    /// not every member has acknowledged. Each pair is a bucket and its number of units. The oldest bucket is first.
    fn unsynced_units_by_bucket(&self, now: Timestamp) -> impl Iterator<Item = (u64, u64)> {
        let is_unexpired = move |local: &&LocalBucketCounter| {
            self.layout.bucket_expires_us(local.bucket) > now.as_micros()
        };
        self.local
            .iter()
            .filter(is_unexpired)
            .map(|local| (local.bucket, local.units.charged - local.acknowledged))
    }

    /// Returns the time in microseconds after which at most `max_units` unacknowledged units remain, because the others
    /// have expired. Assumes that no further acknowledgement arrives.
    pub(crate) fn micros_until_unsynced_units_expire(&self, max_units: u64, now: Timestamp) -> u64 {
        let mut left = self.unsynced_units(now);
        for (bucket, units) in self.unsynced_units_by_bucket(now) {
            left -= units;
            if left <= max_units {
                return self.layout.bucket_expires_us(bucket) - now.as_micros();
            }
        }
        0
    }

    /// Calls `visit` for each counter with unsent changes, and marks the changes as sent in `flush`.
    /// `local_incarnation` is the incarnation of this node.
    pub(crate) fn take_unsent_changes(
        &mut self,
        local_incarnation: Incarnation,
        flush: FlushSeq,
        mut visit: impl FnMut(Incarnation, u64, PnCounter),
    ) {
        for local in &mut self.local {
            if self.snapshot_seq == 0 {
                local.in_flight = local.units.charged;
            }
            if local.units != local.sent {
                local.sent = local.units;
                visit(local_incarnation, local.bucket, local.units);
            }
        }
        for remote in self.remote.iter_mut().filter(|remote| remote.has_unsent_removed_units()) {
            remote.known_removed = remote.units.removed;
            visit(remote.incarnation, remote.bucket, remote.units);
        }
        if self.snapshot_seq == 0 {
            self.snapshot_seq = flush;
        }
        self.last_sent_seq = flush;
    }

    /// Calls `visit` for all unexpired counters of this node if a counter of the key was sent after `flush` or has
    /// unsent changes.
    pub(crate) fn visit_counters_changed_since(
        &self,
        local_incarnation: Incarnation,
        flush: FlushSeq,
        now: Timestamp,
        mut visit: impl FnMut(Incarnation, u64, PnCounter),
    ) {
        if self.last_sent_seq > flush || self.has_unsent_units() {
            let is_unexpired = |local: &&LocalBucketCounter| {
                self.layout.latest_expiry_us(local.bucket) > now.as_micros()
            };
            self.local
                .iter()
                .filter(is_unexpired)
                .for_each(|local| visit(local_incarnation, local.bucket, local.units));
        }
    }

    /// Calls `visit` for each unexpired counter of another incarnation for which `is_selected` returns `true`. The
    /// arguments of `is_selected` are the incarnation that charged the units, and `true` if another node may have
    /// removed some of the units.
    pub(crate) fn visit_counters_of_other_nodes(
        &self,
        now: Timestamp,
        is_selected: impl Fn(Incarnation, bool) -> bool,
        mut visit: impl FnMut(Incarnation, u64, PnCounter),
    ) {
        let is_unexpired = |remote: &&RemoteBucketCounter| {
            self.layout.latest_expiry_us(remote.bucket) > now.as_micros()
        };
        let selected = |remote: &&RemoteBucketCounter| {
            is_selected(remote.incarnation, remote.has_foreign_removals)
        };
        for remote in self.remote.iter().filter(is_unexpired).filter(selected) {
            visit(remote.incarnation, remote.bucket, remote.units);
        }
    }

    /// Returns the bucket length and the number of buckets of the key's counter.
    pub(crate) fn layout(&self) -> BucketLayout {
        self.layout
    }

    /// Updates the overshoot of the current bucket. Returns the overshoot of the previous bucket when a new bucket
    /// begins. Returns `None` otherwise, or if the previous bucket had no overshoot.
    pub(crate) fn update_bucket_overshoot(
        &mut self,
        overshoot: BucketOvershoot,
    ) -> Option<BucketOvershoot> {
        if overshoot.bucket != self.overshoot.bucket {
            let ended = std::mem::replace(&mut self.overshoot, overshoot);
            return (ended.units > 0).then_some(ended);
        }
        if overshoot.units > self.overshoot.units {
            self.overshoot = overshoot;
        }
        None
    }
}

impl RemoteBucketCounter {
    /// Returns `true` if this node has removed units, for example by a refund, and has not yet sent that to the other
    /// nodes.
    fn has_unsent_removed_units(&self) -> bool {
        self.units.removed > self.known_removed
    }
}
