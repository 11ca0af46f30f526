//! The status of the limits of a decision, and the rules and limits from which the decision was made.

use std::sync::Arc;
use std::time::Duration;

use crate::hit::Veto;
use crate::limit::Limit;
use crate::outcome::Outcome;
#[cfg(feature = "policy")]
use crate::policy::{HitOrigin, HitOrigins, Match, MatchedRules, Rule, SettingsSource};
use crate::rule_limit::{LimiterLimits, RuleLimit};

/// The limits from which a decision was made, one for each outcome of the decision.
#[derive(Clone, Debug)]
pub(crate) enum DecisionLimits<'l> {
    /// The limits of a limiter, borrowed from it.
    Limiter(&'l Arc<LimiterLimits>),
    /// The limits of a limiter.
    OwnedLimiter {
        limits: Arc<LimiterLimits>,
        /// Whether the request has no key, so that the decision is based on [`LimiterLimits::missing`].
        is_key_missing: bool,
    },
    /// The limits of the rules of a policy.
    #[cfg(feature = "policy")]
    Policy(PolicyLimits),
}

/// Borrowed [`DecisionLimits`].
#[derive(Clone, Copy)]
pub(super) enum LimitsRef<'d> {
    Limiter {
        limits: &'d Arc<LimiterLimits>,
        is_key_missing: bool,
    },
    #[cfg(feature = "policy")]
    Policy(&'d PolicyLimits),
    #[cfg(feature = "policy")]
    Rule(&'d LimitOfRule),
}

/// The limits of the rules of a policy, one for each outcome of a decision.
#[cfg(feature = "policy")]
#[derive(Clone, Debug)]
pub(crate) struct PolicyLimits {
    /// The rules of the policy, with the limits that were enforced.
    pub(crate) rules: Arc<[Rule]>,
    /// The rule and limit from which each hit of the request came.
    pub(crate) origins: HitOrigins,
}

/// A limit of a rule of a policy.
#[cfg(feature = "policy")]
#[derive(Clone, Debug)]
pub(crate) struct LimitOfRule {
    /// The rules of the policy.
    pub(crate) rules: Arc<[Rule]>,
    /// The rule and the limit. The limit is one of the rule, not of a descriptor.
    pub(crate) origin: HitOrigin,
}

/// The status of one limit after a decision. If the request was charged, the status includes the charge.
#[derive(Clone, Copy, Debug)]
pub struct LimitStatus<'d> {
    source: LimitStatusSource<'d>,
    limit: &'d RuleLimit,
    outcome: Outcome,
    veto: Veto,
}

/// The limiter or the rule that has a limit.
#[derive(Clone, Copy, Debug)]
enum LimitStatusSource<'d> {
    Limiter {
        name: &'d str,
        is_key_missing: bool,
    },
    #[cfg(feature = "policy")]
    Rule(&'d Rule, HitOrigin),
}

