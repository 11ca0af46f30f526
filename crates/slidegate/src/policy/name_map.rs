//! Maps whose keys are names of the policy.

use foldhash::fast::FixedState;
use indexmap::IndexMap;

/// A map from texts of the policy, such as attribute names, to values. Iterates in the order of insertion. The hash
/// function has a fixed seed, which is safe because clients choose no keys of the map.
pub(super) type NameMap<V> = IndexMap<Box<str>, V, FixedState>;
