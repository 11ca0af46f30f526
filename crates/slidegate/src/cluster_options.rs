//! What a rule says to stores that count in a cluster: data that rides along, and that other stores ignore.

use std::num::NonZeroU64;

use serde::Deserialize;
use thiserror::Error;

use crate::quota::MAX_UNITS;

/// What a rule says to stores whose nodes tell each other what they counted; other stores ignore it. For the keys of
/// one limit.
///
/// ```
/// use slidegate::{ClusterOptions, Key, OnPartition, Scope};
///
/// let terms = ClusterOptions::new().with_max_unsynced(50)?.with_on_partition(OnPartition::Available);
/// let scope = Scope::new("api", "hot", "1s", &["tenant"]).with_cluster(terms);
/// let values = ["acme".into()];
/// assert_eq!(Key::new(&scope, &values).cluster(), Some(&terms));
/// # Ok::<(), slidegate::ClusterOptionsError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterOptions {
    max_unsynced: Option<NonZeroU64>,
    on_partition: OnPartition,
}

/// What holds while nodes are silent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnPartition {
    /// A node that is silent still has to acknowledge charges, until its own have left their window and most nodes
    /// are on this side: what slips through stays bounded.
    #[default]
    Bounded,
    /// A node that is silent is not waited for: each part of the cluster enforces all of the limit on its own.
    Available,
}

/// Why terms for a cluster cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ClusterOptionsError {
    /// A node may be ahead by nothing.
    #[error(
        "a `max_unsynced` of 0 lets nothing pass: take 1, by which each charge of a node waits until all others know of its last, or more"
    )]
    NothingUnsynced,
    /// More than any limit has.
    #[error("a `max_unsynced` of {0} is too large: at most {MAX_UNITS}")]
    TooManyUnsynced(u64),
}

impl ClusterOptions {
    /// Terms that say nothing yet: the store's own default of `max_unsynced`, and [`OnPartition::Bounded`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Has a node allow so many units of each key, and no more, that not every other node has acknowledged.
    ///
    /// # Errors
    /// If it is 0, or more than [`MAX_UNITS`].
    pub fn with_max_unsynced(self, units: u64) -> Result<Self, ClusterOptionsError> {
        match NonZeroU64::new(units) {
            None => Err(ClusterOptionsError::NothingUnsynced),
            Some(_) if units > MAX_UNITS => Err(ClusterOptionsError::TooManyUnsynced(units)),
            max_unsynced => Ok(Self { max_unsynced, ..self }),
        }
    }

    /// Says what holds while nodes are silent.
    pub fn with_on_partition(self, on_partition: OnPartition) -> Self {
        Self { on_partition, ..self }
    }

    /// Units of a key that a node may have allowed and that not every other node has acknowledged; none: what the
    /// store takes if nothing is said.
    pub fn max_unsynced(&self) -> Option<NonZeroU64> {
        self.max_unsynced
    }

    /// What holds while nodes are silent.
    pub fn on_partition(&self) -> OnPartition {
        self.on_partition
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_may_be_ahead_by_one_unit_to_as_many_as_a_limit_has() {
        let most = |units| {
            let terms = ClusterOptions::new().with_max_unsynced(units)?;
            Ok(terms.max_unsynced().map(NonZeroU64::get))
        };
        assert_eq!((most(1), most(MAX_UNITS)), (Ok(Some(1)), Ok(Some(MAX_UNITS))));
        assert_eq!(most(0), Err(ClusterOptionsError::NothingUnsynced));
        for many in [MAX_UNITS + 1, u64::MAX] {
            assert_eq!(most(many), Err(ClusterOptionsError::TooManyUnsynced(many)));
        }
    }

    #[test]
    fn terms_that_say_nothing_are_bounded() {
        let terms = ClusterOptions::new();
        assert_eq!((terms.max_unsynced(), terms.on_partition()), (None, OnPartition::Bounded));
    }
}
