//! Converts the rules that apply to a request into the limits of the decision on the request.
//!
//! Invariant: the origins have one entry for each hit of [`MatchedRules::hits`], in the same order.

use super::hit_origin::HitOrigins;
use super::matched::MatchedRules;
use crate::decision::{DecisionLimits, OwnedLimits, PolicyLimits};

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
    pub(crate) fn decision_limits(&self) -> DecisionLimits<'static> {
        let mut limits = self.new_policy_limits();
        // Written into the box, because a copy of all origins takes more instructions than a usual request has origins.
        if let OwnedLimits::Policy(limits) = &mut *limits {
            self.append_hit_origins(&mut limits.origins);
        }
        DecisionLimits::Owned(limits)
    }

    /// Returns the limits of a decision that is not based on any limit.
    pub(crate) fn no_limits(&self) -> DecisionLimits<'static> {
        DecisionLimits::Owned(self.new_policy_limits())
    }

    #[inline]
    fn new_policy_limits(&self) -> Box<OwnedLimits> {
        let (rules, origins) = (self.rules.clone(), HitOrigins::default());
        Box::new(OwnedLimits::Policy(PolicyLimits { rules, origins }))
    }
}
