//! A decision with the rules of the policy that led to it.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::decision::Decision;
use crate::hit::Veto;
use crate::outcome::Outcome;
use crate::policy::{
    HitOrigin, HitOrigins, Match, MatchedRules, Mode, Rule, RuleLimit, SettingsSource,
};
use crate::reason::Reason;

/// A decision with the rules that led to it.
#[derive(Clone, Debug)]
pub struct Ruling {
    /// The rules of the policy, with the limits that were enforced.
    rules: Arc<[Rule]>,
    origins: HitOrigins,
    decision: Decision,
}

/// The status of one limit of one rule after a decision.
#[derive(Clone, Copy, Debug)]
pub struct LimitStatus<'r> {
    /// The rule.
    pub rule: &'r Rule,
    /// The limit of the rule.
    pub limit: &'r RuleLimit,
    /// The outcome that the store returned for the limit.
    pub outcome: &'r Outcome,
    /// Whether the limit denies the request if the cost does not fit.
    pub veto: Veto,
    /// Index in [`MatchedRules::matches`] of the match that the limit belongs to.
    match_index: u32,
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

    /// Returns the index in [`MatchedRules::matches`] of the match that the limit belongs to.
    pub fn match_index(&self) -> usize {
        self.match_index as usize
    }

    /// Returns the index of the descriptor in the request.
    pub fn descriptor(&self) -> usize {
        self.descriptor as usize
    }

    /// Returns the match that the limit belongs to. `matched` must be the rules from which the decision was made.
    pub fn find_match<'a, 'm>(&self, matched: &'a MatchedRules<'m>) -> Option<&'a Match<'m>> {
        matched.matches().nth(self.match_index())
    }

    /// Returns whether the limit is only observed: it never denies.
    pub fn is_observed(&self) -> bool {
        self.veto == Veto::Never && !self.is_refund && !self.is_reported
    }

    /// Returns whether units of the limit were [refunded](crate::Descriptor::as_refund). Its outcome is then the state
    /// of the counter after the refund.
    pub fn is_refund(&self) -> bool {
        self.is_refund
    }

    /// Returns whether the limit denies the request. A [joint](Veto::Jointly) limit denies only if no other joint limit
    /// fits; for a joint limit, this is whether the cost does not fit.
    pub fn is_denying(&self) -> bool {
        self.veto != Veto::Never && !self.outcome.fits()
    }
}

/// Returns the veto of a rule that is fixed in code.
#[inline]
fn rule_veto(rule: &Rule) -> Veto {
    match rule.settings().mode() {
        Mode::Observe => Veto::Never,
        _ => Veto::Alone,
    }
}

impl Ruling {
    pub(super) fn new(rules: Arc<[Rule]>, origins: HitOrigins, decision: Decision) -> Self {
        Self { rules, origins, decision }
    }

    /// Creates the ruling of a limiter, whose limits are fixed in code as a single rule.
    #[inline(always)]
    pub(crate) fn from_limiter(rules: Arc<[Rule]>, decision: Decision) -> Self {
        let veto = rule_veto(&rules[0]);
        let mut hits = SmallVec::new();
        // The decision may come from another limiter, with another number of limits.
        let count = decision.outcomes().len().min(rules[0].settings().limits().len());
        for limit in 0..count as u16 {
            hits.push(HitOrigin::fixed(limit, veto));
        }
        Self::new(rules, HitOrigins { hits, uncommon: None }, decision)
    }

    /// Creates the ruling of a limiter about a request without a key: a denial, unless the limiter only observes.
    pub(crate) fn without_key(rules: Arc<[Rule]>) -> Self {
        let veto = rule_veto(&rules[0]);
        let hits = SmallVec::from_iter([HitOrigin::without_key(veto)]);
        Self::new(rules, HitOrigins { hits, uncommon: None }, Decision::without_capacity(veto))
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

    /// Returns whether another ruling has the same limits, so that both have the same policy header. May return `false`
    /// for rulings with the same limits.
    pub fn has_same_limits(&self, other: &Self) -> bool {
        let all_known = |ruling: &Self| ruling.decision.outcomes().iter().all(Outcome::is_known);
        let is_plain = |ruling: &Self| ruling.origins.uncommon.is_none() && all_known(ruling);
        Arc::ptr_eq(&self.rules, &other.rules)
            && self.origins.hits == other.origins.hits
            && is_plain(self)
            && is_plain(other)
    }

    /// Returns whether an unlimited rule applies to the descriptor with this index.
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
        let Some((origin, binding)) = self.binding_with_origin() else {
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

    /// Returns the binding limit; `None` if no rule applies or the store did not evaluate any limit.
    pub fn binding(&self) -> Option<LimitStatus<'_>> {
        self.binding_with_origin().map(|(_, status)| status)
    }

    fn binding_with_origin(&self) -> Option<(&HitOrigin, LimitStatus<'_>)> {
        let index = self.decision.binding()?;
        let origin = self.origins.hits.get(index)?;
        Some((origin, self.limit_status(origin, self.decision.outcomes().get(index)?)))
    }
}
