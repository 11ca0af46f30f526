//! Rules: the conditions under which a rule applies, the attributes by which the rule counts, and its limits.

pub(super) mod matching;

use std::num::NonZeroU32;

use super::attributes::DescriptorAttributes;
use super::cost::{ChargeSettings, RuleCost};
use super::mode::{Mode, WhenMissing};
use super::normalization::{NormalizeStep, StepsByAttribute};
use super::pattern::Condition;
use super::per::{AttributeAlternatives, Per};
use super::redis::RuleRedisOptions;
use crate::algorithm::Algorithm;
use crate::cluster_options::ClusterOptions;
use crate::host::is_host_attribute;
use crate::key::Scope;
use crate::on_store_error::OnStoreError;
use crate::reason::ProblemType;
use crate::rule_limit::RuleLimit;

/// One entry of a policy: the conditions under which the rule applies, the attributes by which the rule counts, and its
/// limits.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(super) name: Box<str>,
    pub(super) domain: Box<str>,
    pub(super) when: When,
    pub(super) per: Per,
    /// The names that the attributes of a descriptor must have, in this order. `None` if the rule does not restrict the
    /// names.
    pub(super) descriptor: Option<Box<[Box<str>]>>,
    /// The names of all attributes that the rule uses, sorted and without duplicates.
    pub(super) attribute_names: Box<[Box<str>]>,
    /// The steps by which attributes of the rule are normalized.
    pub(super) normalized: StepsByAttribute,
    /// Indexes of the rules that the field `replaces` lists. These rules do not apply to a request to which this rule
    /// applies.
    pub(super) replaces: Box<[u32]>,
    /// Whether the rule has `limits: requested`: it enforces limits that descriptors contain.
    pub(super) is_for_requested_limits: bool,
    /// The algorithm of limits that do not specify an algorithm.
    pub(super) algorithm: Algorithm,
    pub(super) on_store_error: OnStoreError,
    pub(super) charge: ChargeSettings,
    pub(super) deny_status: Option<u16>,
    pub(super) problem: ProblemType,
    pub(super) is_in_headers: bool,
    pub(super) settings: RuleSettings,
    pub(super) overrides: Box<[Override]>,
    pub(super) redis: Option<Box<RuleRedisOptions>>,
    pub(super) cluster: Option<ClusterOptions>,
    /// The limit that denies a request that lacks an attribute of `per`. `None` if the rule does not apply to such a
    /// request (`when_missing: skip`).
    pub(super) missing: Option<RuleLimit>,
    /// Key scopes without a limit id: one for each combination of attribute names in `per`. They provide the attribute
    /// names. A mode such as `{ enforce: 5% }` selects keys in these scopes, so that all limits select the same keys.
    pub(super) identity_scopes: Box<[Scope]>,
}

/// The `when` of a rule or an override: conditions on attributes. A request must meet all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct When(pub(super) Box<[(Box<str>, Condition)]>);

/// The mode and the limits of a rule or an override.
#[derive(Clone, Debug)]
pub struct RuleSettings {
    pub(super) mode: Mode,
    pub(super) limits: Box<[RuleLimit]>,
}

/// Mode and limits that replace the settings of a rule for requests that meet the conditions of the override.
#[derive(Clone, Debug)]
pub struct Override {
    pub(super) name: Option<Box<str>>,
    pub(super) when: When,
    pub(super) settings: RuleSettings,
}

/// The part of a rule whose mode and limits apply to a request: the rule itself, an override, or the denial of requests
/// that lack an attribute of `per`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SettingsSource {
    Base,
    Override(u16),
    /// The limit that denies a request that lacks an attribute of `per`.
    Missing,
}

