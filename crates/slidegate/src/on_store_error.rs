//! The behavior of limits while the store is unavailable.

use serde::Deserialize;

/// The behavior of a rule or a limiter while the store is unavailable, from the least to the most strict.
///
/// If several rules apply to a request, and one that can deny it has `deny`, the request is denied. Otherwise each rule
/// follows its own behavior. A rule without limits never uses the store, so its behavior has no effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnStoreError {
    /// The limits are not checked.
    Allow,
    /// Each slidegate instance enforces the limits in its own memory, with max(1, max / instances) instead of max. Over
    /// any number of outages, a window contains at most twice the number of units that the algorithm allows in any
    /// window: 2 * max with `sliding_window`. If max is less than the number of instances, each instance allows one unit
    /// in memory. The bound requires the correct number of instances.
    #[default]
    Local,
    /// The request is denied.
    Deny,
}
