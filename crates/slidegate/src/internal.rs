//! Items for the other crates of this workspace. They are not part of the public API, and may change in any version.

use std::borrow::Cow;
use std::fmt;

use crate::algorithm::with_counter;
use crate::clock::Timestamp;
use crate::decision::{Decision, DecisionLimits};
#[cfg(feature = "policy")]
use crate::gate::Gate;
use crate::key::{self, Key, Value};
use crate::limit::Limit;
use crate::limiter::Limiter;
use crate::outcome::Outcome;
#[cfg(feature = "policy")]
use crate::request::Descriptor;

pub use crate::algorithm::additive::{Additive, BucketLayout};
pub use crate::algorithm::fixed_window::FixedWindow;
pub use crate::algorithm::sliding_buckets::{MAX_BUCKETS, SlidingBuckets};
pub use crate::algorithm::sliding_counter::SlidingCounter;
pub use crate::algorithm::sliding_log::MAX_ENTRIES;
pub use crate::algorithm::{AnyAdditive, Counter};
pub use crate::heap::{HeapSize, allocated_bytes};
pub use crate::key::KeyGroup;
#[cfg(feature = "policy")]
pub use crate::policy::error::SourceSpan;
#[cfg(feature = "policy")]
pub use crate::policy::file::deserialize::Field;
#[cfg(feature = "policy")]
pub use crate::policy::file::deserialize_yaml;
#[cfg(feature = "policy")]
pub use crate::policy::file::suggest::most_similar_word;
#[cfg(feature = "tokio")]
pub use crate::restart::{RESTART_DELAY, restart_on_panic};
pub use crate::store::one_or_many::OneOrMany;
pub use crate::store::shards::{LockedShards, PaddedShard, ShardTables, Shards};
pub use crate::store::table::{CoarseTime, Evict, Slot, SlotIndex, Table, depletion};

/// Adds attributes and named costs to a descriptor, and sets its unnamed cost, without a copy of the descriptor, which is
/// large. The third item of an attribute contains the bytes of a value that is not UTF-8.
#[cfg(feature = "policy")]
pub fn extend_descriptor<'a>(
    descriptor: &mut Descriptor<'a>,
    attributes: impl Iterator<Item = (&'a str, &'a str, Option<&'a [u8]>)>,
    plain_cost: u64,
    named_costs: &[(&'a str, u64)],
) {
    descriptor.extend(attributes, plain_cost, named_costs);
}

/// Returns the number of policies that a gate has had. It is at least 1, and increases when the policy is replaced.
#[cfg(feature = "policy")]
pub fn policy_version<S>(gate: &Gate<S>) -> u64 {
    gate.policy_version()
}

/// Returns the decision of a limiter on a request that has no key although a key is required: a denial without a retry
/// time, or, in [observe mode](Limiter::observing), an admission.
pub fn decide_without_key<S>(limiter: &Limiter<S>) -> Decision<'static> {
    let limits = owned_limiter_limits(limiter, true);
    Decision::with_zero_capacity(limiter.named_limits().veto(), limits)
}

/// Returns a denial of a limiter whose store is unavailable.
pub fn deny_without_store<S>(limiter: &Limiter<S>) -> Decision<'static> {
    Decision::store_unavailable(owned_limiter_limits(limiter, false))
}

fn owned_limiter_limits<S>(limiter: &Limiter<S>, is_key_missing: bool) -> DecisionLimits<'static> {
    DecisionLimits::Limiter { limits: Cow::Owned(limiter.named_limits().clone()), is_key_missing }
}

/// Marks a decision as made without the store.
pub fn into_degraded(decision: Decision<'_>) -> Decision<'_> {
    decision.into_degraded()
}

/// Returns the names of the attributes by which a key counts, with their values, in the order of `per`. Returns `None`
/// if the key consists of hashes or of a store's identifier.
pub fn name_value_pairs<'a>(
    key: &Key<'a>,
) -> Option<impl Iterator<Item = (&'a str, &'a Value<'a>)> + Clone + use<'a>> {
    key.name_value_pairs()
}

/// Writes names and values with percent-encoding, such as `tenant=acme,ip=192.0.2.7`, or a digest of this text if it is
/// too long. Colons are also encoded unless the text is within the braces of a key.
pub fn write_name_value_pairs<'p>(
    f: &mut fmt::Formatter<'_>,
    pairs: impl Iterator<Item = (&'p str, &'p Value<'p>)> + Clone,
    is_in_braces: bool,
) -> fmt::Result {
    key::write_name_value_pairs(f, pairs, is_in_braces)
}

/// Returns the outcome of a hit that requires one unit of a counter that has no units in use.
pub fn unused_counter_outcome(limit: &Limit) -> Outcome {
    with_counter!(limit.counter(), counter => unused_state_outcome(counter))
}

fn unused_state_outcome<C: Counter>(counter: C) -> Outcome {
    counter.peek(&C::State::default(), Timestamp::from_micros(0), 1)
}
