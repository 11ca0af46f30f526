//! The rules that apply to a request, and the hits that result from them. A hit is one charge against one counter.
//!
//! Invariant: [`MatchedRules::hits`] returns one hit for each limit of each matched rule, in the order of the matches,
//! then of their limits.

use std::iter::repeat_n;
use std::num::NonZeroU32;
use std::slice;
use std::sync::Arc;

use smallvec::SmallVec;

use super::attributes::DescriptorAttributes;
use super::cost::{RuleCharge, RuleCost};
use super::per::KeyIdentity;
use super::rule::{NoMatchReason, Override, Rule, SettingsSource};
use super::rule_sets::FullAndLocalRules;
use crate::hit::{Block, ChargeWhen, Hit, Veto};
use crate::key::{Key, Value};
use crate::on_store_error::OnStoreError;
use crate::request::{CallOptions, Descriptor};
use crate::rule_limit::RuleLimit;

/// The rules that apply to a request, sorted by descriptor. The rules of one descriptor are in the order of the policy.
#[derive(Clone, Debug)]
pub struct MatchedRules<'r> {
    options: Option<Box<CallOptions>>,
    operation: ChargeOrPeek,
    /// The rules that are enforced: the rules of the policy, or, while the store is unavailable, the same rules with
    /// limits divided by the number of instances.
    pub(super) rules: &'r Arc<[Rule]>,
    rule_sets: &'r FullAndLocalRules,
    pub(super) matches: SmallVec<[Match<'r>; 2]>,
}

/// The effect of a request on the counters of the rules that apply to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChargeOrPeek {
    /// Charges the cost if every limit has capacity for it, or records units that have been consumed.
    Charge,
    /// Checks whether the request would be allowed, and charges nothing.
    Peek,
}

/// A rule that applies to a descriptor of a request, with the limits and the key for this descriptor.
#[derive(Clone, Debug)]
pub struct Match<'r> {
    pub(super) rule: &'r Rule,
    /// The rule, the descriptor and the limit from which the first hit of the match results. The origins of its other
    /// hits differ only in the index of the limit.
    pub(super) origin: HitOrigin,
    pub(super) limits: &'r [RuleLimit],
    /// The limit that the descriptor contains. If it is `Some`, it replaces `limits`.
    pub(super) requested: Option<Arc<RuleLimit>>,
    pub(super) identity: KeyIdentity<'r>,
    charge: RuleCharge,
}

/// The rule and the limit from which a hit was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HitOrigin {
    /// Index of the match in `MatchedRules`.
    pub(crate) matched: u32,
    /// Index of the descriptor in the request.
    pub(crate) descriptor: u32,
    /// Index of the rule in the policy.
    pub(crate) rule: u32,
    pub(crate) settings_source: SettingsSource,
    /// Index of the limit in the settings of the rule. If `is_requested` is set, its index among the limits that the
    /// descriptors of the request contain.
    pub(crate) limit: u16,
    pub(crate) is_requested: bool,
    pub(crate) is_refund: bool,
    pub(crate) is_reported: bool,
    /// Whether the hit charges the cost of the request. `false` for a refund and for a rule with its own `cost`.
    pub(crate) has_request_cost: bool,
    pub(crate) veto: Veto,
}

/// The hits of one request.
pub(crate) type HitList<'h> = SmallVec<[Hit<'h>; 3]>;

impl<'r> MatchedRules<'r> {
    pub(super) fn new(rule_sets: &'r FullAndLocalRules, options: Option<Box<CallOptions>>) -> Self {
        let rules = &rule_sets.all;
        Self {
            options,
            operation: ChargeOrPeek::Charge,
            rules,
            rule_sets,
            matches: SmallVec::new(),
        }
    }

    /// Returns the options of the call; `None` if it neither waits nor has an idempotency key.
    pub(crate) fn options(&self) -> Option<&CallOptions> {
        self.options.as_deref()
    }

    /// Returns the effect of the request on counters: whether it charges them or only checks them.
    pub(crate) fn charge_or_peek(&self) -> ChargeOrPeek {
        self.operation
    }

