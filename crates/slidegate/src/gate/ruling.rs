//! A decision with the rules of the policy that led to the decision.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::decision::Decision;
use crate::hit::Veto;
use crate::outcome::Outcome;
use crate::policy::{
    HitOrigin, HitOrigins, Match, MatchedRules, Mode, Rule, RuleLimit, SettingsSource,
};
use crate::reason::Reason;

/// A decision with the rules of the policy that led to the decision.
#[derive(Clone, Debug)]
pub struct Ruling {
    /// The rules of the policy, with the limits that were enforced.
    rules: Arc<[Rule]>,
    /// The rule and limit from which each hit of the request came.
    origins: HitOrigins,
    decision: Decision,
}

/// The status of one limit of one rule after a decision.
#[derive(Clone, Copy, Debug)]
pub struct LimitStatus<'r> {
    /// The rule that has the limit.
    pub rule: &'r Rule,
    /// The limit of the rule.
    pub limit: &'r RuleLimit,
    /// The outcome that the store returned for the limit.
    pub outcome: &'r Outcome,
    /// Whether the limit can deny the request: on its own, jointly with other limits, or never.
    pub veto: Veto,
    /// Index in [`MatchedRules::matches`] of the match that has the limit. A match is a rule that applies to a
    /// descriptor.
    match_index: u32,
    /// Index of the descriptor in the request.
    descriptor: u32,
    is_refund: bool,
    is_reported: bool,
}

impl<'r> LimitStatus<'r> {
    /// Returns the name of the limit in headers: the name of the rule, or `rule.id` if several limits of the rule
    /// apply.
    pub fn policy_name(&self) -> &'r str {
        self.limit.policy_name()
    }

    /// Returns the index in [`MatchedRules::matches`] of the match that has the limit. A match is a rule that applies
    /// to a descriptor.
    pub fn match_index(&self) -> usize {
        self.match_index as usize
    }

    /// Returns the index, in the request, of the descriptor to which the limit applies.
    pub fn descriptor(&self) -> usize {
        self.descriptor as usize
    }

    /// Returns the match that has the limit, that is, the rule that applies to a descriptor. `matched` must be the
    /// rules from which the decision was made; otherwise the result is a different match, or `None`.
    pub fn find_match<'a, 'm>(&self, matched: &'a MatchedRules<'m>) -> Option<&'a Match<'m>> {
        matched.matches().nth(self.match_index())
    }

    /// Returns whether the limit is in observe mode, in which it never denies a request.
    pub fn is_observed(&self) -> bool {
        self.veto == Veto::Never && !self.is_refund && !self.is_reported
    }

    /// Returns whether the request [refunded](crate::Descriptor::as_refund) units of the limit. The outcome is then the
    /// status of the counter after the refund.
    pub fn is_refund(&self) -> bool {
        self.is_refund
    }

    /// Returns whether the limit denies the request because the request does not fit. For a [joint](Veto::Jointly)
    /// limit, returns `true` if the request does not fit this limit; the request is denied only if it fits none of its
    /// joint limits.
    pub fn is_denying(&self) -> bool {
        self.veto != Veto::Never && !self.outcome.fits()
    }
}

/// Returns the veto of a limiter's rule: `Never` in observe mode, otherwise `Alone`.
#[inline]
fn limiter_rule_veto(rule: &Rule) -> Veto {
    match rule.settings().mode() {
        Mode::Observe => Veto::Never,
        _ => Veto::Alone,
    }
}

impl Ruling {
    pub(super) fn new(rules: Arc<[Rule]>, origins: HitOrigins, decision: Decision) -> Self {
        Self { rules, origins, decision }
    }

    /// Creates the ruling for a decision of a limiter. Limiters have no policy; `rules` contains one rule with their
    /// limits.
    #[inline(always)]
    pub(crate) fn from_limiter(rules: Arc<[Rule]>, decision: Decision) -> Self {
        let veto = limiter_rule_veto(&rules[0]);
        let mut hits = SmallVec::new();
        // The decision may come from another limiter, with another number of limits.
        let count = decision.outcomes().len().min(rules[0].settings().limits().len());
        for limit in 0..count as u16 {
            hits.push(HitOrigin::for_limiter(limit, veto));
        }
        Self::new(rules, HitOrigins { hits, uncommon: None }, decision)
    }

    /// Creates a limiter's ruling for a request that has no key: a denial, unless the limiter is in observe mode.
    pub(crate) fn without_key(rules: Arc<[Rule]>) -> Self {
        let veto = limiter_rule_veto(&rules[0]);
        let hits = SmallVec::from_iter([HitOrigin::without_key(veto)]);
        Self::new(rules, HitOrigins { hits, uncommon: None }, Decision::with_zero_capacity(veto))
    }

