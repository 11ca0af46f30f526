//! Merges of counters that other nodes have sent into the replica of a key.

use super::{KeyReplica, RemoteBucketCounter};
use crate::pn_counter::{Incarnation, PnCounter};

/// The change of a counter by a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MergeGrowth {
    /// The counter has not changed.
    None,
    /// This number of units was charged, and none was removed.
    Charged(u64),
    /// Units were removed.
    Removed,
}

impl KeyReplica {
    /// Merges the counter of another incarnation in one bucket. If it has grown, the caller must either [add the charged
    /// units](Self::record_added_units) to the state of the key, or [mark the updates](Self::mark_updates_unapplied) as
    /// unapplied.
    pub(crate) fn merge(
        &mut self,
        incarnation: Incarnation,
        bucket: u64,
        units: &PnCounter,
    ) -> MergeGrowth {
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
            MergeGrowth::Removed
        } else {
            match after.value() - before.value() {
                0 => MergeGrowth::None,
                charged => MergeGrowth::Charged(charged),
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

    /// Merges `removed`: the number of units that, according to another node, were removed from this node's charges in
    /// a bucket. Returns `true` if the number known to this node has grown.
    pub(crate) fn merge_removed_units(&mut self, bucket: u64, removed: u64) -> bool {
        let Some(local) = self.local.iter_mut().find(|local| local.bucket == bucket) else {
            return false;
        };
        // Units that were not charged cannot be removed.
        let removed = removed.min(local.units.charged);
        let has_grown = removed > local.units.removed;
        local.units.removed = local.units.removed.max(removed);
        self.has_unapplied_updates |= has_grown;
        has_grown
    }
}
