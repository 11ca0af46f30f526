//! Converts the rules that apply to a request into the limits of the decision on the request.
//!
//! Invariant: the origins have one entry for each hit of [`MatchedRules::hits`], in the same order.

use super::hit_origin::HitOrigins;
use super::matched::MatchedRules;
use crate::decision::{DecisionLimits, PolicyLimits};

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

    /// Returns the limits of a decision that is not based on any limit.
    pub(crate) fn no_limits(&self) -> DecisionLimits<'static> {
        let (rules, origins) = (self.rules.clone(), HitOrigins::default());
        DecisionLimits::Policy(PolicyLimits { rules, origins })
    }
}
