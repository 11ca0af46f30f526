//! Rules: when a rule applies, the attributes that it counts by, and its limits.

mod fixed;
mod matching;

use std::num::NonZeroU32;

use super::Attributes;
use super::cost::{ChargeSettings, RuleCost};
use super::mode::{Mode, OnStoreError, WhenMissing};
use super::pattern::Condition;
use super::per::{Alternatives, Per};
use super::redis::RuleRedisOptions;
use crate::algorithm::Algorithm;
use crate::cluster_options::ClusterOptions;
use crate::host::is_host_attribute;
use crate::key::Scope;
use crate::limit::Limit;

pub(crate) use matching::MatchDetails;

/// One entry of a policy: when it applies, the attributes that it counts by, and its limits.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(super) name: Box<str>,
    pub(super) domain: Box<str>,
    pub(super) when: When,
    pub(super) per: Per,
    /// The names that the attributes of a descriptor must have, in this order.
    pub(super) descriptor: Option<Box<[Box<str>]>>,
    /// The names of all attributes that the rule uses, sorted.
    pub(super) attribute_names: Box<[Box<str>]>,
    /// Indexes of the rules that do not apply when this one does.
    pub(super) replaces: Box<[u32]>,
    /// Whether the rule is for limits that descriptors carry (`limits: requested`).
    pub(super) is_for_requested_limits: bool,
    /// The algorithm of limits that do not set one.
    pub(super) algorithm: Algorithm,
    pub(super) on_store_error: OnStoreError,
    pub(super) charge: ChargeSettings,
    pub(super) deny_status: Option<u16>,
    pub(super) settings: RuleSettings,
    pub(super) overrides: Box<[Override]>,
    pub(super) redis: Option<Box<RuleRedisOptions>>,
    pub(super) cluster: Option<ClusterOptions>,
    /// The limit that denies a request without an attribute of `per`; `None` for `when_missing: skip`.
    pub(super) missing: Option<RuleLimit>,
    /// One scope for each combination of names in `per`, independent of the limit.
    pub(super) identity_scopes: Box<[Scope]>,
}

/// The `when` of a rule or an override: conditions on attributes, all of which must be met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct When(pub(super) Box<[(Box<str>, Condition)]>);

/// The mode and the limits of a rule or an override.
#[derive(Clone, Debug)]
pub struct RuleSettings {
    pub(super) mode: Mode,
    pub(super) limits: Box<[RuleLimit]>,
}

/// Other settings for some of the rule's requests.
#[derive(Clone, Debug)]
pub struct Override {
    pub(super) name: Option<Box<str>>,
    pub(super) when: When,
    pub(super) settings: RuleSettings,
}

/// One limit of a rule.
#[derive(Clone, Debug)]
pub struct RuleLimit {
    /// Index among all limits of the policy. Set by the policy.
    pub(super) index: u32,
    pub(super) id: Box<str>,
    pub(super) limit: Limit,
    pub(super) policy_name: Box<str>,
    /// One scope for each combination of names in `per`.
    pub(super) scopes: Box<[Scope]>,
}

/// The part of a rule that provides the settings for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SettingsSource {
    Base,
    Override(u16),
    /// The denial of a request without an attribute of `per`.
    Missing,
}

