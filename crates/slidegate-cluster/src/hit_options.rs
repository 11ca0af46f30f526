//! Cluster options of a rule, with default values for the options that the rule does not set.

use std::num::NonZeroU64;

use slidegate::store::{Hit, OnPartition};

/// Cluster options of the rule that a hit belongs to.
pub(crate) struct HitOptions {
    max_unsynced: Option<u64>,
    on_partition: OnPartition,
    capacity: u64,
}

impl HitOptions {
    #[inline]
    pub(crate) fn new(hit: &Hit<'_>) -> Self {
        let options = hit.key.cluster_options().copied().unwrap_or_default();
        Self {
            max_unsynced: options.max_unsynced().map(NonZeroU64::get),
            on_partition: options.on_partition(),
            capacity: hit.limit.capacity(),
        }
    }

    /// Returns `true` if `units` is at most the maximum number of unacknowledged units per node, in a cluster of
    /// `nodes` nodes. A unit is unacknowledged if the node has charged it to the key, but not every member has
    /// acknowledged it.
    #[inline]
    pub(crate) fn allows_unsynced_units(&self, units: u64, nodes: u32) -> bool {
        match self.max_unsynced {
            Some(max) => units <= max,
            // Has the same result as a comparison with the default of `max_unsynced`, without a division.
            None => units <= 1 || units.saturating_mul(2 * u64::from(nodes)) <= self.capacity,
        }
    }

    /// Returns the maximum number of unacknowledged units per node, in a cluster of `nodes` nodes. A unit is
    /// unacknowledged if the node has charged it to the key, but not every member has acknowledged it.
    pub(crate) fn max_unsynced(&self, nodes: u32) -> u64 {
        let share = self.capacity / (2 * u64::from(nodes.max(1)));
        self.max_unsynced.unwrap_or(share.max(1))
    }

    /// Returns the `on_partition` option of the rule, which determines whether charges to the key need the
    /// acknowledgements of unreachable members.
    pub(crate) fn on_partition(&self) -> OnPartition {
        self.on_partition
    }
}