/// The reason why a rule does not apply to a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoMatchReason<'r> {
    /// The value of an attribute does not meet a condition in the `when` of the rule.
    ConditionNotMet {
        /// The name of the attribute.
        attribute: &'r str,
        /// The condition that the value of the attribute must meet.
        expected: &'r Condition,
        /// The value of the attribute; `None` if it is absent.
        found: Option<&'r str>,
    },
    /// An entry of `per` lists these alternative attributes, and none of them is present in the descriptor.
    MissingAttribute(&'r AttributeAlternatives),
    /// The descriptor is [exact](crate::Descriptor::exact), so it matches only rules that name all of its attributes.
    /// The rule does not name this attribute.
    UnnamedAttribute(&'r str),
    /// The rule applies only to descriptors with exactly these attribute names, in this order. The descriptor has other
    /// names.
    OtherAttributeNames(&'r [Box<str>]),
    /// The rule has `limits: requested`, so it applies only to a descriptor that contains a limit.
    RequestedLimitsOnly,
    /// Another rule, with this name, applies in place of the rule: it lists the rule in `replaces`, or it has
    /// `limits: requested` and the descriptor contains a limit.
    Replaced(&'r str),
    /// The mode of the rule or of the matching override is `off`.
    Off,
}

impl When {
    /// Returns the conditions, each with the name of its attribute.
    pub fn conditions(&self) -> impl Iterator<Item = (&str, &Condition)> {
        self.0.iter().map(|(name, condition)| (&**name, condition))
    }

    /// Returns `true` if only one value of an attribute meets the conditions.
    pub(super) fn allows_one_value(&self, attribute: &str) -> bool {
        self.0.iter().any(|(name, condition)| **name == *attribute && condition.allows_one_value())
    }

    fn matches(&self, attributes: &DescriptorAttributes<'_, '_>) -> bool {
        self.0.iter().all(|(name, condition)| condition.matches(attributes.get(name)))
    }

    /// Returns an attribute that does not meet its condition, and its value; `None` if all conditions are met. An
    /// absent attribute is returned only if every attribute that does not meet its condition is absent.
    pub(super) fn find_unmet_condition<'a>(
        &self,
        attributes: &DescriptorAttributes<'a, '_>,
    ) -> Option<(&str, Option<&'a str>)> {
        let mut unmet = (self.conditions())
            .map(|(name, condition)| (name, condition, attributes.get(name)))
            .filter(|(_, condition, found)| !condition.matches(*found))
            .map(|(name, _, found)| (name, found));
        let first = unmet.next()?;
        Some(if first.1.is_some() {
            first
        } else {
            unmet.find(|(_, found)| found.is_some()).unwrap_or(first)
        })
    }

    /// Checks all conditions except the condition with the index `met`, which is known to be met.
    fn check_conditions<'r>(
        &'r self,
        attributes: &DescriptorAttributes<'r, '_>,
        met: Option<u16>,
    ) -> Result<(), NoMatchReason<'r>> {
        for (index, (attribute, expected)) in self.0.iter().enumerate() {
            if met.is_some_and(|met| usize::from(met) == index) {
                continue;
            }
            let found = attributes.get(attribute);
            if !expected.matches(found) {
                return Err(NoMatchReason::ConditionNotMet { attribute, expected, found });
            }
        }
        Ok(())
    }
}

impl RuleSettings {
    /// Returns the mode, which determines whether a request that exceeds a limit is denied.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the limits. A request must fit all of them; without limits, every request passes.
    pub fn limits(&self) -> &[RuleLimit] {
        &self.limits
    }

    /// Divides the max of each limit, except the limit of a `block`, by the number of slidegate instances.
    fn divide_limits(&mut self, instances: NonZeroU32) {
        for limit in self.limits.iter_mut().filter(|limit| !limit.is_block_limit()) {
            limit.limit = limit.limit.instance_share(instances);
        }
    }
}

impl Override {
    /// Returns the name of the override; `None` if the policy does not name it.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the conditions under which the override applies.
    pub fn when(&self) -> &When {
        &self.when
    }

    /// Returns the mode and the limits for requests that meet the conditions of the override.
    pub fn settings(&self) -> &RuleSettings {
        &self.settings
    }
}

impl Rule {
    /// Returns the name of the rule, which is unique in its domain.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the domain of the rule. The rule applies only to requests of this domain.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Returns the conditions under which the rule applies.
    pub fn when(&self) -> &When {
        &self.when
    }

    /// Returns the attributes by which the rule counts.
    pub fn per(&self) -> &Per {
        &self.per
    }

    /// Returns the treatment of requests that lack an attribute of `per`.
    pub fn when_missing(&self) -> WhenMissing {
        if self.missing.is_some() { WhenMissing::Deny } else { WhenMissing::Skip }
    }

    /// Returns the names that the attributes of a descriptor must have, all of them and in this order; `None` if the
    /// rule is not restricted to certain descriptors.
    pub fn descriptor(&self) -> Option<impl Iterator<Item = &str>> {
        self.descriptor.as_ref().map(|names| names.iter().map(|name| &**name))
    }

    /// Returns `true` if the rule has `limits: requested`: it applies to each descriptor that contains a limit, in
    /// place of all other rules, and enforces this limit.
    pub fn is_for_requested_limits(&self) -> bool {
        self.is_for_requested_limits
    }

