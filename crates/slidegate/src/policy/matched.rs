//! What applies to a request: rules with the terms that hold, and the hits that come of them.

use std::iter::repeat_n;
use std::num::NonZeroU32;
use std::slice;
use std::sync::Arc;

use smallvec::SmallVec;

use super::cost::{RuleCharge, RuleCost};
use super::mode::OnStoreError;
use super::per::Identity;
use super::rule::{Chosen, Fit, Override, Rule, RuleLimit};
use crate::hit::{ChargeWhen, Hit, Veto};
use crate::key::{Key, Value};
use crate::request::Descriptor;

/// The rules that apply to a request.
#[derive(Clone, Debug)]
pub struct MatchedRules<'r>(SmallVec<[Match<'r>; 2]>);

/// A rule that applies to a request, and how.
#[derive(Clone, Debug)]
pub struct Match<'r> {
    /// Its place among those that apply.
    order: u32,
    nth: u32,
    rule: &'r Rule,
    fit: Fit<'r>,
    /// The descriptor's place in the request.
    descriptor: u32,
    charge: RuleCharge,
    is_refund: bool,
    /// Whether its cost has been consumed, and is only recorded.
    is_reported: bool,
}

/// Where the hits of a request come from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins {
    pub(crate) hits: SmallVec<[Origin; 3]>,
    /// None if there is nothing of it, as for most requests.
    pub(crate) rare: Option<Box<RareOrigins>>,
}

/// What hits seldom come from, and what makes none.
#[derive(Clone, Debug, Default)]
pub(crate) struct RareOrigins {
    /// Limits that descriptors brought along.
    pub(crate) requested: Vec<Arc<RuleLimit>>,
    /// The descriptors to which a rule applies that lets all pass.
    pub(crate) unlimited: Vec<u32>,
}

/// Where a hit comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The place of its match.
    pub(crate) matched: u32,
    /// The place of the descriptor.
    pub(crate) descriptor: u32,
    /// The rule's place in the policy.
    pub(crate) rule: u32,
    pub(crate) chosen: Chosen,
    /// The limit's place in the terms, or among those that were brought along.
    pub(crate) limit: u16,
    pub(crate) is_requested: bool,
    pub(crate) is_refund: bool,
    pub(crate) is_reported: bool,
    pub(crate) veto: Veto,
}

impl Origin {
    /// A limit of the only rule that there is.
    pub(crate) fn fixed(limit: u16, veto: Veto) -> Self {
        Self {
            matched: 0,
            descriptor: 0,
            rule: 0,
            chosen: Chosen::Base,
            limit,
            is_requested: false,
            is_refund: false,
            is_reported: false,
            veto,
        }
    }

    /// The limit that who has no key does not fit.
    pub(crate) fn without_key(veto: Veto) -> Self {
        Self { chosen: Chosen::Missing, ..Self::fixed(0, veto) }
    }
}

impl Origins {
    #[cold]
    fn rare(&mut self) -> &mut RareOrigins {
        self.rare.get_or_insert_default()
    }
}

impl<'r> MatchedRules<'r> {
    pub(super) fn new() -> Self {
        Self(SmallVec::new())
    }

    /// One more, which comes behind the others.
    #[inline]
    pub(super) fn push(
        &mut self,
        nth: u32,
        rule: &'r Rule,
        fit: Fit<'r>,
        descriptor: u32,
        of: &Descriptor<'_>,
    ) {
        let order = self.0.len() as u32;
        self.0.push(Match::new(nth, rule, fit, descriptor, of));
        self.0[order as usize].order = order;
    }