    /// Appends a match, and calls `complete` to set its limits and its key in place. Removes the match again if
    /// `complete` fails.
    pub(super) fn push_match(
        &mut self,
        mut rule_match: Match<'r>,
        complete: impl FnOnce(&mut Match<'r>) -> Result<(), NoMatchReason<'r>>,
    ) {
        rule_match.origin.matched = self.matches.len() as u32;
        self.matches.push(rule_match);
        if self.matches.last_mut().is_some_and(|rule_match| complete(rule_match).is_err()) {
            self.matches.pop();
        }
    }

    /// Removes each match whose rule is listed in `replaces` of another matching rule.
    pub(super) fn remove_replaced(&mut self) {
        let replaces = self.matches.iter().flat_map(|rule_match| &*rule_match.rule.replaces);
        let replaced: Vec<u32> = replaces.copied().collect();
        if replaced.is_empty() {
            return;
        }
        self.matches.retain(|rule_match| !replaced.contains(&rule_match.origin.rule));
        for (match_index, rule_match) in (0..).zip(&mut self.matches) {
            rule_match.origin.matched = match_index;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.matches.len()
    }

    /// Returns the rules that are enforced: the rules of the policy, or a copy of them with divided limits.
    pub(crate) fn rules(&self) -> &Arc<[Rule]> {
        self.rules
    }

    /// Returns the matches, sorted by descriptor. The matches of one descriptor are in the order of the rules in the
    /// policy.
    pub fn matches(&self) -> impl Iterator<Item = &Match<'r>> {
        self.matches.iter()
    }

    /// Returns `true` if at least one match is a [refund](Match::is_refund), which subtracts units from counters.
    pub(crate) fn is_refund(&self) -> bool {
        self.matches.iter().any(Match::is_refund)
    }

    /// Returns one flag for each hit: `true` if the hit is a refund. A refund subtracts units from a counter.
    pub(crate) fn refund_flag_per_hit(&self) -> impl Iterator<Item = bool> {
        self.matches
            .iter()
            .flat_map(|rule_match| repeat_n(rule_match.is_refund(), rule_match.limits().len()))
    }

    fn without_matches(&self) -> Self {
        Self { options: self.options.clone(), matches: SmallVec::new(), ..*self }
    }

    /// Returns only the matches that are refunds.
    pub(crate) fn with_refunds_only(&self) -> Self {
        let refunds = self.matches.iter().filter(|rule_match| rule_match.is_refund());
        Self { matches: refunds.cloned().collect(), ..self.without_matches() }
    }

    /// Prepares the matches for a peek, which charges nothing.
    pub fn into_peek(self) -> Self {
        Self { operation: ChargeOrPeek::Peek, ..self }
    }

    /// Prepares the matches for a report of consumed units: keeps the matches that can record these units, and changes
    /// them so that they never deny. Removes refunds, matches with a max of 0 (they have no counters), and matches
    /// whose cost is 0 or is not specified by the descriptor.
    pub fn into_report(mut self) -> Self {
        self.matches.retain(|rule_match| {
            let has_counters = rule_match.limits().iter().all(|limit| limit.limit.capacity() > 0);
            rule_match.charge.is_in_descriptor
                && rule_match.charge.cost > 0
                && has_counters
                && !rule_match.is_refund()
        });
        for (match_index, rule_match) in (0..).zip(&mut self.matches) {
            rule_match.origin.matched = match_index;
            rule_match.origin.veto = Veto::Never;
            rule_match.origin.is_reported = true;
        }
        self
    }

    /// Returns `true` if at least one matched rule has a limit, so that there is at least one hit.
    pub(crate) fn has_hits(&self) -> bool {
        self.matches.iter().any(|rule_match| !rule_match.limits().is_empty())
    }

    /// Returns one hit for each limit of each matched rule.
    pub fn hits(&self) -> impl Iterator<Item = Hit<'_>> {
        self.matches.iter().flat_map(Match::hits)
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
    pub(crate) fn select_decidable_without_store(&self) -> Self {
        let (local_rules, instances) = self.rule_sets.local_rules();
        let is_decidable = |rule_match: &Match<'_>| {
            rule_match.rule.on_store_error == OnStoreError::Local
                || rule_match.limits().iter().any(|limit| limit.limit.capacity() == 0)
        };
        let matches = self.matches.iter().filter(|rule_match| is_decidable(rule_match)).cloned();
        let divided =
            matches.map(|rule_match| rule_match.with_per_instance_limits(local_rules, instances));
        Self { rules: local_rules, matches: divided.collect(), ..self.without_matches() }
    }
}