    /// Returns `true` if the rule and all of its overrides have limits. Such a rule counts every request to which it
    /// applies and that has the attributes of `per`.
    pub(crate) fn counts_every_request(&self) -> bool {
        let counts = |settings: &RuleSettings| !settings.limits.is_empty();
        counts(&self.settings)
            && self.overrides.iter().all(|rule_override| counts(&rule_override.settings))
    }

    /// Returns the attributes that are normalized before the rule compares and counts their values, each with its
    /// steps.
    pub fn normalized_attributes(&self) -> impl Iterator<Item = (&str, &[NormalizeStep])> {
        self.normalized.iter().map(|(name, steps)| (&**name, &**steps))
    }

    /// Returns `true` if the rule uses an attribute that contains a host name.
    pub(super) fn uses_host_attributes(&self) -> bool {
        // A limit that a descriptor contains counts by all attributes of the descriptor, which may include a host name.
        self.is_for_requested_limits
            || self.attribute_names.iter().any(|name| is_host_attribute(name))
    }

    /// Returns the behavior of the rule while the store is unavailable.
    pub fn on_store_error(&self) -> OnStoreError {
        self.on_store_error
    }

    /// Returns the cost that the rule charges for a request.
    pub fn cost(&self) -> &RuleCost {
        &self.charge.cost
    }

    /// Returns the number of units that must be free for a request to fit a limit, even if the cost of the request is
    /// lower; 1 by default. If it is 0, a request of cost 0 fits unless the counter is above max.
    pub fn required(&self) -> u64 {
        self.charge.required
    }

    /// Returns `true` if denied requests are charged too (`charge: always`). Their charges can raise a counter above
    /// max.
    pub fn charges_always(&self) -> bool {
        self.charge.charges_always
    }

    /// Returns the HTTP status of requests that this rule denies, from 400 to 599. `None` means 429.
    pub fn deny_status(&self) -> Option<u16> {
        self.deny_status
    }

    /// Returns the problem type of a denial by this rule.
    pub fn problem(&self) -> ProblemType {
        self.problem
    }

    /// Returns `true` if rate limit headers contain the limits of the rule.
    pub fn is_in_headers(&self) -> bool {
        self.is_in_headers
    }

    /// Returns the mode and the limits for requests that no override matches.
    pub fn settings(&self) -> &RuleSettings {
        &self.settings
    }

    /// Returns the overrides, in the order of the file. The first override whose `when` matches a request applies.
    pub fn overrides(&self) -> &[Override] {
        &self.overrides
    }

    /// Returns the options for stores that count in Redis; `None` if the rule has no `redis` field.
    pub fn redis(&self) -> Option<&RuleRedisOptions> {
        self.redis.as_deref()
    }

    /// Returns the options for stores that count in a cluster; `None` if the rule has no `cluster` field.
    pub fn cluster(&self) -> Option<&ClusterOptions> {
        self.cluster.as_ref()
    }

    /// Returns every limit that may apply: the limits of the rule and of its overrides, and the limit that denies
    /// requests that lack an attribute of `per`.
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

    /// Returns a copy of the rule that never denies: the rule and its overrides have mode `observe`. Mode `off` is not
    /// changed.
    pub(super) fn observing(&self) -> Self {
        let mut observing = self.clone();
        observing.settings.mode = observing.settings.mode.observing();
        for other in &mut observing.overrides {
            other.settings.mode = other.settings.mode.observing();
        }
        observing
    }

    /// Returns a copy of the rule with the max of each limit divided by the number of slidegate instances. An instance
    /// enforces this copy in its own memory while the store is unavailable. A limit with max 0 still denies every
    /// request.
    pub(crate) fn with_per_instance_limits(&self, instances: NonZeroU32) -> Self {
        let mut rule = self.clone();
        rule.settings.divide_limits(instances);
        rule.overrides
            .iter_mut()
            .for_each(|rule_override| rule_override.settings.divide_limits(instances));
        rule
    }

    /// Returns the limits of one part of the rule: the rule itself, an override, or the denial of requests that lack an
    /// attribute of `per`.
    pub(crate) fn limits(&self, source: SettingsSource) -> &[RuleLimit] {
        match source {
            SettingsSource::Base => &self.settings.limits,
            SettingsSource::Override(index) => &self.overrides[usize::from(index)].settings.limits,
            SettingsSource::Missing => self.missing.as_slice(),
        }
    }
}