    /// Returns the decision.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Returns the status of every limit that applies, in the order of the policy. Limits that the store did not have
    /// to evaluate are left out.
    pub fn limits(&self) -> impl Iterator<Item = LimitStatus<'_>> {
        self.limit_statuses().filter(|status| status.outcome.is_known())
    }

    /// Returns `true` if another ruling is known to have the same limits, and therefore the same policy header. Returns
    /// `false` if the limits differ or cannot be compared cheaply.
    pub fn has_same_limits(&self, other: &Self) -> bool {
        let all_known = |ruling: &Self| ruling.decision.outcomes().iter().all(Outcome::is_known);
        let is_plain = |ruling: &Self| ruling.origins.uncommon.is_none() && all_known(ruling);
        Arc::ptr_eq(&self.rules, &other.rules)
            && self.origins.hits == other.origins.hits
            && is_plain(self)
            && is_plain(other)
    }

    /// Returns whether a rule with `limits: unlimited` applies to the descriptor with this index.
    pub fn is_unlimited(&self, descriptor: usize) -> bool {
        let uncommon = self.origins.uncommon.as_ref();
        uncommon.is_some_and(|uncommon| {
            uncommon.unlimited.iter().any(|&index| index as usize == descriptor)
        })
    }

    fn limit_statuses(&self) -> impl Iterator<Item = LimitStatus<'_>> {
        let pairs = self.origins.hits.iter().zip(self.decision.outcomes());
        pairs.map(|(origin, outcome)| self.limit_status(origin, outcome))
    }

    #[inline]
    fn limit_status<'r>(&'r self, origin: &HitOrigin, outcome: &'r Outcome) -> LimitStatus<'r> {
        let rule = &self.rules[origin.rule as usize];
        let index = usize::from(origin.limit);
        let limit = match &self.origins.uncommon {
            Some(uncommon) if origin.is_requested => &uncommon.requested[index],
            _ => &rule.limits(origin.settings_source)[index],
        };
        let HitOrigin { veto, matched: match_index, descriptor, is_refund, is_reported, .. } =
            *origin;
        LimitStatus { rule, limit, outcome, veto, match_index, descriptor, is_refund, is_reported }
    }

    /// Returns the reason for a denial; `None` if the request is allowed.
    ///
    /// ```
    /// use slidegate::{Descriptor, Gate, MemoryStore, Policy, Reason, Request};
    ///
    /// let policy = Policy::from_yaml("
    /// rules:
    ///   - { name: abuse, when: { ip: 192.0.2.0/24 }, limits: denied, deny_status: 403 }
    /// ")?;
    /// let gate = Gate::new(policy, MemoryStore::new());
    /// let request = Request::new("default", Descriptor::new([("ip", "192.0.2.7")]));
    /// let ruling = gate.check_now(&request);
    /// assert_eq!((ruling.reason(), ruling.status()), (Some(Reason::Banned), 403));
    /// # Ok::<(), slidegate::PolicyErrors>(())
    /// ```
    pub fn reason(&self) -> Option<Reason> {
        if self.decision.is_allowed() {
            return None;
        }
        if self.decision.is_store_unavailable() {
            return Some(Reason::StoreUnavailable);
        }
        let Some((origin, binding)) = self.binding_limit_with_origin() else {
            return Some(Reason::LimitExceeded);
        };
        Some(match (origin.settings_source, binding.outcome.retry_after()) {
            (SettingsSource::Missing, _) => Reason::MissingAttribute,
            _ if binding.limit.limit().capacity() == 0 => Reason::Banned,
            (_, None) => Reason::CostExceedsMax,
            (_, Some(_)) => Reason::LimitExceeded,
        })
    }

    /// Returns the HTTP status: 200 if the request is allowed. For a denial, the [`deny_status`](Rule::deny_status) of
    /// the binding limit's rule, 429 by default, or 503 if the store is unavailable.
    pub fn status(&self) -> u16 {
        if self.decision.is_allowed() {
            return 200;
        }
        if self.decision.is_store_unavailable() {
            return 503;
        }
        self.binding().and_then(|binding| binding.rule.deny_status()).unwrap_or(429)
    }

    /// Returns the status of the binding limit, which is the limit that clients see; see [`Decision::binding`]. Returns
    /// `None` if no rule applies or the store did not evaluate any limit.
    pub fn binding(&self) -> Option<LimitStatus<'_>> {
        self.binding_limit_with_origin().map(|(_, status)| status)
    }

    fn binding_limit_with_origin(&self) -> Option<(&HitOrigin, LimitStatus<'_>)> {
        let index = self.decision.binding()?;
        let origin = self.origins.hits.get(index)?;
        Some((origin, self.limit_status(origin, self.decision.outcomes().get(index)?)))
    }
}