    /// Leaves out the rules that others replace.
    #[cold]
    pub(super) fn leave_out_replaced(&mut self) {
        let replaced: Vec<u32> =
            self.0.iter().flat_map(|one| &*one.rule.replaces).copied().collect();
        self.0.retain(|one| !replaced.contains(&one.nth));
        for (order, one) in (0..).zip(&mut self.0) {
            one.order = order;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Each rule that applies, in the order of the policy.
    pub fn matches(&self) -> impl Iterator<Item = &Match<'r>> {
        self.0.iter()
    }

    /// Whether any of them [gives back](Match::is_refund).
    #[inline]
    pub(crate) fn is_refund(&self) -> bool {
        self.0.iter().any(|one| one.is_refund)
    }

    /// Of each hit, whether it gives back.
    pub(crate) fn gives_back_each(&self) -> impl Iterator<Item = bool> {
        self.0.iter().flat_map(|one| repeat_n(one.is_refund, one.limits().len()))
    }

    /// Those of them that give back.
    pub(crate) fn as_refund(&self) -> Self {
        Self(self.0.iter().filter(|one| one.is_refund).cloned().collect())
    }

    /// Returns for each hit whether it charges the cost of the request: not one that the rule states, and not a refund.
    pub(crate) fn has_request_cost_each(&self) -> impl Iterator<Item = bool> {
        let has_request_cost =
            |one: &Match<'_>| *one.rule.cost() == RuleCost::Request && !one.is_refund;
        self.0.iter().flat_map(move |one| repeat_n(has_request_cost(one), one.limits().len()))
    }

    /// Returns the rules whose cost the descriptors carry, to record units that have been consumed. A rule that denies
    /// everything has no counts.
    pub(crate) fn reported(mut self) -> Self {
        self.0.retain(|one| {
            let counts = one.limits().iter().all(|limit| limit.limit.capacity() > 0);
            one.charge.is_carried && one.charge.cost > 0 && counts && !one.is_refund
        });
        for (order, one) in (0..).zip(&mut self.0) {
            one.order = order;
            one.fit.veto = Veto::Never;
            one.is_reported = true;
        }
        self
    }

    /// Whether anything is counted.
    pub(crate) fn has_hits(&self) -> bool {
        self.0.iter().any(|one| !one.limits().is_empty())
    }

    /// One hit for each limit of each rule.
    pub fn hits(&self) -> SmallVec<[Hit<'_>; 3]> {
        self.0.iter().flat_map(Match::hits).collect()
    }

    /// Where each hit comes from.
    pub(crate) fn origins(&self) -> Origins {
        let mut origins = Origins::default();
        for one in &self.0 {
            let mut origin = one.origin();
            let limits = one.limits();
            if limits.is_empty() {
                origins.rare().unlimited.push(one.descriptor);
            } else if let Some(limit) = &one.fit.requested {
                let requested = &mut origins.rare().requested;
                origin.limit = requested.len() as u16;
                requested.push(limit.clone());
            }
            for _ in limits {
                origins.hits.push(origin);
                origin.limit += 1;
            }
        }
        origins
    }

    /// What to do while the store does not answer: what the strictest of the rules wants. A rule that
    /// only observes has no say.
    pub(crate) fn on_store_error(&self) -> OnStoreError {
        let strict = self.0.iter().filter(|one| one.is_enforced());
        strict.map(|one| one.rule.on_store_error).max().unwrap_or_default()
    }

    /// Those that can do without the store: their rule wants its limits enforced locally, or nothing fits
    /// whatever the counts are. They apply as they stand in `own`, the policy's rules as this instance
    /// enforces them alone, being one of so many.
    pub(crate) fn without_store(&self, own: &'r [Rule], instances: NonZeroU32) -> Self {
        let can_do_without = |one: &Match<'_>| {
            one.rule.on_store_error == OnStoreError::Local
                || one.limits().iter().any(|limit| limit.limit.capacity() == 0)
        };
        let matches = self.0.iter().filter(|one| can_do_without(one)).cloned();
        Self(matches.map(|one| one.under(own, instances)).collect())
    }
}

impl<'r> Match<'r> {
    #[inline]
    pub(super) fn new(
        nth: u32,
        rule: &'r Rule,
        mut fit: Fit<'r>,
        descriptor: u32,
        of: &Descriptor<'_>,
    ) -> Self {
        if of.is_refund {
            // It denies nothing, and a decision does not hang on it.
            fit.veto = Veto::Never;
        }
        let (charge, is_refund) = (rule.charge.charge(of), of.is_refund);
        Self { order: 0, nth, rule, fit, descriptor, charge, is_refund, is_reported: false }
    }

