//! Merges of counters that other nodes have sent into the replica of a key.

use super::{KeyReplica, RemoteBucketCounter};
use crate::pn_counter::{Incarnation, PnCounter};

/// The change of a counter by a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MergeResult {
    /// The counter has not changed.
    None,
    /// This number of units was charged, and none was removed.
    Charged(u64),
    /// Units were removed.
    Removed,
}

impl KeyReplica {
    /// Merges the counter of another incarnation in one bucket. If it has grown, the caller must either [add the
    /// charged units](Self::record_added_units) to the state of the key, or [mark the
    /// updates](Self::mark_updates_unapplied) as unapplied.
    pub(crate) fn merge(
        &mut self,
        incarnation: Incarnation,
        bucket: u64,
        units: &PnCounter,
    ) -> MergeResult {
        let known = (self.remote.iter_mut())
            .find(|remote| remote.bucket == bucket && remote.incarnation == incarnation);
        let before = known.as_ref().map_or_else(PnCounter::default, |remote| remote.units);
        let mut after = before;
        after.merge(units);
        match known {
            Some(remote) => {
                remote.known_removed = remote.known_removed.max(units.removed);
                remote.has_foreign_removals |= units.removed > before.removed;
                remote.units = after;
            }
            None => self.remote.push(RemoteBucketCounter {
                bucket,
                incarnation,
                units: after,
                known_removed: units.removed,
                has_foreign_removals: units.removed > 0,
            }),
        }
        if after.removed > before.removed {
            MergeResult::Removed
        } else {
            match after.value() - before.value() {
                0 => MergeResult::None,
                charged => MergeResult::Charged(charged),
            }
        }
    }

    /// Returns whether charged units of other nodes may be added to the state of the key. If not, the state must be
    /// rebuilt, because it lacks other updates, it has units with a future timestamp, or its overshoot must be recorded
    /// when the next bucket begins.
    pub(crate) fn state_accepts_units(&self) -> bool {
        !self.has_unapplied_updates
            && self.future_units_since.is_none()
            && self.overshoot.units == 0
    }

    /// Records that units of another node were added to the state of the key in a bucket.
    pub(crate) fn record_added_units(&mut self, bucket: u64, units: u64) {
        let recorded = self.recorded_units.iter_mut().find(|(candidate, _)| *candidate == bucket);
        match recorded {
            Some((_, recorded)) => *recorded = recorded.saturating_add(units),
            None => self.recorded_units.push((bucket, units)),
        }
    }

    /// Records that the state of the key lacks updates of other nodes.
    pub(crate) fn mark_updates_unapplied(&mut self) {
        self.has_unapplied_updates = true;
    }

    /// Returns `true` if [`merge_own_units`](Self::merge_own_units) with the same arguments may change the counter.
    pub(crate) fn would_merge_own_units(&self, bucket: u64, units: &PnCounter) -> bool {
        self.merged_own_units(bucket, units).is_some()
    }

    /// Merges the counter of this node in a bucket, as another node knows it. The other node knows more charged units
    /// only if this node has lost the counter: the clock of this node was ahead for a while, so that the bucket expired
    /// too early. Returns `true` if the counter has grown.
    pub(crate) fn merge_own_units(&mut self, bucket: u64, units: &PnCounter) -> bool {
        let Some(merged) = self.merged_own_units(bucket, units) else { return false };
        self.get_or_create_local_bucket_counter(bucket).units = merged;
        self.has_unapplied_updates = true;
        true
    }

    fn merged_own_units(&self, bucket: u64, units: &PnCounter) -> Option<PnCounter> {
        let local = self.local.iter().find(|local| local.bucket == bucket);
        let known = local.map_or_else(PnCounter::default, |local| local.units);
        let mut merged = known;
        merged.merge(units);
        if units.charged > known.charged {
            // This node has lost the counter, and has charged further units since, which the counter of the other node
            // does not have.
            merged.charged = merged.charged.saturating_add(known.charged);
        }
        // No more units can be removed than were charged. Otherwise later charges would count as removed.
        merged.removed = merged.removed.min(merged.charged);
        (merged != known).then_some(merged)
    }
}