impl<'d> LimitStatus<'d> {
    /// Returns the rule that has the limit; `None` if the limit belongs to a [`Limiter`](crate::Limiter).
    #[cfg(feature = "policy")]
    pub fn rule(&self) -> Option<&'d Rule> {
        match self.source {
            LimitStatusSource::Limiter { .. } => None,
            LimitStatusSource::Rule(rule, _) => Some(rule),
        }
    }

    /// Returns the name of the rule or the limiter that has the limit.
    pub fn rule_name(&self) -> &'d str {
        match self.source {
            LimitStatusSource::Limiter { name, .. } => name,
            #[cfg(feature = "policy")]
            LimitStatusSource::Rule(rule, _) => rule.name(),
        }
    }

    /// Returns the quota and the algorithm of the limit.
    pub fn limit(&self) -> &'d Limit {
        self.limit.limit()
    }

    /// Returns the limit with its names.
    pub fn rule_limit(&self) -> &'d RuleLimit {
        self.limit
    }

    /// Returns the id of the limit in its rule: the name of the limit, or the window, such as `1m`, if it has no name.
    pub fn id(&self) -> &'d str {
        self.limit.id()
    }

    /// Returns the index of the limit in [`Policy::limits`](crate::Policy::limits); 0 if the limit belongs to a
    /// limiter.
    pub fn limit_index(&self) -> usize {
        self.limit.index()
    }

    /// Returns the name of the limit in headers: the name of the rule, or `rule.id` if several limits of the rule
    /// apply.
    pub fn policy_name(&self) -> &'d str {
        self.limit.policy_name()
    }

    /// Returns whether the cost of the request fitted the limit before the charge.
    pub fn fits(&self) -> bool {
        self.outcome.fits()
    }

    /// Returns the units that the limit still admits.
    pub fn remaining(&self) -> u64 {
        self.outcome.remaining()
    }

    /// Returns the duration after which no unit of the limit is in use, unless further units are charged.
    pub fn reset_after(&self) -> Duration {
        self.outcome.reset_after()
    }

    /// Returns the duration until this request would fit the limit: zero if it fits, `None` if it never fits or the
    /// duration is not known. The duration until a request in flight [ends](Limit::concurrent) is not known.
    pub fn retry_after(&self) -> Option<Duration> {
        let is_known = self.outcome.fits() || !self.limit().is_concurrent();
        self.outcome.retry_after().filter(|_| is_known)
    }

    /// Returns the outcome that the store returned for the limit.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Returns whether the limit can deny the request: on its own, jointly with other limits, or never.
    pub fn veto(&self) -> Veto {
        self.veto
    }

    /// Returns whether the limit denies the request because the request does not fit. For a [joint](Veto::Jointly)
    /// limit, returns `true` if the request does not fit this limit; the request is denied only if it fits none of its
    /// joint limits.
    pub fn is_denying(&self) -> bool {
        self.veto != Veto::Never && !self.outcome.fits()
    }

    /// Returns whether the limit is in observe mode, in which it never denies a request.
    pub fn is_observed(&self) -> bool {
        self.veto == Veto::Never && !self.is_refund() && !self.is_reported()
    }

    /// Returns whether the request [refunded](crate::Descriptor::as_refund) units of the limit. The status is then that
    /// of the counter after the refund.
    pub fn is_refund(&self) -> bool {
        match self.source {
            LimitStatusSource::Limiter { .. } => false,
            #[cfg(feature = "policy")]
            LimitStatusSource::Rule(_, origin) => origin.is_refund,
        }
    }

    fn is_reported(&self) -> bool {
        match self.source {
            LimitStatusSource::Limiter { .. } => false,
            #[cfg(feature = "policy")]
            LimitStatusSource::Rule(_, origin) => origin.is_reported,
        }
    }

    /// Returns whether the limit denies the request because the request lacks the attribute or key that is counted.
    pub(super) fn is_key_missing(&self) -> bool {
        match self.source {
            LimitStatusSource::Limiter { is_key_missing, .. } => is_key_missing,
            #[cfg(feature = "policy")]
            LimitStatusSource::Rule(_, origin) => origin.settings_source == SettingsSource::Missing,
        }
    }

    /// Returns the HTTP status with which the rule denies requests; `None` if it does not specify one.
    pub(super) fn deny_status(&self) -> Option<u16> {
        match self.source {
            LimitStatusSource::Limiter { .. } => None,
            #[cfg(feature = "policy")]
            LimitStatusSource::Rule(rule, _) => rule.deny_status(),
        }
    }
}

#[cfg(feature = "policy")]
impl LimitOfRule {
    /// Returns the rule and the limit; `None` if they do not exist.
    #[inline]
    fn find(&self) -> Option<(&Rule, &RuleLimit)> {
        let rule = self.rules.get(self.origin.rule as usize)?;
        let limits = rule.limits(self.origin.settings_source);
        Some((rule, limits.get(usize::from(self.origin.limit))?))
    }

    /// Returns the quota and the algorithm of the limit.
    #[inline]
    pub(super) fn limit(&self) -> Option<&Limit> {
        self.find().map(|(_, limit)| limit.limit())
    }
}

#[cfg(feature = "policy")]
impl LimitStatus<'_> {
    /// Returns the index in [`MatchedRules::matches`] of the match that has the limit. A match is a rule that applies
    /// to a descriptor. 0 if the limit belongs to a limiter.
    pub fn match_index(&self) -> usize {
        match self.source {
            LimitStatusSource::Limiter { .. } => 0,
            LimitStatusSource::Rule(_, origin) => origin.matched as usize,
        }
    }

    /// Returns the index, in the request, of the descriptor to which the limit applies; 0 if the limit belongs to a
    /// limiter.
    pub fn descriptor(&self) -> usize {
        match self.source {
            LimitStatusSource::Limiter { .. } => 0,
            LimitStatusSource::Rule(_, origin) => origin.descriptor as usize,
        }
    }

    /// Returns the match that has the limit, that is, the rule that applies to a descriptor. `matched` must be the
    /// rules from which the decision was made; otherwise the result is a different match, or `None`.
    pub fn find_match<'a, 'm>(&self, matched: &'a MatchedRules<'m>) -> Option<&'a Match<'m>> {
        matched.matches().nth(self.match_index())
    }
}

