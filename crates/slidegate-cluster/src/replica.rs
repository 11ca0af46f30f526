//! What is kept of one key beside the state by which it is decided: the tallies that the state is made of.
//!
//! Decisions charge the state and nothing else. What was charged here is found later, as what stands in the state
//! beyond what was last known to be there, and is entered in the book: each time that something is told, taken in or
//! given back, and before a bucket with changes leaves the state. When others have told something, the state is made
//! anew of the book. Units that are dated in the future count as charged now, until their bucket is running.

use slidegate::Timestamp;
use slidegate::algorithm::additive::{Additive, Shape};
use slidegate::heap::allocated_bytes;
use smallvec::SmallVec;

use crate::overshoot::BucketOvershoot;
use crate::pn_counter::{Incarnation, PnCounter};
use crate::replicated_counters::FlushSeq;

/// Buckets that are kept beyond those that count, at most, for nodes whose clocks are behind.
const MAX_RETAINED_BUCKETS: usize = 64;

/// What this node has charged in one bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LocalBucket {
    bucket: u64,
    units: PnCounter,
    /// As it was last told.
    sent: PnCounter,
    /// Units charged as of the snapshot that is on its way.
    in_flight: u64,
    /// Units charged that every member has acknowledged.
    acknowledged: u64,
}

/// What another incarnation has charged in one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RemoteBucket {
    bucket: u64,
    incarnation: Incarnation,
    units: PnCounter,
    /// The number of returned units that was sent or received last.
    known_removed: u64,
    /// Whether another node than the owner may have returned units. That node may stop before all others know of it, so
    /// this tally is sent again when a node leaves.
    has_foreign_removals: bool,
}

/// What is kept of one key.
#[derive(Debug)]
pub(crate) struct KeyReplica {
    shape: Shape,
    local: SmallVec<[LocalBucket; 2]>,
    remote: Vec<RemoteBucket>,
    /// Units by bucket that are known to stand in the state.
    recorded: SmallVec<[(u64, u64); 2]>,
    /// The bucket as of which units dated later stand in the state as if charged in it, if there are any.
    future_units_since: Option<u64>,
    /// Others have told what does not stand in the state yet.
    has_unapplied_updates: bool,
    /// The flush that took the snapshot which is on its way; 0: there is none.
    snapshot_seq: FlushSeq,
    /// The flush that last told something of it.
    last_sent_seq: FlushSeq,
    overshoot: BucketOvershoot,
}

impl KeyReplica {
    pub(crate) fn new(shape: Shape) -> Self {
        Self {
            shape,
            local: SmallVec::new(),
            remote: Vec::new(),
            recorded: SmallVec::new(),
            future_units_since: None,
            has_unapplied_updates: false,
            snapshot_seq: 0,
            last_sent_seq: 0,
            overshoot: BucketOvershoot::default(),
        }
    }

    /// Enters what was charged to the state since it was last looked at.
    pub(crate) fn record_charges<C: Additive>(&mut self, counter: C, state: &C::State) {
        for bucket in counted_buckets(counter, state) {
            let (units, recorded) = (counter.units(state, bucket), self.recorded(bucket));
            if units > recorded {
                let local = self.local_bucket(bucket);
                local.units.charged = local.units.charged.saturating_add(units - recorded);
            }
        }
        self.record_state(counter, state);
    }

    fn recorded(&self, bucket: u64) -> u64 {
        self.recorded
            .iter()
            .find(|(candidate, _)| *candidate == bucket)
            .map_or(0, |(_, units)| *units)
    }

    /// Notes what stands in the state now.
    fn record_state<C: Additive>(&mut self, counter: C, state: &C::State) {
        let units = |bucket| (bucket, counter.units(state, bucket));
        self.recorded =
            counted_buckets(counter, state).map(units).filter(|(_, units)| *units > 0).collect();
    }

    /// The state that all tallies make, in which all that was charged to the state before has been entered.
    pub(crate) fn rebuild_state<C: Additive>(&mut self, counter: C, last: Timestamp) -> C::State {
        let running = counter.shape().bucket(last);
        let sums = self.units_by_bucket();
        let units = |counts: &dyn Fn(u64) -> bool| {
            let counted = sums.iter().filter(|(bucket, _)| counts(*bucket));
            counted.map(|(_, units)| *units).fold(0, u64::saturating_add)
        };
        let state = counter.gather(last, |bucket| match bucket == running {
            true => units(&|candidate| candidate >= running),
            false => units(&|candidate| candidate == bucket),
        });
        self.future_units_since =
            sums.iter().any(|(bucket, _)| *bucket > running).then_some(running);
        self.has_unapplied_updates = false;
        self.record_state(counter, &state);
        state
    }

