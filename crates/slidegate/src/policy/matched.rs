//! The rules that apply to a request, and the hits that result from them. A hit is one charge against one counter.
//!
//! Invariant: [`MatchedRules::hits`] and `MatchedRules::hit_origins` return one entry for each limit of each matched
//! rule, in the same order.

use std::iter::repeat_n;
use std::num::NonZeroU32;
use std::slice;
use std::sync::Arc;

use smallvec::SmallVec;

use super::cost::RuleCharge;
use super::mode::OnStoreError;
use super::per::KeyIdentity;
use super::rule::matching::MatchDetails;
use super::rule::{Override, Rule, SettingsSource};
use super::rule_sets::RuleSets;
use crate::hit::{ChargeWhen, Hit, Veto};
use crate::key::{Key, Value};
use crate::request::Descriptor;
use crate::rule_limit::RuleLimit;

/// The rules that apply to a request, sorted by descriptor. The rules of one descriptor are in the order of the policy.
#[derive(Clone, Debug)]
pub struct MatchedRules<'r> {
    /// The rules that are enforced: the rules of the policy, or the same rules with divided limits.
    pub(super) rules: &'r Arc<[Rule]>,
    rule_sets: &'r RuleSets,
    pub(super) matches: SmallVec<[Match<'r>; 2]>,
}

/// A rule that applies to a descriptor of a request, with the limits and the key for this descriptor.
#[derive(Clone, Debug)]
pub struct Match<'r> {
    /// Index of this match in [`MatchedRules`].
    pub(super) match_index: u32,
    pub(super) rule_index: u32,
    pub(super) rule: &'r Rule,
    pub(super) details: MatchDetails<'r>,
    /// Index of the descriptor in the request.
    pub(super) descriptor_index: u32,
    charge: RuleCharge,
    pub(super) is_refund: bool,
    /// Whether the match only records units that the request has consumed already. Such a match never denies.
    pub(super) is_reported: bool,
}

/// The hits of one request.
pub(crate) type HitList<'h> = SmallVec<[Hit<'h>; 3]>;

impl<'r> MatchedRules<'r> {
    pub(super) fn new(rule_sets: &'r RuleSets) -> Self {
        Self { rules: &rule_sets.all, rule_sets, matches: SmallVec::new() }
    }

    /// Appends a rule that matches a descriptor, with the details of the match.
    #[inline(always)]
    pub(super) fn push(
        &mut self,
        rule_index: u32,
        rule: &'r Rule,
        details: MatchDetails<'r>,
        descriptor_index: u32,
        descriptor: &Descriptor<'_>,
    ) {
        let match_index = self.matches.len() as u32;
        let rule_match = Match::new(rule_index, rule, details, descriptor_index, descriptor);
        self.matches.push(Match { match_index, ..rule_match });
    }

    /// Removes each match whose rule is listed in `replaces` of another matching rule.
    #[cold]
    pub(super) fn remove_replaced(&mut self) {
        let replaced: Vec<u32> = self
            .matches
            .iter()
            .flat_map(|rule_match| &*rule_match.rule.replaces)
            .copied()
            .collect();
        self.matches.retain(|rule_match| !replaced.contains(&rule_match.rule_index));
        for (match_index, rule_match) in (0..).zip(&mut self.matches) {
            rule_match.match_index = match_index;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.matches.len()
    }

    /// Returns the matches, sorted by descriptor. The matches of one descriptor are in the order of the rules in the
    /// policy.
    pub fn matches(&self) -> impl Iterator<Item = &Match<'r>> {
        self.matches.iter()
    }

    /// Returns `true` if at least one match is a [refund](Match::is_refund), which subtracts units from counters.
    #[inline]
    pub(crate) fn is_refund(&self) -> bool {
        self.matches.iter().any(|rule_match| rule_match.is_refund)
    }

    /// Returns one flag for each hit: `true` if the hit is a refund. A refund subtracts units from a counter.
    pub(crate) fn refund_flag_per_hit(&self) -> impl Iterator<Item = bool> {
        self.matches
            .iter()
            .flat_map(|rule_match| repeat_n(rule_match.is_refund, rule_match.limits().len()))
    }

    /// Returns only the matches that are refunds.
    pub(crate) fn only_refunds(&self) -> Self {
        let refunds = self.matches.iter().filter(|rule_match| rule_match.is_refund);
        Self { matches: refunds.cloned().collect(), ..*self }
    }

    /// Prepares the matches for a report of consumed units: keeps the matches that can record these units, and changes
    /// them so that they never deny. Removes refunds, matches with a max of 0 (they have no counters), and matches
    /// whose cost is 0 or is not specified by the descriptor.
    pub(crate) fn into_matches_for_reported_usage(mut self) -> Self {
        self.matches.retain(|rule_match| {
            let has_counters = rule_match.limits().iter().all(|limit| limit.limit.capacity() > 0);
            rule_match.charge.is_in_descriptor
                && rule_match.charge.cost > 0
                && has_counters
                && !rule_match.is_refund
        });
        for (match_index, rule_match) in (0..).zip(&mut self.matches) {
            rule_match.match_index = match_index;
            rule_match.details.veto = Veto::Never;
            rule_match.is_reported = true;
        }
        self
    }

    /// Returns `true` if at least one matched rule has a limit, so that there is at least one hit.
    pub(crate) fn has_hits(&self) -> bool {
        self.matches.iter().any(|rule_match| !rule_match.limits().is_empty())
    }

