//! The status of one limit after a decision, as responses show it.

use std::time::Duration;

#[cfg(feature = "policy")]
use crate::hit::Hit;
use crate::hit::Veto;
use crate::limit::Limit;
use crate::outcome::Outcome;
#[cfg(feature = "policy")]
use crate::policy::{HitOrigin, Match, MatchedRules, Rule, SettingsSource};
use crate::reason::ProblemType;
use crate::rule_limit::RuleLimit;

/// The status of one limit after a decision. If the request was charged, the status includes the charge.
#[derive(Clone, Copy, Debug)]
pub struct LimitStatus<'d> {
    pub(super) source: LimitOwner<'d>,
    pub(super) limit: &'d RuleLimit,
    pub(super) outcome: Outcome,
    pub(super) veto: Veto,
}

/// The limiter or the rule that has a limit.
#[derive(Clone, Copy, Debug)]
pub(super) enum LimitOwner<'d> {
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
            LimitOwner::Limiter { .. } => None,
            LimitOwner::Rule(rule, _) => Some(rule),
        }
    }

    /// Returns the name of the rule or the limiter that has the limit.
    pub fn rule_name(&self) -> &'d str {
        match self.source {
            LimitOwner::Limiter { name, .. } => name,
            #[cfg(feature = "policy")]
            LimitOwner::Rule(rule, _) => rule.name(),
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
    ///
    /// Long windows are counted in ticks, and the time of a charge is rounded up to a tick, so that a unit can be in
    /// use for less than a millionth of the window longer than the window. This method then returns the window, as
    /// clients expect. The [outcome](Self::outcome) has the exact duration.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let limiter = slidegate::Limiter::new(["100/d"])?;
    /// assert_eq!(limiter.check("acme").reset_after(), Duration::from_secs(86_400));
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    pub fn reset_after(&self) -> Duration {
        let (reset_after, limit) = (self.outcome.reset_after(), self.limit());
        let rounding = limit.charge_rounding();
        if rounding.is_zero() {
            return reset_after;
        }
        let window = limit.window();
        if reset_after < window + rounding { reset_after.min(window) } else { reset_after }
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

    /// Returns whether rate limit headers contain the limit: `false` if its rule has `headers: false`, and for the
    /// `block` of a rule.
    pub fn is_in_headers(&self) -> bool {
        if self.limit.is_block_limit() {
            return false;
        }
        match self.source {
            LimitOwner::Limiter { .. } => true,
            #[cfg(feature = "policy")]
            LimitOwner::Rule(rule, _) => rule.is_in_headers(),
        }
    }

    /// Returns the type of the problem details (RFC 9457) for a denial by this limit.
    pub(crate) fn problem_type(&self) -> ProblemType {
        match self.source {
            LimitOwner::Limiter { .. } => ProblemType::QuotaExceeded,
            #[cfg(feature = "policy")]
            LimitOwner::Rule(rule, _) => rule.problem(),
        }
    }

    /// Returns whether the limit is in observe mode, in which it never denies a request.
    pub fn is_observed(&self) -> bool {
        self.veto == Veto::Never && !self.is_refund() && !self.is_reported()
    }

    /// Returns whether the request [refunded](crate::Descriptor::as_refund) units of the limit. The status is then the
    /// state of the counter after the refund.
    pub fn is_refund(&self) -> bool {
        match self.source {
            LimitOwner::Limiter { .. } => false,
            #[cfg(feature = "policy")]
            LimitOwner::Rule(_, origin) => origin.is_refund,
        }
    }

    fn is_reported(&self) -> bool {
        match self.source {
            LimitOwner::Limiter { .. } => false,
            #[cfg(feature = "policy")]
            LimitOwner::Rule(_, origin) => origin.is_reported,
        }
    }

    /// Returns whether the limit denies the request because the request lacks the attribute or key that is counted.
    pub(super) fn is_key_missing(&self) -> bool {
        match self.source {
            LimitOwner::Limiter { is_key_missing, .. } => is_key_missing,
            #[cfg(feature = "policy")]
            LimitOwner::Rule(_, origin) => origin.settings_source == SettingsSource::Missing,
        }
    }

    /// Returns the HTTP status with which the rule denies requests; `None` if it does not specify one.
    pub(super) fn deny_status(&self) -> Option<u16> {
        match self.source {
            LimitOwner::Limiter { .. } => None,
            #[cfg(feature = "policy")]
            LimitOwner::Rule(rule, _) => rule.deny_status(),
        }
    }
}

#[cfg(feature = "policy")]
impl LimitStatus<'_> {
    /// Returns the index in [`MatchedRules::matches`] of the match that has the limit. A match is a rule that applies
    /// to a descriptor. 0 if the limit belongs to a limiter.
    pub fn match_index(&self) -> usize {
        match self.source {
            LimitOwner::Limiter { .. } => 0,
            LimitOwner::Rule(_, origin) => origin.matched as usize,
        }
    }

    /// Returns the index, in the request, of the descriptor to which the limit applies; 0 if the limit belongs to a
    /// limiter.
    pub fn descriptor(&self) -> usize {
        match self.source {
            LimitOwner::Limiter { .. } => 0,
            LimitOwner::Rule(_, origin) => origin.descriptor as usize,
        }
    }

    /// Returns the match that has the limit, that is, the rule that applies to a descriptor. `matched` must be the
    /// rules from which the decision was made; otherwise the result is a different match, or `None`.
    pub fn find_match<'a, 'm>(&self, matched: &'a MatchedRules<'m>) -> Option<&'a Match<'m>> {
        matched.matches().nth(self.match_index())
    }

    /// Returns the hit of the limit in its [match](Self::find_match).
    pub fn find_hit<'a>(&self, matched: &'a MatchedRules<'_>) -> Option<Hit<'a>> {
        let found = self.find_match(matched)?;
        let is_own = |limit: &RuleLimit| limit.index() == self.limit_index();
        found.hits().nth(found.limits().iter().position(is_own)?)
    }
}