    /// There is another state, in which nothing stands yet. Says when the last of the book leaves, in microseconds
    /// since the Unix epoch.
    pub(crate) fn on_state_created(&mut self) -> u64 {
        self.recorded.clear();
        self.future_units_since = None;
        self.has_unapplied_updates = true;
        let local = self.local.last().map(|local| local.bucket);
        let latest = self.remote.iter().map(|remote| remote.bucket).chain(local).max();
        latest.map_or(0, |bucket| self.shape.leaves_us(bucket))
    }

    /// Whether others have told what does not stand in the state yet.
    pub(crate) fn has_unapplied_updates(&self) -> bool {
        self.has_unapplied_updates
    }

    /// Whether units that were dated in the future have come into their bucket.
    pub(crate) fn is_future_due(&self, now: Timestamp) -> bool {
        self.future_units_since.is_some_and(|running| self.shape.bucket(now) > running)
    }

    /// Whether units dated in the future stand in the state.
    pub(crate) fn has_future_units(&self) -> bool {
        self.future_units_since.is_some()
    }

    /// Returns the units of all incarnations that were charged and not returned, by bucket.
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

    /// What this node has counted in a bucket, from now on.
    fn local_bucket(&mut self, bucket: u64) -> &mut LocalBucket {
        let index = self.local.partition_point(|local| local.bucket < bucket);
        if self.local.get(index).is_none_or(|local| local.bucket != bucket) {
            self.local.insert(index, LocalBucket { bucket, ..LocalBucket::default() });
        }
        &mut self.local[index]
    }

    /// Forgets the tallies of buckets that left before `since`. Says whether any are left.
    pub(crate) fn remove_expired(&mut self, since: Timestamp) -> bool {
        let shape = self.shape;
        let max_buckets = shape.buckets as usize + MAX_RETAINED_BUCKETS;
        let is_expired = |bucket: u64| shape.leaves_us(bucket) <= since.as_micros();
        let old = self.local.iter().take_while(|local| is_expired(local.bucket)).count();
        self.local.drain(..old.max(self.local.len().saturating_sub(max_buckets)));
        self.remote.retain(|remote| !is_expired(remote.bucket));
        !self.local.is_empty() || !self.remote.is_empty()
    }