impl<'r> Match<'r> {
    /// Creates a match without limits and without key values. The caller sets both later.
    pub(super) fn new(
        rule_index: u32,
        rule: &'r Rule,
        descriptor_index: u32,
        descriptor: &Descriptor<'_>,
    ) -> Self {
        let mut rule_match = Self {
            rule,
            origin: HitOrigin {
                matched: 0,
                descriptor: descriptor_index,
                rule: rule_index,
                settings_source: SettingsSource::Base,
                limit: 0,
                is_requested: false,
                is_refund: descriptor.is_refund,
                is_reported: false,
                has_request_cost: matches!(rule.cost(), RuleCost::Request) && !descriptor.is_refund,
                veto: Veto::Alone,
            },
            limits: &[],
            requested: None,
            identity: KeyIdentity::default(),
            charge: rule.charge.charge_for_descriptor(descriptor),
        };
        rule_match.set_veto(Veto::Alone);
        rule_match
    }

    /// Sets whether the hits of the match can deny the request. `veto` is the veto of the rule's mode.
    pub(super) fn set_veto(&mut self, veto: Veto) {
        // A refund denies nothing and does not affect the decision.
        self.origin.veto = if self.is_refund() { Veto::Never } else { veto };
    }

    /// Sets the limit that the descriptor contains, which replaces the limits of the rule.
    pub(super) fn set_requested_limit(&mut self, limit: Arc<RuleLimit>) {
        self.requested = Some(limit);
        self.origin.is_requested = true;
    }

    /// Returns `true` if the descriptor contains a limit and is the only one that uses its counter of the rule: the key
    /// must contain each attribute of the descriptor, unless `when` allows only one value of the attribute.
    pub(super) fn has_exclusive_counter(&self, attributes: &DescriptorAttributes<'_, '_>) -> bool {
        let Some(limit) = &self.requested else { return false };
        let is_counted = |name: &str| limit.scopes[0].attribute_names().any(|own| own == name);
        let mut names = attributes.pairs.iter().map(|(name, _)| *name);
        names.all(|name| is_counted(name) || self.rule.when.allows_one_value(name))
    }

    /// Divides the limits of the match by the number of slidegate instances. `rules` contains the rules of the policy
    /// with divided limits, from which the limits are taken.
    fn with_per_instance_limits(mut self, rules: &'r [Rule], instances: NonZeroU32) -> Self {
        self.rule = &rules[self.rule_index()];
        self.limits = self.rule.limits(self.origin.settings_source);
        if let Some(limit) = &mut self.requested {
            let divided = limit.limit.instance_share(instances);
            *limit = Arc::new(RuleLimit { limit: divided, ..RuleLimit::clone(limit) });
        }
        self
    }

    /// Returns the rule, the descriptor and the limit from which the first hit of the match results.
    pub(crate) fn origin(&self) -> HitOrigin {
        self.origin
    }

    /// Returns the limit that the descriptor contains; `None` if it contains none.
    pub(crate) fn requested_limit(&self) -> Option<&Arc<RuleLimit>> {
        self.requested.as_ref()
    }

    pub(super) fn rule_index_u32(&self) -> u32 {
        self.origin.rule
    }

