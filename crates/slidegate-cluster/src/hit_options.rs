//! Cluster options of a rule, with defaults for the options that the rule omits.

use std::num::NonZeroU64;

use slidegate::{Hit, OnPartition};

/// Cluster options of the rule that a hit belongs to.
pub(crate) struct HitOptions {
    max_unsynced: Option<u64>,
    on_partition: OnPartition,
    capacity: u64,
}

impl HitOptions {
    #[inline]
    pub(crate) fn new(hit: &Hit<'_>) -> Self {
        let options = hit.key.cluster().copied().unwrap_or_default();
        Self {
            max_unsynced: options.max_unsynced().map(NonZeroU64::get),
            on_partition: options.on_partition(),
            capacity: hit.limit.capacity(),
        }
    }

    /// Returns `true` if each node of a cluster of `nodes` nodes may have `units` unacknowledged units: units that it
    /// has charged to the key, but that not every member has acknowledged.
    #[inline]
    pub(crate) fn allows_unsynced_units(&self, units: u64, nodes: u32) -> bool {
        match self.max_unsynced {
            Some(max) => units <= max,
            // Equivalent to `max_unsynced`, without a division.
            None => units <= 1 || units.saturating_mul(2 * u64::from(nodes)) <= self.capacity,
        }
    }

    /// Returns the maximum number of unacknowledged units for each node of a cluster of `nodes` nodes: units that it
    /// has charged to the key, but that not every member has acknowledged.
    pub(crate) fn max_unsynced(&self, nodes: u32) -> u64 {
        let share = self.capacity / (2 * u64::from(nodes.max(1)));
        self.max_unsynced.unwrap_or(share.max(1))
    }

    /// Returns whether charges to the key need the acknowledgement of unreachable members.
    pub(crate) fn on_partition(&self) -> OnPartition {
        self.on_partition
    }
}
