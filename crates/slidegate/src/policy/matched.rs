//! The rules that apply to a request, and the hits that result from them.
//!
//! Invariant: [`MatchedRules::hits`] and [`MatchedRules::origins`] have the same order, one entry for each limit of
//! each rule.

use std::iter::repeat_n;
use std::num::NonZeroU32;
use std::slice;
use std::sync::Arc;

use smallvec::SmallVec;

use super::cost::{RuleCharge, RuleCost};
use super::mode::OnStoreError;
use super::per::Identity;
use super::rule::{MatchDetails, Override, Rule, RuleLimit, SettingsSource};
use crate::hit::{ChargeWhen, Hit, Veto};
use crate::key::{Key, Value};
use crate::request::Descriptor;

/// The rules that apply to a request, in the order of the descriptors and then of the policy.
#[derive(Clone, Debug)]
pub struct MatchedRules<'r>(SmallVec<[Match<'r>; 2]>);

/// A rule that applies to a descriptor of a request.
#[derive(Clone, Debug)]
pub struct Match<'r> {
    /// Index in [`MatchedRules`].
    match_index: u32,
    rule_index: u32,
    rule: &'r Rule,
    details: MatchDetails<'r>,
    /// Index of the descriptor in the request.
    descriptor_index: u32,
    charge: RuleCharge,
    is_refund: bool,
    /// Whether the cost has been consumed already and is only recorded.
    is_reported: bool,
}

/// The origins of the hits of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins {
    pub(crate) hits: SmallVec<[Origin; 3]>,
    /// `None` if the request has neither requested limits nor rules without limits, as most requests.
    pub(crate) rare: Option<Box<RareOrigins>>,
}

/// The parts of [`Origins`] that most requests do not have.
#[derive(Clone, Debug, Default)]
pub(crate) struct RareOrigins {
    /// Limits that descriptors carried.
    pub(crate) requested: Vec<Arc<RuleLimit>>,
    /// Indexes of the descriptors to which a rule without limits applies.
    pub(crate) unlimited: Vec<u32>,
}

/// The rule and limit that a hit comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Index of the match in [`MatchedRules`].
    pub(crate) matched: u32,
    /// Index of the descriptor in the request.
    pub(crate) descriptor: u32,
    /// Index of the rule in the policy.
    pub(crate) rule: u32,
    pub(crate) settings_source: SettingsSource,
    /// Index of the limit in the rule's settings, or in [`RareOrigins::requested`] if `is_requested`.
    pub(crate) limit: u16,
    pub(crate) is_requested: bool,
    pub(crate) is_refund: bool,
    pub(crate) is_reported: bool,
    pub(crate) veto: Veto,
}

impl Origin {
    /// Creates the origin of a hit by the rule of a [`Limiter`](crate::Limiter), its only rule.
    pub(crate) fn fixed(limit: u16, veto: Veto) -> Self {
        Self {
            matched: 0,
            descriptor: 0,
            rule: 0,
            settings_source: SettingsSource::Base,
            limit,
            is_requested: false,
            is_refund: false,
            is_reported: false,
            veto,
        }
    }

