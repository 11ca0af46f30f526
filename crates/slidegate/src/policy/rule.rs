//! One rule: when it applies, per what it counts, and what then holds.

mod fit;
mod fixed;

use std::num::NonZeroU32;

use super::Attributes;
use super::cost::{ChargeSettings, RuleCost};
use super::mode::{Mode, OnStoreError, WhenMissing};
use super::pattern::Condition;
use super::per::{Alternatives, Per};
use super::redis::RuleRedis;
use crate::algorithm::Algorithm;
use crate::cluster_options::ClusterOptions;
use crate::host::is_host_attribute;
use crate::key::Scope;
use crate::limit::Limit;

pub(crate) use fit::Fit;

/// One entry of a policy: when it applies, per what it counts, its limits.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(super) name: Box<str>,
    pub(super) domain: Box<str>,
    pub(super) when: When,
    pub(super) per: Per,
    /// The names that a descriptor must have, in their order.
    pub(super) descriptor: Option<Box<[Box<str>]>>,
    /// Every attribute that the rule names, in order.
    pub(super) named: Box<[Box<str>]>,
    /// The places of the rules that do not apply where this one does.
    pub(super) replaces: Box<[u32]>,
    /// Whether it is for limits that descriptors bring along.
    pub(super) requested: bool,
    /// By which limits count that do not say so themselves.
    pub(super) algorithm: Algorithm,
    pub(super) on_store_error: OnStoreError,
    pub(super) charge: ChargeSettings,
    pub(super) deny_status: Option<u16>,
    pub(super) settings: RuleSettings,
    pub(super) overrides: Box<[Override]>,
    pub(super) redis: Option<Box<RuleRedis>>,
    pub(super) cluster: Option<ClusterOptions>,
    /// What denies a request that lacks an attribute of `per`.
    pub(super) missing: Option<RuleLimit>,
    /// Whose counts, whichever the limit: for each combination of names.
    pub(super) identities: Box<[Scope]>,
}

/// What the attributes have to be; all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct When(pub(super) Box<[(Box<str>, Condition)]>);

/// What holds for a request: limits, and what becomes of those that it does not fit.
#[derive(Clone, Debug)]
pub struct RuleSettings {
    pub(super) mode: Mode,
    pub(super) limits: Box<[RuleLimit]>,
}

/// Other terms for some of a rule's requests.
#[derive(Clone, Debug)]
pub struct Override {
    pub(super) name: Option<Box<str>>,
    pub(super) when: When,
    pub(super) settings: RuleSettings,
}

/// One limit of a rule.
#[derive(Clone, Debug)]
pub struct RuleLimit {
    /// Its place among all limits of the policy, which gives it.
    pub(super) place: u32,
    pub(super) id: Box<str>,
    pub(super) limit: Limit,
    pub(super) policy_name: Box<str>,
    /// For each combination of names that a rule counts per.
    pub(super) scopes: Box<[Scope]>,
}

/// Which terms of a rule hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chosen {
    Base,
    Override(u16),
    /// Those of a request that lacks an attribute of `per`.
    Missing,
}