    /// Returns the rule that applies.
    pub fn rule(&self) -> &'r Rule {
        self.rule
    }

    /// Returns the index of the rule in [`Policy::rules`](super::Policy::rules).
    pub fn rule_index(&self) -> usize {
        self.origin.rule as usize
    }

    /// Returns the index of the descriptor in the request.
    pub fn descriptor_index(&self) -> usize {
        self.origin.descriptor as usize
    }

    /// Returns the override that applies, with its index in [`Rule::overrides`]; `None` if no override applies.
    pub fn active_override(&self) -> Option<(usize, &'r Override)> {
        match self.origin.settings_source {
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
        self.origin.settings_source == SettingsSource::Missing
    }

    /// Returns `true` if the rule can deny the request: it has a limit, is not in mode `observe`, and the match is
    /// not a refund.
    pub fn is_enforced(&self) -> bool {
        !self.limits().is_empty() && self.origin.veto != Veto::Never
    }

    /// Returns `true` if the cost is subtracted from the counters instead of added; see [`Descriptor::as_refund`].
    pub fn is_refund(&self) -> bool {
        self.origin.is_refund
    }

    /// Returns the limits that apply to the request. The list is empty if the rule allows every request.
    pub fn limits(&self) -> &[RuleLimit] {
        match &self.requested {
            Some(limit) => slice::from_ref(limit),
            None => self.limits,
        }
    }

    /// Returns the names and values of the attributes that identify the counter of the request, in the order of `per`.
    pub fn identity(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        let KeyIdentity { values, combination, .. } = &self.identity;
        let scope = match &self.requested {
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
    pub(super) fn hit<'h>(&'h self, limit: &'h RuleLimit) -> Hit<'h> {
        let KeyIdentity { values, combination, part } = &self.identity;
        let scope = &limit.scopes[usize::from(*combination)];
        let key = Key::with_optional_sub_key(scope, values, *part);
        if limit.limit.is_concurrent() {
            return self.new_permit_hit(limit, key);
        }
        if let Some(block) = limit.block {
            return self.new_key_block_hit(limit, key, block);
        }
        Hit {
            key,
            limit: &limit.limit,
            cost: self.charge.cost,
            required: self.required_units(limit),
            veto: self.origin.veto,
            charge: self.charge_condition(limit),
        }
    }

    /// Returns the hit of a limit on requests in flight. The hit takes one permit, whatever the request costs. A
    /// request of cost 0 takes no permit, because it only checks whether one is free. A charge of consumed units takes
    /// no permit, because its request has ended.
    fn new_permit_hit<'h>(&'h self, limit: &'h RuleLimit, key: Key<'h>) -> Hit<'h> {
        let takes_permit = self.is_new_request();
        Hit {
            key,
            limit: &limit.limit,
            cost: if takes_permit { self.charge.cost.min(1) } else { 0 },
            required: takes_permit.into(),
            veto: self.origin.veto,
            charge: match self.origin.veto {
                Veto::Alone => ChargeWhen::IfAdmitted,
                Veto::Jointly | Veto::Never => ChargeWhen::IfAdmittedAndFits,
            },
        }
    }

    /// Returns the hit of the rule's `block`. Only a new request can be denied by the block, start it or extend it, so
    /// the hit of a refund or of a report of consumed units charges and requires nothing.
    fn new_key_block_hit<'h>(
        &'h self,
        limit: &'h RuleLimit,
        key: Key<'h>,
        block: Block,
    ) -> Hit<'h> {
        let units = self.is_new_request().into();
        let (limit, charge) = (&limit.limit, ChargeWhen::Block(block));
        Hit { key, limit, cost: units, required: units, veto: self.origin.veto, charge }
    }

    /// Returns `false` for a refund, and for a report or charge of units that have been consumed, because the request
    /// that consumed them has ended.
    fn is_new_request(&self) -> bool {
        let has_ended = self.charge.is_consumed && self.charge.cost > 0;
        !has_ended && !self.origin.is_reported && !self.is_refund()
    }

    fn required_units(&self, limit: &RuleLimit) -> u64 {
        match self.charge.required {
            _ if self.origin.is_reported => 0,
            // A limit with max 0 denies every request, even if the rule requires no free units.
            0 if limit.limit.capacity() == 0 => 1,
            required => required,
        }
    }

    fn charge_condition(&self, limit: &RuleLimit) -> ChargeWhen {
        // A limit with max 0 has no counter that could be charged.
        let always = self.charge.charges_always || self.origin.is_reported;
        match self.origin.veto {
            _ if always && !self.is_refund() && limit.limit.capacity() > 0 => ChargeWhen::Always,
            Veto::Alone => ChargeWhen::IfAdmitted,
            Veto::Jointly | Veto::Never => ChargeWhen::IfAdmittedAndFits,
        }
    }
}
