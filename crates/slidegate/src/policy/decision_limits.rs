//! Converts the rules that apply to a request into the limits of the decision on the request.
//!
//! Invariant: the origins have one entry for each hit of [`MatchedRules::hits`], in the same order.

use super::cost::RuleCost;
use super::hit_origin::{HitOrigin, HitOrigins};
use super::matched::{Match, MatchedRules};
use crate::decision::{DecisionLimits, OwnedLimits, PolicyLimits};

impl MatchedRules<'_> {
    /// Returns the rule and the limit of each hit, in the order of [`hits`](Self::hits).
    fn hit_origins(&self) -> HitOrigins {
        let mut origins = HitOrigins::default();
        for rule_match in &self.matches {
            let mut origin = rule_match.first_hit_origin();
            let limits = rule_match.limits();
            if limits.is_empty() {
                origins.push_unlimited_descriptor(rule_match.descriptor_index);
            } else if let Some(limit) = &rule_match.details.requested {
                origin.limit = origins.push_requested_limit(limit.clone());
            }
            for _ in limits {
                origins.push(origin);
                origin.limit += 1;
            }
        }
        origins
    }

    /// Returns the rules and limits of the hits, for the decision on the request.
    pub(crate) fn decision_limits(&self) -> DecisionLimits<'static> {
        let limits = PolicyLimits { rules: self.rules.clone(), origins: self.hit_origins() };
        DecisionLimits::Owned(Box::new(OwnedLimits::Policy(limits)))
    }

    /// Returns the limits of a decision that is not based on any limit.
    pub(crate) fn no_limits(&self) -> DecisionLimits<'static> {
        let limits = PolicyLimits { rules: self.rules.clone(), origins: HitOrigins::default() };
        DecisionLimits::Owned(Box::new(OwnedLimits::Policy(limits)))
    }
}

impl Match<'_> {
    fn first_hit_origin(&self) -> HitOrigin {
        HitOrigin {
            matched: self.match_index,
            descriptor: self.descriptor_index,
            rule: self.rule_index,
            settings_source: self.details.settings_source,
            limit: 0,
            is_requested: self.details.requested.is_some(),
            is_refund: self.is_refund,
            is_reported: self.is_reported,
            has_request_cost: *self.rule.cost() == RuleCost::Request && !self.is_refund,
            veto: self.details.veto,
        }
    }
}