/// Why a rule does not apply to a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoMatchReason<'r> {
    /// An attribute is not as `when` wants it.
    When {
        /// The attribute's name.
        attribute: &'r str,
        /// What `when` wants.
        wanted: &'r Condition,
        /// What the attribute is; none if it is absent.
        found: Option<&'r str>,
    },
    /// None of these attributes is present, per which the rule counts.
    Missing(&'r Alternatives),
    /// The descriptor has an attribute that the rule does not name, and is only for rules that name them all.
    Unnamed(&'r str),
    /// The descriptor's attributes do not have exactly these names, in this order.
    Descriptor(&'r [Box<str>]),
    /// The rule is for limits that descriptors bring along, and for those that no other rule applies to.
    NotRequested,
    /// Another rule applies, and replaces it.
    Replaced(&'r str),
    /// The rule, or the override that holds, is switched off.
    Off,
}

impl When {
    /// What each attribute has to be.
    pub fn conditions(&self) -> impl Iterator<Item = (&str, &Condition)> {
        self.0.iter().map(|(name, condition)| (&**name, condition))
    }

    fn holds(&self, attributes: &Attributes<'_, '_>) -> bool {
        self.0.iter().all(|(name, condition)| condition.holds(attributes.get(name)))
    }

    fn check<'r>(&'r self, attributes: &Attributes<'r, '_>) -> Result<(), NoMatchReason<'r>> {
        for (attribute, wanted) in &self.0 {
            let found = attributes.get(attribute);
            if !wanted.holds(found) {
                return Err(NoMatchReason::When { attribute, wanted, found });
            }
        }
        Ok(())
    }
}

impl RuleSettings {
    /// Whether what does not fit is denied.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The limits; all must fit. None: all pass.
    pub fn limits(&self) -> &[RuleLimit] {
        &self.limits
    }

    /// Those that each of so many instances enforces on its own.
    fn share(&mut self, instances: NonZeroU32) {
        for limit in &mut self.limits {
            limit.limit = limit.limit.instance_share(instances);
        }
    }
}

impl Override {
    /// The name, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Whose requests it is for.
    pub fn when(&self) -> &When {
        &self.when
    }

    /// What holds for them.
    pub fn settings(&self) -> &RuleSettings {
        &self.settings
    }
}

impl RuleLimit {
    /// Its place in [`Policy::limits`](super::Policy::limits).
    pub fn place(&self) -> usize {
        self.place as usize
    }

    /// The limit's name, or else its window, such as `1m`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The limit.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// The limit's name in headers: that of the rule, or `rule.id` where several limits hold.
    pub fn policy_name(&self) -> &str {
        &self.policy_name
    }
}

impl Rule {
    /// The name, unique in its domain.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The domain whose requests it applies to.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Whose requests it is for.
    pub fn when(&self) -> &When {
        &self.when
    }

    /// The attributes whose values are counted apart.
    pub fn per(&self) -> &Per {
        &self.per
    }

    /// What becomes of a request that lacks an attribute of `per`.
    pub fn when_missing(&self) -> WhenMissing {
        if self.missing.is_some() { WhenMissing::Deny } else { WhenMissing::Skip }
    }

    /// The names of the attributes that a descriptor must have, all of them and in their order.
    pub fn descriptor(&self) -> Option<impl Iterator<Item = &str>> {
        self.descriptor.as_ref().map(|names| names.iter().map(|name| &**name))
    }

    /// Whether it is for limits that descriptors bring along, where no other rule applies.
    pub fn is_for_requested_limits(&self) -> bool {
        self.requested
    }

    /// Whether all its terms have limits, so that somebody's counts are asked whenever it applies.
    pub(crate) fn always_counts(&self) -> bool {
        let counts = |settings: &RuleSettings| !settings.limits.is_empty();
        counts(&self.settings) && self.overrides.iter().all(|other| counts(&other.settings))
    }

    /// Whether it compares or counts hosts.
    pub(super) fn has_hosts(&self) -> bool {
        // Limits that descriptors bring along count per all their attributes.
        self.requested || self.named.iter().any(|name| is_host_attribute(name))
    }

    /// What it wants while the store does not answer.
    pub fn on_store_error(&self) -> OnStoreError {
        self.on_store_error
    }

    /// Returns the cost that it charges for a request.
    pub fn cost(&self) -> &RuleCost {
        &self.charge.cost
    }

    /// Returns the units that must be free for a request to fit, also if its cost is lower. 1 by default; 0 means that a
    /// request of cost 0 fits unless the counter is above max.
    pub fn required(&self) -> u64 {
        self.charge.required
    }

    /// Returns whether denied requests are charged too, above max.
    pub fn charges_always(&self) -> bool {
        self.charge.always
    }

    /// Returns the HTTP status of its denials, from 400 to 599; `None` is 429.
    pub fn deny_status(&self) -> Option<u16> {
        self.deny_status
    }

    /// What holds, unless an override does.
    pub fn settings(&self) -> &RuleSettings {
        &self.settings
    }

    /// Other terms; the first whose `when` matches holds.
    pub fn overrides(&self) -> &[Override] {
        &self.overrides
    }

    /// What it says to stores that count in Redis.
    pub fn redis(&self) -> Option<&RuleRedis> {
        self.redis.as_deref()
    }

    /// What it says to stores that count in a cluster.
    pub fn cluster(&self) -> Option<&ClusterOptions> {
        self.cluster.as_ref()
    }

    /// Every limit that may hold: its own, those of its overrides, and the one that denies who lacks an
    /// attribute.
    pub(crate) fn all_limits(&self) -> impl Iterator<Item = &RuleLimit> {
        let others = self.overrides.iter().flat_map(|other| &other.settings.limits);
        self.settings.limits.iter().chain(others).chain(&self.missing)
    }

    pub(super) fn all_limits_mut(&mut self) -> impl Iterator<Item = &mut RuleLimit> {
        let others = self.overrides.iter_mut().flat_map(|other| &mut other.settings.limits);
        self.settings.limits.iter_mut().chain(others).chain(&mut self.missing)
    }

    /// The rule, denying nothing.
    pub(super) fn observing(&self) -> Self {
        let mut observing = self.clone();
        observing.settings.mode = observing.settings.mode.observing();
        for other in &mut observing.overrides {
            other.settings.mode = other.settings.mode.observing();
        }
        observing
    }

    /// The rule as each of so many instances enforces it on its own. What denies all denies all the same.
    pub(crate) fn share_of(&self, instances: NonZeroU32) -> Self {
        let mut own = self.clone();
        own.settings.share(instances);
        own.overrides.iter_mut().for_each(|other| other.settings.share(instances));
        own
    }

    /// The limits under the terms that hold.
    pub(crate) fn limits(&self, chosen: Chosen) -> &[RuleLimit] {
        match chosen {
            Chosen::Base => &self.settings.limits,
            Chosen::Override(nth) => &self.overrides[usize::from(nth)].settings.limits,
            Chosen::Missing => self.missing.as_slice(),
        }
    }
}
