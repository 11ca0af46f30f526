//! Checks whether a rule applies to a descriptor, and selects the limits that apply.

use std::slice;
use std::sync::Arc;

use super::{NoMatchReason, Override, Rule, RuleSettings, SettingsSource};
use crate::algorithm::{Algorithm, Align};
use crate::key::{Key, Scope};
use crate::limit::Limit;
use crate::policy::attributes::DescriptorAttributes;
use crate::policy::matched::Match;
use crate::policy::mode::Mode;
use crate::policy::per::KeyIdentity;
use crate::quota::Quota;
use crate::rule_limit::{LimitTexts, RuleLimit};

impl Rule {
    /// Checks the conditions of the rule on a descriptor. The rule applies if they are met and
    /// [`fill_in_match`](Self::fill_in_match) succeeds.
    ///
    /// `met_condition` is the index of a condition of `when` that the descriptor is known to meet, and that is not
    /// checked.
    ///
    /// # Errors
    /// Returns the reason why the rule does not apply.
    pub(crate) fn check_descriptor<'r>(
        &'r self,
        attributes: &DescriptorAttributes<'r, '_>,
        met_condition: Option<u16>,
    ) -> Result<(), NoMatchReason<'r>> {
        if self.is_for_requested_limits {
            return Err(NoMatchReason::RequestedLimitsOnly);
        }
        self.when.check_conditions(attributes, met_condition)?;
        if let Some(names) = &self.descriptor {
            check_attribute_names(attributes.pairs, names)?;
        }
        if attributes.is_exact {
            self.check_exact_descriptor(attributes)?;
        }
        Ok(())
    }

    /// Sets the limits, the values of the key and the veto of a new match of the rule with a descriptor. The descriptor
    /// meets the conditions of the rule; see [`check_descriptor`](Self::check_descriptor).
    ///
    /// # Errors
    /// Returns the reason why the rule does not apply. The match is then incomplete.
    pub(crate) fn fill_in_match<'r>(
        &'r self,
        attributes: &DescriptorAttributes<'r, '_>,
        rule_match: &mut Match<'r>,
    ) -> Result<(), NoMatchReason<'r>> {
        let (settings_source, settings) = self.select_settings(attributes);
        if settings.mode == Mode::Off {
            return Err(NoMatchReason::Off);
        }
        rule_match.origin.settings_source = settings_source;
        // A match without limits charges no counter, so it needs no key.
        if settings.limits.is_empty() && attributes.limit.is_none() {
            if attributes.is_exact {
                let checked = self.per.fill_key_identity(attributes, &mut KeyIdentity::default());
                checked.map_err(NoMatchReason::MissingAttribute)?;
            }
            return Ok(());
        }
        let identity = &mut rule_match.identity;
        if let Err(alternatives) = self.per.fill_key_identity(attributes, identity) {
            return match &self.missing {
                Some(limit) if !attributes.is_exact => {
                    self.fill_in_match_without_attribute(limit, settings, rule_match)
                }
                _ => Err(NoMatchReason::MissingAttribute(alternatives)),
            };
        }
        let scope = || &self.identity_scopes[usize::from(identity.combination)];
        let veto = settings.mode.veto_for_key(|| Key::new(scope(), &identity.values));
        match (attributes.limit, &self.redis) {
            (Some(quota), _) => {
                let names: Vec<&str> = scope().attribute_names().collect();
                identity.combination = 0;
                let limit = self.new_requested_limit(quota, &settings.limits, &names);
                rule_match.set_requested_limit(limit);
            }
            (None, Some(redis)) => identity.part = redis.sub_key_index_for_request(attributes),
            (None, None) => {}
        }
        rule_match.limits = &settings.limits;
        rule_match.set_veto(veto.ok_or(NoMatchReason::Off)?);
        Ok(())
    }

    /// Completes a match that denies a descriptor because it lacks an attribute of `per`. `limit` denies everything,
    /// and `settings` contains the mode that applies.
    ///
    /// # Errors
    /// Returns [`NoMatchReason::Off`] if the mode is `off`.
    fn fill_in_match_without_attribute<'r>(
        &'r self,
        limit: &'r RuleLimit,
        settings: &RuleSettings,
        rule_match: &mut Match<'r>,
    ) -> Result<(), NoMatchReason<'r>> {
        let veto = settings.mode.veto_for_key(|| Key::new(&limit.scopes[0], &[]));
        rule_match.origin.settings_source = SettingsSource::Missing;
        rule_match.limits = slice::from_ref(limit);
        rule_match.identity = KeyIdentity::default();
        rule_match.set_veto(veto.ok_or(NoMatchReason::Off)?);
        Ok(())
    }

    /// Completes a new match of this rule, which has `limits: requested`, with the limit that the descriptor contains.
    /// `same_counter` is a match of another rule whose counter only this descriptor uses. The limit then uses that
    /// counter. If `same_counter` is `None`, the limit has a counter of its own.
    ///
    /// # Errors
    /// Returns the reason why the rule does not apply. The match is then incomplete.
    pub(crate) fn fill_in_requested_limit_match<'r>(
        &'r self,
        attributes: &DescriptorAttributes<'r, '_>,
        same_counter: Option<Match<'r>>,
        rule_match: &mut Match<'r>,
    ) -> Result<(), NoMatchReason<'r>> {
        let quota = attributes.limit.ok_or(NoMatchReason::RequestedLimitsOnly)?;
        let same_counter = same_counter.and_then(|other| Some((other.requested?, other.identity)));
        let (limit, identity) = match same_counter {
            Some((limit, identity)) => (self.rename_requested_limit(&limit), identity),
            None => {
                let names: Vec<&str> = attributes.pairs.iter().map(|(name, _)| *name).collect();
                let limit = self.new_requested_limit(quota, &[], &names);
                (limit, self.per.identify_by_all_attributes(attributes))
            }
        };
        let key = || Key::new(&limit.scopes[0], &identity.values);
        let veto = self.settings.mode.veto_for_key(key);
        rule_match.limits = &self.settings.limits;
        rule_match.set_requested_limit(limit);
        rule_match.identity = identity;
        rule_match.set_veto(veto.ok_or(NoMatchReason::Off)?);
        Ok(())
    }

    /// Returns a copy of `limit`, which a descriptor contains, with the name of this rule. The copy uses the same
    /// counter as `limit`, the counter of another rule.
    fn rename_requested_limit(&self, limit: &RuleLimit) -> Arc<RuleLimit> {
        let index = self.settings.limits.first().map_or(limit.index, |first| first.index);
        Arc::new(RuleLimit { index, policy_name: self.name.clone(), ..limit.clone() })
    }

    /// Checks an exact descriptor, which matches only rules that name all of its attributes. Returns an error if the
    /// rule does not name an attribute of the descriptor, or if the descriptor lacks an attribute that `when` names.
    fn check_exact_descriptor<'r>(
        &'r self,
        attributes: &DescriptorAttributes<'r, '_>,
    ) -> Result<(), NoMatchReason<'r>> {
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

    /// Creates the limit that enforces the quota in a descriptor. `replaced` contains the limits of the rule that the
    /// new limit replaces. The new limit has the algorithm of the first of them that counts a rate. If a replaced limit
    /// has the same window and algorithm as the new limit, both use the same counter.
    fn new_requested_limit(
        &self,
        quota: Quota,
        replaced: &[RuleLimit],
        names: &[&str],
    ) -> Arc<RuleLimit> {
        let first = replaced.iter().find(|limit| !limit.limit.is_concurrent());
        let algorithm = match first.map_or(self.algorithm, |first| first.limit.algorithm()) {
            // No limit of the rule is replaced: windows follow the clock, as the sender of the limit assumes.
            Algorithm::FixedWindow { .. } if first.is_none() => {
                Algorithm::FixedWindow { align: Align::Clock }
            }
            // A limit that a descriptor contains has a window, not a calendar period, so its windows follow the clock.
            Algorithm::FixedWindow { align: Align::Calendar(_) } => {
                Algorithm::FixedWindow { align: Align::Clock }
            }
            // Precision, burst and debt of the rule are for the rule's quota. The quota in the descriptor gets the
            // defaults.
            Algorithm::SlidingBuckets { .. } => Algorithm::SlidingBuckets { precision: None },
            Algorithm::TokenBucket { .. } => Algorithm::TokenBucket { burst: None, max_debt: None },
            other => other,
        };
        // If the algorithm cannot enforce the quota, for example a log with a very high max, the default algorithm is
        // used.
        let limit = Limit::new(quota, algorithm).unwrap_or_else(|_| Limit::from_quota(quota));
        let id = quota.window_text();
        let scope = Scope::new(&self.domain, &self.name, &id, names).with_cluster(self.cluster);
        let index = first.or(self.settings.limits.first()).map_or(u32::MAX, |first| first.index);
        Arc::new(RuleLimit {
            block: None,
            index,
            limit,
            policy_name: self.name.clone(),
            texts: LimitTexts::default(),
            scopes: [scope].into(),
            id: id.into(),
        })
    }

    fn select_settings(
        &self,
        attributes: &DescriptorAttributes<'_, '_>,
    ) -> (SettingsSource, &RuleSettings) {
        let mut overrides = (0..).zip(&self.overrides);
        match overrides.find(|(_, other)| other.when.matches(attributes)) {
            Some((index, other)) => (SettingsSource::Override(index), &other.settings),
            None => (SettingsSource::Base, &self.settings),
        }
    }

    /// Returns the overrides whose conditions are not met, up to the first override that applies: the index of each
    /// override, an attribute that does not meet its condition, and the value of the attribute; `None` if it is absent.
    pub(crate) fn unused_overrides<'r>(
        &'r self,
        attributes: &DescriptorAttributes<'_, '_>,
    ) -> Vec<(usize, &'r str, Option<String>)> {
        let unmet = |other: &'r Override| other.when.find_unmet_condition(attributes);
        let unused = self.overrides.iter().map_while(unmet).enumerate();
        unused.map(|(index, (name, value))| (index, name, value.map(str::to_owned))).collect()
    }
}

/// Returns an error unless a descriptor has exactly the attribute names in `names`, in this order.
fn check_attribute_names<'r>(
    pairs: &[(&str, &str)],
    names: &'r [Box<str>],
) -> Result<(), NoMatchReason<'r>> {
    if pairs.iter().map(|(name, _)| *name).eq(names.iter().map(|name| &**name)) {
        Ok(())
    } else {
        Err(NoMatchReason::OtherAttributeNames(names))
    }
}
