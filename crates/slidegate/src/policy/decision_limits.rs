//! Converts the rules that apply to a request into the limits of the decision on the request.
//!
//! Invariant: the origins have one entry for each hit of [`MatchedRules::hits`], in the same order.

use super::hit_origin::HitOrigins;
use super::matched::MatchedRules;
use crate::decision::{DecisionLimits, LimitOfRule, PolicyLimits};
use crate::hit::Hit;

impl MatchedRules<'_> {
    /// Appends the rule and the limit of each hit, in the order of [`hits`](Self::hits).
    #[inline]
    fn append_hit_origins(&self, origins: &mut HitOrigins) {
        for rule_match in &self.matches {
            let mut origin = rule_match.origin;
            let limits = rule_match.limits();
            if limits.is_empty() {
                origins.push_unlimited_descriptor(origin.descriptor);
            } else if let Some(limit) = &rule_match.requested {
                origin.limit = origins.push_requested_limit(limit.clone());
            }
            for _ in limits {
                origins.push(origin);
                origin.limit += 1;
            }
        }
    }

    /// Returns the rules and limits of the hits, for the decision on the request.
    #[inline]
    pub(crate) fn decision_limits(&self) -> DecisionLimits<'static> {
        let mut origins = HitOrigins::default();
        self.append_hit_origins(&mut origins);
        DecisionLimits::Policy(PolicyLimits { rules: self.rules.clone(), origins })
    }

    /// Returns the only hit of the request and its limit; `None` if there are several hits or none, or if the hit refunds
    /// units or has a limit that the descriptor contains.
    #[inline(always)]
    pub(crate) fn single_hit(&self) -> Option<(Hit<'_>, LimitOfRule)> {
        // Without this line, the compiler determines for each field whether the only match is on the heap.
        if self.matches.spilled() {
            return None;
        }
        let [rule_match] = &*self.matches else { return None };
        let [limit] = rule_match.limits else { return None };
        if rule_match.requested.is_some() || rule_match.is_refund() {
            return None;
        }
        let limit_of_rule = LimitOfRule { rules: self.rules.clone(), origin: rule_match.origin };
        Some((rule_match.hit(limit), limit_of_rule))
    }

    /// Returns the limits of a decision that is not based on any limit.
    pub(crate) fn no_limits(&self) -> DecisionLimits<'static> {
        let (rules, origins) = (self.rules.clone(), HitOrigins::default());
        DecisionLimits::Policy(PolicyLimits { rules, origins })
    }
}
