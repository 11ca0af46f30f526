//! Items for the tower crate. They are not part of the public API, and may change in any version.

use std::borrow::Cow;

use crate::decision::{Decision, DecisionLimits};
use crate::limiter::Limiter;

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
