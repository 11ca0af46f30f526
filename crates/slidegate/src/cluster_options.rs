//! Options of a limit for a cluster, whose nodes replicate counters to each other. Other stores ignore them.

use std::num::NonZeroU64;

use serde::Deserialize;
use thiserror::Error;

use crate::quota::MAX_UNITS;

/// Options for the keys of one limit in a cluster, whose nodes replicate counters to each other. Other stores ignore
/// the options.
///
/// ```
/// use slidegate::store::{ClusterOptions, Key, OnPartition, Scope};
///
/// let options = ClusterOptions::new().with_max_unsynced(50)?.with_on_partition(OnPartition::Available);
/// let scope = Scope::new("api", "hot", "1s", &["tenant"]).with_cluster(options);
/// let values = ["acme".into()];
/// assert_eq!(Key::new(&scope, &values).cluster_options(), Some(&options));
/// # Ok::<(), slidegate::store::ClusterOptionsError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterOptions {
    max_unsynced: Option<NonZeroU64>,
    on_partition: OnPartition,
}

/// The behavior of a node while other nodes are unreachable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnPartition {
    /// Charges still need the acknowledgement of an unreachable node, until the charges of that node have left their
    /// window and a majority of the nodes is reachable. The number of units admitted above the limit stays bounded.
    #[default]
    Bounded,
    /// Charges do not need the acknowledgement of an unreachable node. Each part of a partitioned cluster enforces the
    /// full limit on its own.
    Available,
}

/// Invalid options for a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ClusterOptionsError {
    /// The given `max_unsynced` is 0.
    #[error(
        "a `max_unsynced` of 0 denies everything; use 1 or more (with 1, each charge waits until all other nodes have acknowledged the previous one)"
    )]
    MaxUnsyncedZero,
    /// The given `max_unsynced` exceeds [`MAX_UNITS`].
    #[error("a `max_unsynced` of {0} is too large; the maximum is {MAX_UNITS}")]
    MaxUnsyncedTooLarge(u64),
}

impl ClusterOptions {
    /// Creates default options: the store's default of `max_unsynced`, and [`OnPartition::Bounded`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the largest number of units per key that a node may allow before every other node has acknowledged them.
    ///
    /// # Errors
    /// If `units` is 0 or exceeds [`MAX_UNITS`].
    pub fn with_max_unsynced(self, units: u64) -> Result<Self, ClusterOptionsError> {
        match NonZeroU64::new(units) {
            None => Err(ClusterOptionsError::MaxUnsyncedZero),
            Some(_) if units > MAX_UNITS => Err(ClusterOptionsError::MaxUnsyncedTooLarge(units)),
            max_unsynced => Ok(Self { max_unsynced, ..self }),
        }
    }

    /// Sets the behavior while nodes are unreachable.
    pub fn with_on_partition(self, on_partition: OnPartition) -> Self {
        Self { on_partition, ..self }
    }

    /// Returns the largest number of units per key that a node may allow before every other node has acknowledged them;
    /// `None` for the store's default.
    pub fn max_unsynced(&self) -> Option<NonZeroU64> {
        self.max_unsynced
    }

    /// Returns the behavior while nodes are unreachable.
    pub fn on_partition(&self) -> OnPartition {
        self.on_partition
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_unsynced_is_between_1_and_max_units() {
        let max_unsynced = |units| {
            let options = ClusterOptions::new().with_max_unsynced(units)?;
            Ok(options.max_unsynced().map(NonZeroU64::get))
        };
        assert_eq!(max_unsynced(1), Ok(Some(1)));
        assert_eq!(max_unsynced(MAX_UNITS), Ok(Some(MAX_UNITS)));
        assert_eq!(max_unsynced(0), Err(ClusterOptionsError::MaxUnsyncedZero));
        for units in [MAX_UNITS + 1, u64::MAX] {
            assert_eq!(max_unsynced(units), Err(ClusterOptionsError::MaxUnsyncedTooLarge(units)));
        }
    }

    #[test]
    fn default_cluster_options_are_bounded() {
        let options = ClusterOptions::new();
        assert_eq!((options.max_unsynced(), options.on_partition()), (None, OnPartition::Bounded));
    }
}