    /// Returns the bytes that the book holds on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        let local =
            if self.local.spilled() { self.local.capacity() * size_of::<LocalBucket>() } else { 0 };
        let recorded = match self.recorded.spilled() {
            true => self.recorded.capacity() * size_of::<(u64, u64)>(),
            false => 0,
        };
        let remote = self.remote.capacity() * size_of::<RemoteBucket>();
        [local, recorded, remote].map(allocated_bytes).iter().sum()
    }

    /// Enters what was taken off the state, in which everything charged before has been entered.
    pub(crate) fn record_removals<C: Additive>(&mut self, counter: C, state: &C::State) {
        for (bucket, recorded) in self.recorded.clone() {
            let units = counter.units(state, bucket);
            if units < recorded {
                self.remove_units(bucket, recorded - units);
            }
        }
        self.record_state(counter, state);
    }

    /// Returns units of this node's own charges first, then of charges of other nodes. Two nodes that return units at the
    /// same time thus seldom return the same ones. If they do, the units are subtracted once, since a merge takes the
    /// larger number of each tally.
    fn remove_units(&mut self, bucket: u64, units: u64) {
        let mut rest = units;
        if let Some(local) = self.local.iter_mut().find(|local| local.bucket == bucket) {
            let part = rest.min(local.units.value());
            local.units.removed += part;
            rest -= part;
        }
        for remote in self.remote.iter_mut().filter(|remote| remote.bucket == bucket) {
            let part = rest.min(remote.units.value());
            if part > 0 {
                remote.units.removed += part;
                remote.has_foreign_removals = true;
                rest -= part;
            }
        }
    }

    /// Notes what every member has acknowledged up to a flush, so that another snapshot may be taken.
    pub(crate) fn on_acknowledged(&mut self, acknowledged: FlushSeq) {
        let is_settled = self.snapshot_seq != 0 && self.snapshot_seq <= acknowledged;
        for local in &mut self.local {
            if acknowledged == FlushSeq::MAX {
                local.acknowledged = local.units.charged;
            } else if is_settled {
                local.acknowledged = local.acknowledged.max(local.in_flight);
            }
        }
        if is_settled || acknowledged == FlushSeq::MAX {
            self.snapshot_seq = 0;
        }
    }

    /// Units charged here, still counting, that not every member has acknowledged.
    pub(crate) fn unsynced_units(&self, now: Timestamp) -> u64 {
        self.unsynced_by_bucket(now).map(|(_, units)| units).fold(0, u64::saturating_add)
    }

    /// Units not acknowledged that still count, by bucket, the oldest first.
    fn unsynced_by_bucket(&self, now: Timestamp) -> impl Iterator<Item = (u64, u64)> {
        let counts =
            move |local: &&LocalBucket| self.shape.leaves_us(local.bucket) > now.as_micros();
        self.local
            .iter()
            .filter(counts)
            .map(|local| (local.bucket, local.units.charged - local.acknowledged))
    }

    /// How long until all but so many of these units have left, if nobody acknowledges any, in microseconds.
    pub(crate) fn unsynced_expiry_us(&self, max_units: u64, now: Timestamp) -> u64 {
        let mut left = self.unsynced_units(now);
        for (bucket, units) in self.unsynced_by_bucket(now) {
            left -= units;
            if left <= max_units {
                return self.shape.leaves_us(bucket) - now.as_micros();
            }
        }
        0
    }

    /// Passes all tallies that this node (`local_incarnation`) has changed to `visit`, and marks them as sent in this flush.
    pub(crate) fn take_changes(
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
        for remote in self.remote.iter_mut().filter(|remote| remote.has_unsent_removals()) {
            remote.known_removed = remote.units.removed;
            visit(remote.incarnation, remote.bucket, remote.units);
        }
        if self.snapshot_seq == 0 {
            self.snapshot_seq = flush;
        }
        self.last_sent_seq = flush;
    }

    /// Tells its own tallies that still count, if one of them was told after a flush, or not yet.
    pub(crate) fn visit_changed_since(
        &self,
        local_incarnation: Incarnation,
        flush: FlushSeq,
        now: Timestamp,
        mut visit: impl FnMut(Incarnation, u64, PnCounter),
    ) {
        if self.last_sent_seq > flush || self.local.iter().any(|local| local.units != local.sent) {
            let counts =
                |local: &&LocalBucket| self.shape.leaves_us(local.bucket) > now.as_micros();
            self.local
                .iter()
                .filter(counts)
                .for_each(|local| visit(local_incarnation, local.bucket, local.units));
        }
    }

    /// Passes tallies of other incarnations that still count to `visit`. `is_selected` selects them by incarnation and by
    /// whether another node than the owner may have returned units.
    pub(crate) fn visit_remote(
        &self,
        now: Timestamp,
        is_selected: impl Fn(Incarnation, bool) -> bool,
        mut visit: impl FnMut(Incarnation, u64, PnCounter),
    ) {
        let counts = |remote: &&RemoteBucket| self.shape.leaves_us(remote.bucket) > now.as_micros();
        let selected =
            |remote: &&RemoteBucket| is_selected(remote.incarnation, remote.has_foreign_removals);
        for remote in self.remote.iter().filter(counts).filter(selected) {
            visit(remote.incarnation, remote.bucket, remote.units);
        }
    }

    /// How the counter divides time.
    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// Takes in what another incarnation has counted. Says whether that is news.
    pub(crate) fn merge(
        &mut self,
        incarnation: Incarnation,
        bucket: u64,
        units: &PnCounter,
    ) -> bool {
        let known = (self.remote.iter_mut())
            .find(|remote| remote.bucket == bucket && remote.incarnation == incarnation);
        let has_grown = match known {
            Some(remote) => {
                remote.known_removed = remote.known_removed.max(units.removed);
                remote.has_foreign_removals |= units.removed > remote.units.removed;
                remote.units.merge(units)
            }
            None => {
                let (units, known_removed) = (*units, units.removed);
                let has_foreign_removals = units.removed > 0;
                self.remote.push(RemoteBucket {
                    bucket,
                    incarnation,
                    units,
                    known_removed,
                    has_foreign_removals,
                });
                true
            }
        };
        self.has_unapplied_updates |= has_grown;
        has_grown
    }

    /// Merges the number of units of this node's own charges that another node has returned. Returns whether it is larger
    /// than the known number.
    pub(crate) fn merge_removed(&mut self, bucket: u64, removed: u64) -> bool {
        let Some(local) = self.local.iter_mut().find(|local| local.bucket == bucket) else {
            return false;
        };
        // More units than were charged cannot be returned.
        let removed = removed.min(local.units.charged);
        let has_grown = removed > local.units.removed;
        local.units.removed = local.units.removed.max(removed);
        self.has_unapplied_updates |= has_grown;
        has_grown
    }

    /// Notes how far the running bucket is over max. Says what an earlier one came to, once another is running.
    pub(crate) fn record_overshoot(
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

impl RemoteBucket {
    /// Returns whether units were returned that the other nodes do not know of yet.
    fn has_unsent_removals(&self) -> bool {
        self.units.removed > self.known_removed
    }
}

/// The buckets that a state counts.
fn counted_buckets<C: Additive>(counter: C, state: &C::State) -> std::ops::RangeInclusive<u64> {
    let running = counter.running(state);
    running.saturating_sub(u64::from(counter.shape().buckets) - 1)..=running
}