impl DecisionLimits<'_> {
    /// Returns the same limits without borrowing from the limiter.
    pub(super) fn into_owned(self) -> DecisionLimits<'static> {
        match self {
            Self::Limiter(limits) => {
                DecisionLimits::OwnedLimiter { limits: limits.clone(), is_key_missing: false }
            }
            Self::OwnedLimiter { limits, is_key_missing } => {
                DecisionLimits::OwnedLimiter { limits, is_key_missing }
            }
            #[cfg(feature = "policy")]
            Self::Policy(limits) => DecisionLimits::Policy(limits),
        }
    }

    #[inline]
    pub(super) fn as_ref(&self) -> LimitsRef<'_> {
        match self {
            Self::Limiter(limits) => LimitsRef::Limiter { limits, is_key_missing: false },
            Self::OwnedLimiter { limits, is_key_missing } => {
                LimitsRef::Limiter { limits, is_key_missing: *is_key_missing }
            }
            #[cfg(feature = "policy")]
            Self::Policy(limits) => LimitsRef::Policy(limits),
        }
    }
}

impl<'d> LimitsRef<'d> {
    /// Returns the status of the limit with this index. `outcome` is the outcome with the same index. Returns `None` if
    /// there is no such limit.
    #[inline(always)]
    pub(super) fn status(self, index: usize, outcome: Outcome) -> Option<LimitStatus<'d>> {
        match self {
            Self::Limiter { limits, is_key_missing } => {
                limiter_limit_status(limits, is_key_missing, index, outcome)
            }
            #[cfg(feature = "policy")]
            Self::Policy(PolicyLimits { rules, origins }) => {
                let origin = origins.get(index)?;
                let rule = rules.get(origin.rule as usize)?;
                let limit = find_rule_limit(rule, origins, &origin)?;
                let source = LimitStatusSource::Rule(rule, origin);
                Some(LimitStatus { source, limit, outcome, veto: origin.veto })
            }
            #[cfg(feature = "policy")]
            Self::Rule(limit_of_rule) => {
                let origin = Some(limit_of_rule.origin).filter(|_| index == 0)?;
                let (rule, limit) = limit_of_rule.find()?;
                let source = LimitStatusSource::Rule(rule, origin);
                Some(LimitStatus { source, limit, outcome, veto: origin.veto })
            }
        }
    }

    /// Returns the limit with this index; `None` if there is no such limit.
    pub(super) fn limit(self, index: usize) -> Option<&'d Limit> {
        match self {
            #[cfg(feature = "policy")]
            Self::Policy(PolicyLimits { rules, origins }) => {
                let origin = origins.get(index)?;
                let rule = rules.get(origin.rule as usize)?;
                find_rule_limit(rule, origins, &origin).map(RuleLimit::limit)
            }
            _ => self.status(index, Outcome::unknown()).map(|status| status.limit()),
        }
    }

    /// Returns whether a rule with `limits: unlimited` applies to the descriptor with this index.
    #[cfg(feature = "policy")]
    pub(super) fn is_unlimited(self, descriptor: usize) -> bool {
        match self {
            Self::Limiter { .. } | Self::Rule(_) => false,
            Self::Policy(limits) => limits.origins.is_unlimited(descriptor),
        }
    }

    /// Returns whether the charge of the hit with this index is the cost of the request, and not a cost that its rule
    /// states.
    #[cfg(feature = "policy")]
    pub(super) fn has_request_cost(self, hit_index: usize) -> bool {
        match self {
            Self::Limiter { .. } => true,
            Self::Policy(limits) => {
                limits.origins.get(hit_index).is_some_and(|origin| origin.has_request_cost)
            }
            Self::Rule(limit) => limit.origin.has_request_cost,
        }
    }
}

/// Returns the status of the limit of a limiter with this index. With `is_key_missing`, returns the status of the limit
/// that denies requests without a key.
#[inline]
fn limiter_limit_status(
    limiter: &LimiterLimits,
    is_key_missing: bool,
    index: usize,
    outcome: Outcome,
) -> Option<LimitStatus<'_>> {
    let limit = if is_key_missing { limiter.missing() } else { limiter.limits().get(index)? };
    let source = LimitStatusSource::Limiter { name: limiter.name(), is_key_missing };
    Some(LimitStatus { source, limit, outcome, veto: limiter.veto() })
}

/// Returns the limit from which a hit was created. `rule` is the rule of the hit.
#[cfg(feature = "policy")]
fn find_rule_limit<'d>(
    rule: &'d Rule,
    origins: &'d HitOrigins,
    origin: &HitOrigin,
) -> Option<&'d RuleLimit> {
    let index = usize::from(origin.limit);
    if origin.is_requested {
        origins.requested_limit(index)
    } else {
        rule.limits(origin.settings_source).get(index)
    }
}