    /// Creates the origin of the denial of a request without a key.
    pub(crate) fn without_key(veto: Veto) -> Self {
        Self { settings_source: SettingsSource::Missing, ..Self::fixed(0, veto) }
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

    /// Appends a match.
    #[inline(always)]
    pub(super) fn push(
        &mut self,
        rule_index: u32,
        rule: &'r Rule,
        details: MatchDetails<'r>,
        descriptor_index: u32,
        descriptor: &Descriptor<'_>,
    ) {
        let match_index = self.0.len() as u32;
        self.0.push(Match::new(rule_index, rule, details, descriptor_index, descriptor));
        self.0[match_index as usize].match_index = match_index;
    }

    /// Removes the rules that other matching rules replace.
    #[cold]
    pub(super) fn remove_replaced(&mut self) {
        let replaced: Vec<u32> =
            self.0.iter().flat_map(|rule_match| &*rule_match.rule.replaces).copied().collect();
        self.0.retain(|rule_match| !replaced.contains(&rule_match.rule_index));
        for (match_index, rule_match) in (0..).zip(&mut self.0) {
            rule_match.match_index = match_index;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns each rule that applies, by descriptor and then in the order of the policy.
    pub fn matches(&self) -> impl Iterator<Item = &Match<'r>> {
        self.0.iter()
    }

    /// Returns whether any match is a [refund](Match::is_refund).
    #[inline]
    pub(crate) fn is_refund(&self) -> bool {
        self.0.iter().any(|rule_match| rule_match.is_refund)
    }

    /// Returns for each hit whether it is a refund.
    pub(crate) fn refund_flags(&self) -> impl Iterator<Item = bool> {
        self.0
            .iter()
            .flat_map(|rule_match| repeat_n(rule_match.is_refund, rule_match.limits().len()))
    }

    /// Returns only the matches that are refunds.
    pub(crate) fn as_refund(&self) -> Self {
        Self(self.0.iter().filter(|rule_match| rule_match.is_refund).cloned().collect())
    }

    /// Returns for each hit whether it charges the cost of the request: not a cost that the rule states, and not a
    /// refund.
    pub(crate) fn request_cost_flags(&self) -> impl Iterator<Item = bool> {
        let has_request_cost = |rule_match: &Match<'_>| {
            *rule_match.rule.cost() == RuleCost::Request && !rule_match.is_refund
        };
        self.0.iter().flat_map(move |rule_match| {
            repeat_n(has_request_cost(rule_match), rule_match.limits().len())
        })
    }

    /// Returns the rules whose cost the descriptors carry, to record units that have been consumed. A rule that denies
    /// everything has no counters.
    pub(crate) fn reported(mut self) -> Self {
        self.0.retain(|rule_match| {
            let has_counters = rule_match.limits().iter().all(|limit| limit.limit.capacity() > 0);
            rule_match.charge.is_in_descriptor
                && rule_match.charge.cost > 0
                && has_counters
                && !rule_match.is_refund
        });
        for (match_index, rule_match) in (0..).zip(&mut self.0) {
            rule_match.match_index = match_index;
            rule_match.details.veto = Veto::Never;
            rule_match.is_reported = true;
        }
        self
    }

    /// Returns whether any rule has a limit.
    pub(crate) fn has_hits(&self) -> bool {
        self.0.iter().any(|rule_match| !rule_match.limits().is_empty())
    }

    /// Returns one hit for each limit of each rule.
    pub fn hits(&self) -> SmallVec<[Hit<'_>; 3]> {
        self.0.iter().flat_map(Match::hits).collect()
    }

    /// Returns the origin of each hit.
    pub(crate) fn origins(&self) -> Origins {
        let mut origins = Origins::default();
        for rule_match in &self.0 {
            let mut origin = rule_match.origin();
            let limits = rule_match.limits();
            if limits.is_empty() {
                origins.rare().unlimited.push(rule_match.descriptor_index);
            } else if let Some(limit) = &rule_match.details.requested {
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

    /// Returns the behavior while the store is unavailable: the strictest of all rules that can deny the request. Rules
    /// in mode `observe` do not matter.
    pub(crate) fn on_store_error(&self) -> OnStoreError {
        let enforced = self.0.iter().filter(|rule_match| rule_match.is_enforced());
        enforced.map(|rule_match| rule_match.rule.on_store_error).max().unwrap_or_default()
    }

    /// Returns the matches that can be decided without the store: their rule has `on_store_error: local`, or a max of 0
    /// denies everything. They refer to `local_rules`, the rules of the policy with limits divided by `instances`.
    pub(crate) fn without_store(&self, local_rules: &'r [Rule], instances: NonZeroU32) -> Self {
        let is_decidable = |rule_match: &Match<'_>| {
            rule_match.rule.on_store_error == OnStoreError::Local
                || rule_match.limits().iter().any(|limit| limit.limit.capacity() == 0)
        };
        let matches = self.0.iter().filter(|rule_match| is_decidable(rule_match)).cloned();
        Self(matches.map(|rule_match| rule_match.with_rules(local_rules, instances)).collect())
    }
}

impl<'r> Match<'r> {
    #[inline(always)]
    pub(super) fn new(
        rule_index: u32,
        rule: &'r Rule,
        mut details: MatchDetails<'r>,
        descriptor_index: u32,
        descriptor: &Descriptor<'_>,
    ) -> Self {
        if descriptor.is_refund {
            // A refund denies nothing and does not affect the decision.
            details.veto = Veto::Never;
        }
        let (charge, is_refund) = (rule.charge.charge(descriptor), descriptor.is_refund);
        Self {
            match_index: 0,
            rule_index,
            rule,
            details,
            descriptor_index,
            charge,
            is_refund,
            is_reported: false,
        }
    }

    /// Returns the match with the limits of `rules`, a copy of the policy's rules with limits divided by `instances`.
    fn with_rules(mut self, rules: &'r [Rule], instances: NonZeroU32) -> Self {
        self.rule = &rules[self.rule_index as usize];
        self.details.limits = self.rule.limits(self.details.settings_source);
        if let Some(limit) = &mut self.details.requested {
            let divided = limit.limit.instance_share(instances);
            Arc::make_mut(limit).limit = divided;
        }
        self
    }

    fn origin(&self) -> Origin {
        Origin {
            matched: self.match_index,
            descriptor: self.descriptor_index,
            rule: self.rule_index,
            settings_source: self.details.settings_source,
            limit: 0,
            is_requested: self.details.requested.is_some(),
            is_refund: self.is_refund,
            is_reported: self.is_reported,
            veto: self.details.veto,
        }
    }

    pub(super) fn rule_index_u32(&self) -> u32 {
        self.rule_index
    }

    /// Returns the rule.
    pub fn rule(&self) -> &'r Rule {
        self.rule
    }

    /// Returns the index of the rule in [`Policy::rules`](super::Policy::rules).
    pub fn rule_index(&self) -> usize {
        self.rule_index as usize
    }

    /// Returns the index of the descriptor in the request.
    pub fn descriptor_index(&self) -> usize {
        self.descriptor_index as usize
    }

    /// Returns the override that applies, with its index in the rule; `None` if the settings of the rule apply.
    pub fn active_override(&self) -> Option<(usize, &'r Override)> {
        match self.details.settings_source {
            SettingsSource::Override(index) => {
                let index = usize::from(index);
                Some((index, &self.rule.overrides[index]))
            }
            SettingsSource::Base | SettingsSource::Missing => None,
        }
    }

    /// Returns whether the rule denies the request because an attribute of `per` is absent.
    pub fn is_attribute_missing(&self) -> bool {
        self.details.settings_source == SettingsSource::Missing
    }

    /// Returns whether a limit that does not fit denies the request.
    pub fn is_enforced(&self) -> bool {
        !self.limits().is_empty() && self.details.veto != Veto::Never
    }

    /// Returns whether the cost is subtracted from the counters; see [`Descriptor::as_refund`].
    pub fn is_refund(&self) -> bool {
        self.is_refund
    }

    /// Returns the limits that apply; empty if every request passes.
    pub fn limits(&self) -> &[RuleLimit] {
        match &self.details.requested {
            Some(limit) => slice::from_ref(limit),
            None => self.details.limits,
        }
    }

    /// Returns the names and values of the attributes in `per` that identify the key, in the order of the rule.
    pub fn identity(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        let Identity { values, combination, .. } = &self.details.identity;
        let scope = match &self.details.requested {
            Some(limit) => &limit.scopes[0],
            None => &self.rule.identity_scopes[usize::from(*combination)],
        };
        scope.names().zip(values.iter().copied())
    }

    /// Returns one hit for each limit. The hits of a [refund](Self::is_refund) are for
    /// [`Store::refund`](crate::Store::refund).
    pub fn hits(&self) -> impl Iterator<Item = Hit<'_>> {
        let Identity { values, combination, part } = &self.details.identity;
        self.limits().iter().map(|limit| Hit {
            key: Key::with_optional_part(&limit.scopes[usize::from(*combination)], values, *part),
            limit: &limit.limit,
            cost: self.charge.cost,
            required: self.required(limit),
            veto: self.details.veto,
            charge: self.charge_when(limit),
        })
    }

    fn required(&self, limit: &RuleLimit) -> u64 {
        match self.charge.required {
            _ if self.is_reported => 0,
            // A max of 0 denies everything.
            0 if limit.limit.capacity() == 0 => 1,
            required => required,
        }
    }

    fn charge_when(&self, limit: &RuleLimit) -> ChargeWhen {
        // A max of 0 has no counter.
        let always = self.charge.charges_always || self.is_reported;
        match self.details.veto {
            _ if always && !self.is_refund && limit.limit.capacity() > 0 => ChargeWhen::Always,
            Veto::Alone => ChargeWhen::IfAdmitted,
            Veto::Jointly | Veto::Never => ChargeWhen::IfAdmittedAndFits,
        }
    }
}
