//! What a rule says to a cluster, with what holds if it says nothing.

use std::num::NonZeroU64;

use slidegate::{Hit, OnPartition};

/// What holds for one hit.
pub(crate) struct Terms {
    max_unsynced: Option<u64>,
    on_partition: OnPartition,
    capacity: u64,
}

impl Terms {
    #[inline]
    pub(crate) fn of(hit: &Hit<'_>) -> Self {
        let terms = hit.key.cluster().copied().unwrap_or_default();
        Self {
            max_unsynced: terms.max_unsynced().map(NonZeroU64::get),
            on_partition: terms.on_partition(),
            capacity: hit.limit.capacity(),
        }
    }

    /// Whether so many units may be charged before every member has acknowledged them.
    #[inline]
    pub(crate) fn allows(&self, units: u64, nodes: u32) -> bool {
        match self.max_unsynced {
            Some(most) => units <= most,
            // As `max_unsynced` has it, without a division.
            None => units <= 1 || units.saturating_mul(2 * u64::from(nodes)) <= self.capacity,
        }
    }

    /// How many may.
    pub(crate) fn max_unsynced(&self, nodes: u32) -> u64 {
        let share = self.capacity / (2 * u64::from(nodes.max(1)));
        self.max_unsynced.unwrap_or(share.max(1))
    }

    pub(crate) fn on_partition(&self) -> OnPartition {
        self.on_partition
    }
}
