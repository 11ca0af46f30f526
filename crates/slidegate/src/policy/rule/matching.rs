//! Matches a rule against a descriptor and selects the limits that apply.

use std::slice;
use std::sync::Arc;

use super::{NoMatchReason, Rule, RuleLimit, RuleSettings, SettingsSource};
use crate::algorithm::{Algorithm, Align};
use crate::hit::Veto;
use crate::key::{Key, Scope};
use crate::limit::Limit;
use crate::policy::Attributes;
use crate::policy::mode::Mode;
use crate::policy::per::Identity;
use crate::quota::Quota;

/// The result of a rule that matches a descriptor.
#[derive(Clone, Debug)]
pub(crate) struct MatchDetails<'r> {
    pub(crate) settings_source: SettingsSource,
    pub(crate) limits: &'r [RuleLimit],
    /// The limit that the descriptor carries. It replaces `limits`.
    pub(crate) requested: Option<Arc<RuleLimit>>,
    pub(crate) identity: Identity<'r>,
    pub(crate) veto: Veto,
}

impl Rule {
    /// Matches the rule against a descriptor. Returns the limits and the key, or the reason why the rule does not
    /// apply.
    pub(crate) fn match_descriptor<'r>(
        &'r self,
        attributes: &Attributes<'r, '_>,
    ) -> Result<MatchDetails<'r>, NoMatchReason<'r>> {
        if self.is_for_requested_limits {
            return Err(NoMatchReason::RequestedLimitsOnly);
        }
        self.when.check(attributes)?;
        if let Some(names) = &self.descriptor {
            check_names(attributes.pairs, names)?;
        }
        if attributes.is_exact {
            self.check_exact(attributes)?;
        }
        let (settings_source, settings) = self.choose_settings(attributes);
        if settings.mode == Mode::Off {
            return Err(NoMatchReason::Off);
        }
        // Without limits no key is needed.
        if settings.limits.is_empty() && attributes.limit.is_none() {
            if attributes.is_exact {
                self.per.identify(attributes).map_err(NoMatchReason::MissingAttribute)?;
            }
            return Ok(MatchDetails {
                settings_source,
                limits: &[],
                requested: None,
                identity: Identity::default(),
                veto: Veto::Alone,
            });
        }
        let mut identity = match (self.per.identify(attributes), &self.missing) {
            (Ok(identity), _) => identity,
            (Err(_), Some(missing)) if !attributes.is_exact => {
                return self.match_missing_attribute(missing, settings);
            }
            (Err(alternatives), _) => return Err(NoMatchReason::MissingAttribute(alternatives)),
        };
        let scope = &self.identity_scopes[usize::from(identity.combination)];
        let veto = settings.mode.veto(&Key::new(scope, &identity.values));
        let requested = attributes.limit.map(|quota| {
            let names: Vec<&str> = scope.names().collect();
            identity.combination = 0;
            self.requested_limit(quota, &settings.limits, &names)
        });
        if let (Some(redis), None) = (&self.redis, &requested) {
            identity.part = redis.part(attributes);
        }
        let veto = veto.ok_or(NoMatchReason::Off)?;
        Ok(MatchDetails { settings_source, limits: &settings.limits, requested, identity, veto })
    }

    /// Returns the match that denies a descriptor without an attribute of `per`.
    fn match_missing_attribute<'r>(
        &'r self,
        missing: &'r RuleLimit,
        settings: &RuleSettings,
    ) -> Result<MatchDetails<'r>, NoMatchReason<'r>> {
        let veto = settings.mode.veto(&Key::new(&missing.scopes[0], &[]));
        Ok(MatchDetails {
            settings_source: SettingsSource::Missing,
            limits: slice::from_ref(missing),
            requested: None,
            identity: Identity::default(),
            veto: veto.ok_or(NoMatchReason::Off)?,
        })
    }

    /// Matches a rule for requested limits against a descriptor that carries a limit and that no other rule
    /// applies to.
    pub(crate) fn match_requested_limit<'r>(
        &'r self,
        attributes: &Attributes<'r, '_>,
    ) -> Result<MatchDetails<'r>, NoMatchReason<'r>> {
        let pairs = attributes.pairs;
        let quota = attributes
            .limit
            .filter(|_| self.is_for_requested_limits)
            .ok_or(NoMatchReason::RequestedLimitsOnly)?;
        let names: Vec<&str> = pairs.iter().map(|(name, _)| *name).collect();
        let limit = self.requested_limit(quota, &[], &names);
        let identity = self.per.identify_all(attributes);
        let veto = self.settings.mode.veto(&Key::new(&limit.scopes[0], &identity.values));
        Ok(MatchDetails {
            settings_source: SettingsSource::Base,
            limits: &self.settings.limits,
            requested: Some(limit),
            identity,
            veto: veto.ok_or(NoMatchReason::Off)?,
        })
    }

    /// Checks that a descriptor that matches only rules that name all of its attributes matches this rule.
    fn check_exact<'r>(&'r self, attributes: &Attributes<'r, '_>) -> Result<(), NoMatchReason<'r>> {
        for (attribute, expected) in &self.when.0 {
            if attributes.get(attribute).is_none() {
                return Err(NoMatchReason::ConditionNotMet { attribute, expected, found: None });
            }
        }
        let is_named =
            |name: &str| self.attribute_names.binary_search_by(|own| (**own).cmp(name)).is_ok();
        // A rule that names `route` accepts `path`, from which the route results.
        let implies_route = |name: &str| name == "path" && is_named("route");
        let unnamed = |name: &&str| !is_named(name) && !implies_route(name);
        match attributes.pairs.iter().map(|(name, _)| *name).find(unnamed) {
            Some(name) => Err(NoMatchReason::UnnamedAttribute(name)),
            None => Ok(()),
        }
    }

    /// Returns the limit for the quota of a descriptor. It replaces the limits `replaced`, uses the algorithm of the
    /// first of them, and shares its counter if window and algorithm are equal.
    fn requested_limit(
        &self,
        quota: Quota,
        replaced: &[RuleLimit],
        names: &[&str],
    ) -> Arc<RuleLimit> {
        let first = replaced.first();
        let algorithm = match first.map_or(self.algorithm, |first| first.limit.algorithm()) {
            // No limit of the rule is replaced: windows follow the clock, as the sender of the limit assumes.
            Algorithm::FixedWindow { .. } if first.is_none() => {
                Algorithm::FixedWindow { align: Align::Clock }
            }
            // Precision, burst and debt of the rule fit the rule's quota, not the requested one.
            Algorithm::SlidingBuckets { .. } => Algorithm::SlidingBuckets { precision: None },
            Algorithm::TokenBucket { .. } => Algorithm::TokenBucket { burst: None, max_debt: None },
            other => other,
        };
        // If the algorithm cannot enforce the quota, such as a very long log, the default algorithm can.
        let limit = Limit::new(quota, algorithm).unwrap_or_else(|_| Limit::from_quota(quota));
        let id = quota.window_text();
        let scope = Scope::new(&self.domain, &self.name, &id, names).with_cluster(self.cluster);
        let index = first.or(self.settings.limits.first()).map_or(u32::MAX, |first| first.index);
        Arc::new(RuleLimit {
            index,
            limit,
            policy_name: self.name.clone(),
            scopes: [scope].into(),
            id: id.into(),
        })
    }

    fn choose_settings(&self, attributes: &Attributes<'_, '_>) -> (SettingsSource, &RuleSettings) {
        let mut overrides = (0..).zip(&self.overrides);
        match overrides.find(|(_, other)| other.when.matches(attributes)) {
            Some((index, other)) => (SettingsSource::Override(index), &other.settings),
            None => (SettingsSource::Base, &self.settings),
        }
    }
}

/// Checks that a descriptor has exactly these attribute names, in this order.
fn check_names<'r>(pairs: &[(&str, &str)], names: &'r [Box<str>]) -> Result<(), NoMatchReason<'r>> {
    match pairs.iter().map(|(name, _)| *name).eq(names.iter().map(|name| &**name)) {
        true => Ok(()),
        false => Err(NoMatchReason::OtherAttributeNames(names)),
    }
}