/// The reason why a rule does not apply to a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoMatchReason<'r> {
    /// An attribute does not meet its condition in `when`.
    ConditionNotMet {
        /// The name of the attribute.
        attribute: &'r str,
        /// The condition in `when`.
        expected: &'r Condition,
        /// The value of the attribute; `None` if it is absent.
        found: Option<&'r str>,
    },
    /// The rule counts by one of these attributes, and none of them is present.
    MissingAttribute(&'r Alternatives),
    /// The descriptor matches only rules that name all of its attributes, and the rule does not name this one.
    UnnamedAttribute(&'r str),
    /// The rule is for descriptors with exactly these attribute names, in this order.
    OtherAttributeNames(&'r [Box<str>]),
    /// The rule is only for descriptors that carry a limit and that no other rule applies to.
    RequestedLimitsOnly,
    /// The rule with this name applies and replaces it.
    Replaced(&'r str),
    /// The mode of the rule or of the matching override is `off`.
    Off,
}

impl When {
    /// Returns the conditions by attribute name.
    pub fn conditions(&self) -> impl Iterator<Item = (&str, &Condition)> {
        self.0.iter().map(|(name, condition)| (&**name, condition))
    }

    fn matches(&self, attributes: &Attributes<'_, '_>) -> bool {
        self.0.iter().all(|(name, condition)| condition.matches(attributes.get(name)))
    }

    fn check<'r>(&'r self, attributes: &Attributes<'r, '_>) -> Result<(), NoMatchReason<'r>> {
        for (attribute, expected) in &self.0 {
            let found = attributes.get(attribute);
            if !expected.matches(found) {
                return Err(NoMatchReason::ConditionNotMet { attribute, expected, found });
            }
        }
        Ok(())
    }
}

impl RuleSettings {
    /// Returns the mode: whether a request that does not fit is denied.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the limits, all of which must fit. Empty if every request passes.
    pub fn limits(&self) -> &[RuleLimit] {
        &self.limits
    }

    /// Divides each limit by the number of instances.
    fn divide_limits(&mut self, instances: NonZeroU32) {
        for limit in &mut self.limits {
            limit.limit = limit.limit.instance_share(instances);
        }
    }
}

impl Override {
    /// Returns the name, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the conditions of the override.
    pub fn when(&self) -> &When {
        &self.when
    }

    /// Returns the settings for requests that meet the conditions.
    pub fn settings(&self) -> &RuleSettings {
        &self.settings
    }
}

impl RuleLimit {
    /// Returns the index in [`Policy::limits`](super::Policy::limits).
    pub fn index(&self) -> usize {
        self.index as usize
    }

    /// Returns the name of the limit; without a name, its window, such as `1m`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the limit.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Returns the name of the limit in headers: the name of the rule, or `rule.id` if the rule has several limits.
    pub fn policy_name(&self) -> &str {
        &self.policy_name
    }
}

impl Rule {
    /// Returns the name, which is unique in its domain.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the domain whose requests the rule applies to.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Returns the conditions of the rule.
    pub fn when(&self) -> &When {
        &self.when
    }

    /// Returns the attributes that the rule counts by.
    pub fn per(&self) -> &Per {
        &self.per
    }

    /// Returns the treatment of requests without an attribute of `per`.
    pub fn when_missing(&self) -> WhenMissing {
        if self.missing.is_some() { WhenMissing::Deny } else { WhenMissing::Skip }
    }

    /// Returns the names that the attributes of a descriptor must have, all of them and in this order; `None` if the
    /// rule is not restricted to certain descriptors.
    pub fn descriptor(&self) -> Option<impl Iterator<Item = &str>> {
        self.descriptor.as_ref().map(|names| names.iter().map(|name| &**name))
    }

    /// Returns whether the rule is for limits that descriptors carry and that no other rule applies to.
    pub fn is_for_requested_limits(&self) -> bool {
        self.is_for_requested_limits
    }

    /// Returns whether the rule and all of its overrides have limits: then a request that the rule applies to always
    /// has the attributes of `per`.
    pub(crate) fn always_counts(&self) -> bool {
        let counts = |settings: &RuleSettings| !settings.limits.is_empty();
        counts(&self.settings)
            && self.overrides.iter().all(|rule_override| counts(&rule_override.settings))
    }

    /// Returns whether the rule has a condition on, or counts by, a host attribute.
    pub(super) fn has_hosts(&self) -> bool {
        // Limits that descriptors carry are counted by all attributes.
        self.is_for_requested_limits
            || self.attribute_names.iter().any(|name| is_host_attribute(name))
    }

    /// Returns the behavior while the store is unavailable.
    pub fn on_store_error(&self) -> OnStoreError {
        self.on_store_error
    }

    /// Returns the cost that the rule charges for a request.
    pub fn cost(&self) -> &RuleCost {
        &self.charge.cost
    }

    /// Returns the units that must be free for a request to fit, also if its cost is lower. 1 by default; 0 means that
    /// a request of cost 0 fits unless the counter is above max.
    pub fn required(&self) -> u64 {
        self.charge.required
    }

    /// Returns whether denied requests are charged too, above max.
    pub fn charges_always(&self) -> bool {
        self.charge.charges_always
    }

    /// Returns the HTTP status of denials by this rule, from 400 to 599; `None` is 429.
    pub fn deny_status(&self) -> Option<u16> {
        self.deny_status
    }

    /// Returns the settings for requests that no override matches.
    pub fn settings(&self) -> &RuleSettings {
        &self.settings
    }

    /// Returns the overrides. The first whose `when` matches a request applies.
    pub fn overrides(&self) -> &[Override] {
        &self.overrides
    }

    /// Returns the options for stores that count in Redis.
    pub fn redis(&self) -> Option<&RuleRedisOptions> {
        self.redis.as_deref()
    }

    /// Returns the options for stores that count in a cluster.
    pub fn cluster(&self) -> Option<&ClusterOptions> {
        self.cluster.as_ref()
    }

    /// Returns every limit that may apply: the limits of the rule and of its overrides, and the limit that denies
    /// requests without an attribute of `per`.
    pub(crate) fn all_limits(&self) -> impl Iterator<Item = &RuleLimit> {
        let override_limits =
            self.overrides.iter().flat_map(|rule_override| &rule_override.settings.limits);
        self.settings.limits.iter().chain(override_limits).chain(&self.missing)
    }

    pub(super) fn all_limits_mut(&mut self) -> impl Iterator<Item = &mut RuleLimit> {
        let override_limits =
            self.overrides.iter_mut().flat_map(|rule_override| &mut rule_override.settings.limits);
        self.settings.limits.iter_mut().chain(override_limits).chain(&mut self.missing)
    }

    /// Returns the rule in mode `observe`, also in its overrides. Mode `off` stays.
    pub(super) fn observing(&self) -> Self {
        let mut observing = self.clone();
        observing.settings.mode = observing.settings.mode.observing();
        for other in &mut observing.overrides {
            other.settings.mode = other.settings.mode.observing();
        }
        observing
    }

    /// Returns the rule with each limit divided by the number of instances, as one instance enforces it on its own. A
    /// limit with max 0 still denies everything.
    pub(crate) fn with_limits_divided(&self, instances: NonZeroU32) -> Self {
        let mut rule = self.clone();
        rule.settings.divide_limits(instances);
        rule.overrides
            .iter_mut()
            .for_each(|rule_override| rule_override.settings.divide_limits(instances));
        rule
    }

    /// Returns the limits of the given part of the rule.
    pub(crate) fn limits(&self, source: SettingsSource) -> &[RuleLimit] {
        match source {
            SettingsSource::Base => &self.settings.limits,
            SettingsSource::Override(index) => &self.overrides[usize::from(index)].settings.limits,
            SettingsSource::Missing => self.missing.as_slice(),
        }
    }
}
