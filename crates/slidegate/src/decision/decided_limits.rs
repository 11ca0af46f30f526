//! The limits of a decision without their status, by which decisions with the same limits are recognized.

use std::sync::Arc;

use super::Decision;
use super::limit_status::LimitsRef;
#[cfg(feature = "policy")]
use super::limit_status::{LimitOfRule, PolicyLimits};
use crate::outcome::Outcome;
use crate::rule_limit::LimiterLimits;

/// The limits of a decision without their status, for a comparison with the limits of later decisions.
///
/// Decisions with the same limits have the same [policy header](crate::headers::policy_header), unless the window of a
/// limit [varies](crate::Limit::has_varying_window).
#[derive(Clone, Debug)]
pub struct DecidedLimits(DecidedLimitsRepr);

/// The limiter, the limit of a rule, or the limits of several rules that have decided.
#[derive(Clone, Debug)]
enum DecidedLimitsRepr {
    Limiter(Arc<LimiterLimits>),
    #[cfg(feature = "policy")]
    Rule(LimitOfRule),
    #[cfg(feature = "policy")]
    Policy(PolicyLimits),
}

impl Decision<'_> {
    /// Returns the limits of the decision; `None` if they cannot be compared cheaply.
    pub fn decided_limits(&self) -> Option<DecidedLimits> {
        let limits = match self.hits.limits() {
            LimitsRef::Limiter { is_key_missing: true, .. } => return None,
            LimitsRef::Limiter { limits, .. } => DecidedLimitsRepr::Limiter(limits.clone()),
            #[cfg(feature = "policy")]
            LimitsRef::Rule(limit) => DecidedLimitsRepr::Rule(limit.clone()),
            #[cfg(feature = "policy")]
            LimitsRef::Policy(limits) => DecidedLimitsRepr::Policy(limits.clone()),
        };
        self.has_evaluated_all_limits().then_some(DecidedLimits(limits))
    }

    /// Returns `true` if the decision is known to have these limits. Returns `false` if the limits differ or cannot be
    /// compared cheaply.
    #[inline]
    pub fn has_same_limits(&self, other: &DecidedLimits) -> bool {
        let are_same = match (self.hits.limits(), &other.0) {
            (
                LimitsRef::Limiter { limits, is_key_missing: false },
                DecidedLimitsRepr::Limiter(other),
            ) => Arc::ptr_eq(limits, other),
            #[cfg(feature = "policy")]
            (LimitsRef::Rule(first), DecidedLimitsRepr::Rule(second)) => {
                Arc::ptr_eq(&first.rules, &second.rules) && first.origin == second.origin
            }
            #[cfg(feature = "policy")]
            (LimitsRef::Policy(first), DecidedLimitsRepr::Policy(second)) => {
                Arc::ptr_eq(&first.rules, &second.rules) && first.origins.are_same(&second.origins)
            }
            _ => false,
        };
        are_same && self.has_evaluated_all_limits()
    }

    /// Returns whether the store has evaluated all limits. It has evaluated none if it is unavailable.
    #[inline]
    fn has_evaluated_all_limits(&self) -> bool {
        let outcomes = self.hits.outcomes();
        !outcomes.is_empty() && outcomes.iter().all(Outcome::is_known)
    }
}