    /// Returns one hit for each limit of each matched rule.
    #[inline]
    pub fn hits(&self) -> impl Iterator<Item = Hit<'_>> {
        HitsOfMatches { matches: self.matches.iter(), current: None }
    }

    /// Returns the behavior while the store is unavailable: the strictest `on_store_error` of the matched rules that
    /// can deny the request. Rules in mode `observe` are ignored, since they never deny.
    pub(crate) fn on_store_error(&self) -> OnStoreError {
        let enforced = self.matches.iter().filter(|rule_match| rule_match.is_enforced());
        enforced.map(|rule_match| rule_match.rule.on_store_error).max().unwrap_or_default()
    }

    /// Returns the matches that can be decided without the store: matches of rules with `on_store_error: local`, and
    /// matches with a max of 0, which deny every request. The limits of the returned matches are divided by the number
    /// of slidegate instances.
    pub(crate) fn matches_decidable_without_store(&self) -> Self {
        let (local_rules, instances) = self.rule_sets.local_rules();
        let is_decidable = |rule_match: &Match<'_>| {
            rule_match.rule.on_store_error == OnStoreError::Local
                || rule_match.limits().iter().any(|limit| limit.limit.capacity() == 0)
        };
        let matches = self.matches.iter().filter(|rule_match| is_decidable(rule_match)).cloned();
        let divided =
            matches.map(|rule_match| rule_match.with_divided_limits(local_rules, instances));
        Self { rules: local_rules, rule_sets: self.rule_sets, matches: divided.collect() }
    }
}

/// An iterator over the hits of all matches. It takes fewer instructions per decision than `flat_map`.
struct HitsOfMatches<'h, 'r> {
    matches: slice::Iter<'h, Match<'r>>,
    /// The match whose limits are converted into hits now, and its remaining limits.
    current: Option<(&'h Match<'r>, slice::Iter<'h, RuleLimit>)>,
}

impl<'h> Iterator for HitsOfMatches<'h, '_> {
    type Item = Hit<'h>;

    #[inline]
    fn next(&mut self) -> Option<Hit<'h>> {
        loop {
            if let Some((rule_match, limits)) = &mut self.current
                && let Some(limit) = limits.next()
            {
                return Some(rule_match.hit(limit));
            }
            let rule_match = self.matches.next()?;
            self.current = Some((rule_match, rule_match.limits().iter()));
        }
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
        let (charge, is_refund) = (rule.charge.charge_for(descriptor), descriptor.is_refund);
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

    /// Divides the limits of the match by the number of slidegate instances. `rules` are the rules of the policy with
    /// limits that are divided already.
    fn with_divided_limits(mut self, rules: &'r [Rule], instances: NonZeroU32) -> Self {
        self.rule = &rules[self.rule_index as usize];
        self.details.limits = self.rule.limits(self.details.settings_source);
        if let Some(limit) = &mut self.details.requested {
            let divided = limit.limit.instance_share(instances);
            Arc::make_mut(limit).limit = divided;
        }
        self
    }

    pub(super) fn rule_index_u32(&self) -> u32 {
        self.rule_index
    }

    /// Returns the rule that applies.
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

    /// Returns the override that applies, with its index in [`Rule::overrides`]; `None` if no override applies.
    pub fn active_override(&self) -> Option<(usize, &'r Override)> {
        match self.details.settings_source {
            SettingsSource::Override(index) => {
                let index = usize::from(index);
                Some((index, &self.rule.overrides[index]))
            }
            SettingsSource::Base | SettingsSource::Missing => None,
        }
    }

    /// Returns `true` if an attribute of `per` is absent from the request, and the rule denies such requests
    /// (`when_missing: deny`).
    pub fn is_attribute_missing(&self) -> bool {
        self.details.settings_source == SettingsSource::Missing
    }

    /// Returns `true` if the rule can deny the request: it has a limit, is not in mode `observe`, and the match is
    /// not a refund.
    pub fn is_enforced(&self) -> bool {
        !self.limits().is_empty() && self.details.veto != Veto::Never
    }

    /// Returns `true` if the cost is subtracted from the counters instead of added; see [`Descriptor::as_refund`].
    pub fn is_refund(&self) -> bool {
        self.is_refund
    }

    /// Returns the limits that apply to the request. The list is empty if the rule allows every request.
    pub fn limits(&self) -> &[RuleLimit] {
        match &self.details.requested {
            Some(limit) => slice::from_ref(limit),
            None => self.details.limits,
        }
    }

    /// Returns the names and values of the attributes that identify the counter of the request, in the order of `per`.
    pub fn identity(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        let KeyIdentity { values, combination, .. } = &self.details.identity;
        let scope = match &self.details.requested {
            Some(limit) => &limit.scopes[0],
            None => &self.rule.identity_scopes[usize::from(*combination)],
        };
        scope.attribute_names().zip(values.iter().copied())
    }

    /// Returns one hit for each limit of the match. If the match is a [refund](Self::is_refund), the hits must be
    /// used with [`Edit::Refund`](crate::store::Edit::Refund).
    pub fn hits(&self) -> impl Iterator<Item = Hit<'_>> {
        self.limits().iter().map(|limit| self.hit(limit))
    }

    /// Returns the hit of one limit of the match.
    #[inline]
    fn hit<'h>(&'h self, limit: &'h RuleLimit) -> Hit<'h> {
        let KeyIdentity { values, combination, part } = &self.details.identity;
        let scope = &limit.scopes[usize::from(*combination)];
        Hit {
            key: Key::with_optional_sub_key(scope, values, *part),
            limit: &limit.limit,
            cost: self.charge.cost,
            required: self.required_units(limit),
            veto: self.details.veto,
            charge: self.charge_when(limit),
        }
    }

    fn required_units(&self, limit: &RuleLimit) -> u64 {
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
