//! A decision, told by the rules that it comes from.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::decision::Decision;
use crate::hit::Veto;
use crate::outcome::Outcome;
use crate::policy::{Match, MatchedRules, Mode, Origin, Origins, Rule, RuleLimit, SettingsSource};
use crate::reason::Reason;

/// A decision, and the rules that it comes from.
#[derive(Clone, Debug)]
pub struct Ruling {
    /// Those of the policy, with the limits that were enforced.
    rules: Arc<[Rule]>,
    origins: Origins,
    decision: Decision,
}

/// How one limit of one rule stands after a decision.
#[derive(Clone, Copy, Debug)]
pub struct LimitStatus<'r> {
    /// The rule.
    pub rule: &'r Rule,
    /// The limit of the rule.
    pub limit: &'r RuleLimit,
    /// What the store said of it.
    pub outcome: &'r Outcome,
    /// Whether it denies the request if it does not fit.
    pub veto: Veto,
    /// The place in [`MatchedRules::matches`] of what asked for it.
    matched: u32,
    descriptor: u32,
    is_refund: bool,
    is_reported: bool,
}

impl<'r> LimitStatus<'r> {
    /// The limit's name in headers: that of the rule, or `rule.id` where several limits hold.
    pub fn policy_name(&self) -> &'r str {
        self.limit.policy_name()
    }

    /// The place in [`MatchedRules::matches`] of what asked for it.
    pub fn matched(&self) -> usize {
        self.matched as usize
    }

    /// The place of the descriptor that it stands for, among those of the request.
    pub fn descriptor(&self) -> usize {
        self.descriptor as usize
    }

    /// What asked for it. Good only among what the decision was about.
    pub fn asked_by<'a, 'm>(&self, applied: &'a MatchedRules<'m>) -> Option<&'a Match<'m>> {
        applied.matches().nth(self.matched())
    }

    /// Whether it only watches: it never denies.
    pub fn is_observed(&self) -> bool {
        self.veto == Veto::Never && !self.is_refund && !self.is_reported
    }

    /// Whether units were [given back](crate::Descriptor::as_refund) to it: then nothing was asked of it, and
    /// what is said of it is how it stands.
    pub fn is_refund(&self) -> bool {
        self.is_refund
    }

    /// Whether it denies the request. A [joint](Veto::Jointly) limit does so only if no other joint limit fits, so for those
    /// it means that it would.
    pub fn is_denying(&self) -> bool {
        self.veto != Veto::Never && !self.outcome.fits()
    }
}

/// Returns the veto of a rule that is fixed in code.
#[inline]
fn veto_of(rule: &Rule) -> Veto {
    match rule.settings().mode() {
        Mode::Observe => Veto::Never,
        _ => Veto::Alone,
    }
}

impl Ruling {
    pub(super) fn new(rules: Arc<[Rule]>, origins: Origins, decision: Decision) -> Self {
        Self { rules, origins, decision }
    }

    /// A decision by limits that are fixed in code, of which there is one rule.
    #[inline(always)]
    pub(crate) fn fixed(rules: Arc<[Rule]>, decision: Decision) -> Self {
        let veto = veto_of(&rules[0]);
        let mut hits = SmallVec::new();
        // A decision may be another limiter's.
        let asked = decision.outcomes().len().min(rules[0].settings().limits().len());
        for limit in 0..asked as u16 {
            hits.push(Origin::fixed(limit, veto));
        }
        Self::new(rules, Origins { hits, rare: None }, decision)
    }

    /// What limits that are fixed in code say of a request without a key: they deny it, unless they observe.
    pub(crate) fn without_key(rules: Arc<[Rule]>) -> Self {
        let veto = veto_of(&rules[0]);
        let hits = SmallVec::from_iter([Origin::without_key(veto)]);
        Self::new(rules, Origins { hits, rare: None }, Decision::never(veto))
    }

    /// The decision.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// How every limit stands that applies, in the order of the policy; without those that the store did not
    /// have to ask.
    pub fn limits(&self) -> impl Iterator<Item = LimitStatus<'_>> {
        self.standings().filter(|standing| standing.outcome.is_known())
    }

    /// Whether it speaks of the same limits as another ruling, so that headers call them by the same names and
    /// figures.
    pub fn has_limits_of(&self, other: &Self) -> bool {
        let known = |ruling: &Self| ruling.decision.outcomes().iter().all(Outcome::is_known);
        let is_plain = |ruling: &Self| ruling.origins.rare.is_none() && known(ruling);
        Arc::ptr_eq(&self.rules, &other.rules)
            && self.origins.hits == other.origins.hits
            && is_plain(self)
            && is_plain(other)
    }

    /// Whether a rule that lets all pass applies to the descriptor at a place.
    pub fn is_unlimited(&self, descriptor: usize) -> bool {
        let rare = self.origins.rare.as_ref();
        rare.is_some_and(|rare| rare.unlimited.iter().any(|&place| place as usize == descriptor))
    }

    fn standings(&self) -> impl Iterator<Item = LimitStatus<'_>> {
        let both = self.origins.hits.iter().zip(self.decision.outcomes());
        both.map(|(origin, outcome)| self.standing(origin, outcome))
    }

    #[inline]
    fn standing<'r>(&'r self, origin: &Origin, outcome: &'r Outcome) -> LimitStatus<'r> {
        let rule = &self.rules[origin.rule as usize];
        let nth = usize::from(origin.limit);
        let limit = match &self.origins.rare {
            Some(rare) if origin.is_requested => &rare.requested[nth],
            _ => &rule.limits(origin.settings_source)[nth],
        };
        let Origin { veto, matched, descriptor, is_refund, is_reported, .. } = *origin;
        LimitStatus { rule, limit, outcome, veto, matched, descriptor, is_refund, is_reported }
    }

    /// Returns why the request is denied; `None` if it is allowed.
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
        if self.decision.is_refused() {
            return Some(Reason::StoreUnavailable);
        }
        let Some((origin, bound)) = self.bound() else {
            return Some(Reason::LimitExceeded);
        };
        Some(match (origin.settings_source, bound.outcome.retry_after()) {
            (SettingsSource::Missing, _) => Reason::MissingAttribute,
            _ if bound.limit.limit().capacity() == 0 => Reason::Banned,
            (_, None) => Reason::CostExceedsMax,
            (_, Some(_)) => Reason::LimitExceeded,
        })
    }

    /// Returns the HTTP status: 200 if the request is allowed. For a denial, the [`deny_status`](Rule::deny_status) of the
    /// rule of the binding limit, 429 by default, or 503 if the store is unavailable.
    pub fn status(&self) -> u16 {
        if self.decision.is_allowed() {
            return 200;
        }
        if self.decision.is_refused() {
            return 503;
        }
        self.binding().and_then(|bound| bound.rule.deny_status()).unwrap_or(429)
    }

    /// The limit that the decision hangs on; none if no rule applies, or the store was not asked for any limit.
    pub fn binding(&self) -> Option<LimitStatus<'_>> {
        self.bound().map(|(_, standing)| standing)
    }

    fn bound(&self) -> Option<(&Origin, LimitStatus<'_>)> {
        let nth = self.decision.binding()?;
        let origin = self.origins.hits.get(nth)?;
        Some((origin, self.standing(origin, self.decision.outcomes().get(nth)?)))
    }
}
