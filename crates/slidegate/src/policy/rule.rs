//! One rule: when it applies, per what it counts, and what then holds.

use std::num::NonZeroU32;

use super::Attributes;
use super::mode::{Mode, OnStoreError, WhenMissing};
use super::pattern::Condition;
use super::per::{Alternatives, Identity, Per};
use super::redis::RuleRedis;
use crate::hit::Admission;
use crate::key::{Key, Scope};
use crate::limit::Limit;

/// One entry of a policy: when it applies, per what it counts, its limits.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(super) name: Box<str>,
    pub(super) domain: Box<str>,
    pub(super) when: When,
    pub(super) per: Per,
    pub(super) on_store_error: OnStoreError,
    pub(super) overdraft: bool,
    pub(super) terms: Terms,
    pub(super) overrides: Box<[Override]>,
    pub(super) redis: Option<Box<RuleRedis>>,
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
pub struct Terms {
    pub(super) mode: Mode,
    pub(super) limits: Box<[RuleLimit]>,
}

/// Other terms for some of a rule's requests.
#[derive(Clone, Debug)]
pub struct Override {
    pub(super) name: Option<Box<str>>,
    pub(super) when: When,
    pub(super) terms: Terms,
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

/// How a rule applies to a descriptor.
#[derive(Clone, Debug)]
pub(crate) struct Fit<'r> {
    pub(crate) chosen: Chosen,
    pub(crate) limits: &'r [RuleLimit],
    pub(crate) identity: Identity<'r>,
    pub(crate) admission: Admission,
}

/// Why a rule does not apply to a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misfit<'r> {
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

    fn check<'r>(&'r self, attributes: &Attributes<'r, '_>) -> Result<(), Misfit<'r>> {
        for (attribute, wanted) in &self.0 {
            let found = attributes.get(attribute);
            if !wanted.holds(found) {
                return Err(Misfit::When { attribute, wanted, found });
            }
        }
        Ok(())
    }
}

impl Terms {
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
            limit.limit = limit.limit.share_of(instances);
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
    pub fn terms(&self) -> &Terms {
        &self.terms
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

    /// Whether all its terms have limits, so that somebody's counts are asked whenever it applies.
    pub(crate) fn always_counts(&self) -> bool {
        let counts = |terms: &Terms| !terms.limits.is_empty();
        counts(&self.terms) && self.overrides.iter().all(|other| counts(&other.terms))
    }

    /// What it wants while the store does not answer.
    pub fn on_store_error(&self) -> OnStoreError {
        self.on_store_error
    }

    /// Whether costs are charged even beyond max, since they have been spent already.
    pub fn has_overdraft(&self) -> bool {
        self.overdraft
    }

    /// What holds, unless an override does.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Other terms; the first whose `when` matches holds.
    pub fn overrides(&self) -> &[Override] {
        &self.overrides
    }

    /// What it says to stores that count in Redis.
    pub fn redis(&self) -> Option<&RuleRedis> {
        self.redis.as_deref()
    }

    /// Every limit that may hold: its own, those of its overrides, and the one that denies who lacks an
    /// attribute.
    pub(crate) fn all_limits(&self) -> impl Iterator<Item = &RuleLimit> {
        let others = self.overrides.iter().flat_map(|other| &other.terms.limits);
        self.terms.limits.iter().chain(others).chain(&self.missing)
    }

    pub(super) fn all_limits_mut(&mut self) -> impl Iterator<Item = &mut RuleLimit> {
        let others = self.overrides.iter_mut().flat_map(|other| &mut other.terms.limits);
        self.terms.limits.iter_mut().chain(others).chain(&mut self.missing)
    }

    /// The rule, denying nothing.
    pub(super) fn observing(&self) -> Self {
        let mut observing = self.clone();
        observing.terms.mode = observing.terms.mode.observing();
        for other in &mut observing.overrides {
            other.terms.mode = other.terms.mode.observing();
        }
        observing
    }

    /// The rule as each of so many instances enforces it on its own. What denies all denies all the same.
    pub(crate) fn share_of(&self, instances: NonZeroU32) -> Self {
        let mut own = self.clone();
        own.terms.share(instances);
        own.overrides.iter_mut().for_each(|other| other.terms.share(instances));
        own
    }

    /// The limits under the terms that hold.
    pub(crate) fn limits(&self, chosen: Chosen) -> &[RuleLimit] {
        match chosen {
            Chosen::Base => &self.terms.limits,
            Chosen::Override(nth) => &self.overrides[usize::from(nth)].terms.limits,
            Chosen::Missing => self.missing.as_slice(),
        }
    }

    /// How it applies to a descriptor, or why it does not.
    pub(crate) fn fit<'r>(
        &'r self,
        attributes: &Attributes<'r, '_>,
    ) -> Result<Fit<'r>, Misfit<'r>> {
        self.when.check(attributes)?;
        let (chosen, terms) = self.choose(attributes);
        if terms.mode == Mode::Off {
            return Err(Misfit::Off);
        }
        // Where all pass, nobody has to be known.
        if terms.limits.is_empty() {
            let (limits, identity) = (&[][..], Identity::default());
            return Ok(Fit { chosen, limits, identity, admission: Admission::Enforce });
        }
        let (chosen, limits, mut identity) = match (self.per.identify(attributes), &self.missing) {
            (Ok(identity), _) => (chosen, &*terms.limits, identity),
            (Err(lacking), None) => return Err(Misfit::Missing(lacking)),
            (Err(_), Some(missing)) => {
                (Chosen::Missing, std::slice::from_ref(missing), Identity::default())
            }
        };
        let scope = match chosen {
            Chosen::Missing => &limits[0].scopes[0],
            _ => &self.identities[usize::from(identity.combination)],
        };
        if let Some(redis) = &self.redis
            && chosen != Chosen::Missing
        {
            identity.part = redis.part(attributes);
        }
        let admission = terms.mode.admission(&Key::new(scope, &identity.values));
        Ok(Fit { chosen, limits, identity, admission: admission.ok_or(Misfit::Off)? })
    }

    fn choose(&self, attributes: &Attributes<'_, '_>) -> (Chosen, &Terms) {
        let mut overrides = (0..).zip(&self.overrides);
        match overrides.find(|(_, other)| other.when.holds(attributes)) {
            Some((nth, other)) => (Chosen::Override(nth), &other.terms),
            None => (Chosen::Base, &self.terms),
        }
    }
}