    /// The same under a copy of the policy's rules, each as one of so many instances enforces it.
    fn under(mut self, rules: &'r [Rule], instances: NonZeroU32) -> Self {
        self.rule = &rules[self.nth as usize];
        self.fit.limits = self.rule.limits(self.fit.chosen);
        if let Some(limit) = &mut self.fit.requested {
            let own = limit.limit.instance_share(instances);
            Arc::make_mut(limit).limit = own;
        }
        self
    }

    fn origin(&self) -> Origin {
        Origin {
            matched: self.order,
            descriptor: self.descriptor,
            rule: self.nth,
            chosen: self.fit.chosen,
            limit: 0,
            is_requested: self.fit.requested.is_some(),
            is_refund: self.is_refund,
            is_reported: self.is_reported,
            veto: self.fit.veto,
        }
    }

    pub(super) fn nth(&self) -> u32 {
        self.nth
    }

    /// The rule.
    pub fn rule(&self) -> &'r Rule {
        self.rule
    }

    /// The rule's place in [`Policy::rules`](super::Policy::rules).
    pub fn place(&self) -> usize {
        self.nth as usize
    }

    /// The place of the descriptor that it applies to, among those of the request.
    pub fn descriptor(&self) -> usize {
        self.descriptor as usize
    }

    /// The override that holds, and its place in the rule; none if the rule's own terms do.
    pub fn chosen_override(&self) -> Option<(usize, &'r Override)> {
        match self.fit.chosen {
            Chosen::Override(nth) => {
                let nth = usize::from(nth);
                Some((nth, &self.rule.overrides[nth]))
            }
            Chosen::Base | Chosen::Missing => None,
        }
    }

    /// Whether it denies because an attribute of `per` is absent.
    pub fn lacks_attribute(&self) -> bool {
        self.fit.chosen == Chosen::Missing
    }

    /// Whether a limit that does not fit denies the request.
    pub fn is_enforced(&self) -> bool {
        !self.limits().is_empty() && self.fit.veto != Veto::Never
    }

    /// Whether its cost is taken off the counts: see [`Descriptor::as_refund`].
    pub fn is_refund(&self) -> bool {
        self.is_refund
    }

    /// The limits that hold; none if all pass.
    pub fn limits(&self) -> &[RuleLimit] {
        match &self.fit.requested {
            Some(limit) => slice::from_ref(limit),
            None => self.fit.limits,
        }
    }

    /// Whose counts it asks for: the names and values of `per`, in order.
    pub fn identity(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        let Identity { values, combination, .. } = &self.fit.identity;
        let scope = match &self.fit.requested {
            Some(limit) => &limit.scopes[0],
            None => &self.rule.identities[usize::from(*combination)],
        };
        scope.names().zip(values.iter().copied())
    }

    /// One hit for each limit. What [gives back](Self::is_refund) is for [`Store::refund`](crate::Store::refund).
    pub fn hits(&self) -> impl Iterator<Item = Hit<'_>> {
        let Identity { values, combination, part } = &self.fit.identity;
        self.limits().iter().map(|limit| Hit {
            key: Key::of_part(&limit.scopes[usize::from(*combination)], values, *part),
            limit: &limit.limit,
            cost: self.charge.cost,
            required: self.required(limit),
            veto: self.fit.veto,
            charge: self.charge_when(limit),
        })
    }

    fn required(&self, limit: &RuleLimit) -> u64 {
        match limit.limit.capacity() {
            _ if self.is_reported => 0,
            // A max of 0 denies everything.
            0 => self.charge.required.max(1),
            _ => self.charge.required,
        }
    }

    fn charge_when(&self, limit: &RuleLimit) -> ChargeWhen {
        // A max of 0 has no counts.
        let always = self.charge.always || self.is_reported;
        match self.fit.veto {
            _ if always && !self.is_refund && limit.limit.capacity() > 0 => ChargeWhen::Always,
            Veto::Alone => ChargeWhen::IfAdmitted,
            Veto::Jointly | Veto::Never => ChargeWhen::IfAdmittedAndFits,
        }
    }
}
