//! Policies: the rules of each domain, and the search for the rules that apply to a request.
//!
//! [`Policy::apply`] compares each descriptor of a request with the rules of the request's domain, and returns the
//! rules that apply as [`MatchedRules`]. From these, the gate creates the hits: the charges that the store makes. A
//! policy does not depend on a store. If a store supports only some limits, the caller reads the policy with
//! [`Policy::from_yaml_for`], which rejects the other limits.

mod attributes;
mod cost;
mod declared_attributes;
mod domain_names;
pub(crate) mod error;
pub mod file;
mod index;
mod matched;
mod mode;
mod name_map;
mod normalization;
mod pattern;
mod per;
mod redis;
mod route;
mod rule;
mod rule_sets;
#[cfg(test)]
mod tests;
mod unused_names;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::request::{AttributePairs, Descriptor, Request};

use attributes::DescriptorAttributes;
use declared_attributes::DeclaredAttributes;
use index::{CandidateRules, RuleIndex};
use name_map::NameMap;
use normalization::{DomainNormalization, Normalizations};
use route::Routes;
use rule_sets::FullAndLocalRules;

pub use crate::host::normalize_host;
pub use crate::key::DEFAULT_DOMAIN;
pub use crate::network::{Network, NetworkError};
pub use crate::on_store_error::OnStoreError;
pub use cost::RuleCost;
pub use domain_names::DomainNames;
pub use error::{PolicyError, PolicyErrors, PolicyWarning};
pub use file::suggest::most_similar_word;
pub(crate) use matched::{ChargeOrPeek, HitList, HitOrigin};
pub use matched::{Match, MatchedRules};
pub use mode::{Mode, Percentage, PercentageError, WhenMissing};
pub use normalization::NormalizeStep;
pub use pattern::Condition;
pub use per::{AttributeAlternatives, Per};
pub use redis::RuleRedisOptions;
pub(crate) use rule::SettingsSource;
pub use rule::{NoMatchReason, Override, Rule, RuleSettings, When};
pub use unused_names::UnknownCost;

pub use crate::rule_limit::RuleLimit;

/// The rules to enforce, grouped by domain. [`Policy::from_yaml`] reads a policy from YAML.
#[derive(Clone, Debug)]
pub struct Policy {
    id: u64,
    rules: FullAndLocalRules,
    routes: Routes,
    declared_attributes: DeclaredAttributes,
    by_domain: NameMap<DomainRules>,
    normalizations: Normalizations,
    /// Whether a rule lists other rules in `replaces`, so that matches of replaced rules must be removed.
    has_replaces: bool,
    /// Whether a limit bounds the requests in flight.
    has_concurrent_limits: bool,
    warnings: Arc<[PolicyWarning]>,
}

impl Default for Policy {
    fn default() -> Self {
        let normalizations = Normalizations::default();
        Self::new(Vec::new(), Routes::default(), DeclaredAttributes::default(), normalizations)
    }
}

/// The rules of one domain.
#[derive(Clone, Debug)]
struct DomainRules {
    index: RuleIndex,
    /// Index of the rule with `limits: requested`, which enforces the limits that descriptors contain. No other rule
    /// applies to a descriptor with a limit. `None` if the domain has no such rule, or if the mode of the rule is
    /// `off`.
    requested_limits_rule: Option<u32>,
    names: DomainNames,
    /// `None` if no attribute of the domain is normalized.
    normalization: Option<DomainNormalization>,
}

impl Policy {
    fn new(
        mut rules: Vec<Rule>,
        routes: Routes,
        declared_attributes: DeclaredAttributes,
        normalizations: Normalizations,
    ) -> Self {
        for (index, limit) in (0..).zip(rules.iter_mut().flat_map(Rule::all_limits_mut)) {
            limit.index = index;
        }
        let mut rules_by_domain: NameMap<Vec<(u32, &Rule)>> = NameMap::default();
        for (rule_index, rule) in (0..).zip(&rules) {
            rules_by_domain.entry(rule.domain.clone()).or_default().push((rule_index, rule));
        }
        let mut by_domain = NameMap::default();
        for (domain, rules) in rules_by_domain {
            let declared = declared_attributes.names_for_domain(&domain);
            let all = rules.iter().map(|(_, rule)| *rule);
            let uses_hosts = all.clone().any(Rule::uses_host_attributes);
            let names = DomainNames::new(all, declared, !routes.is_empty());
            let normalization = DomainNormalization::new(&normalizations, &domain, uses_hosts);
            by_domain.insert(domain, DomainRules::new(&rules, names, normalization));
        }
        let has_replaces = rules.iter().any(|rule| !rule.replaces.is_empty());
        let has_concurrent_limits =
            rules.iter().flat_map(Rule::all_limits).any(|limit| limit.limit.is_concurrent());
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            by_domain,
            rules: FullAndLocalRules::new(rules.into()),
            routes,
            declared_attributes,
            normalizations,
            has_replaces,
            has_concurrent_limits,
            warnings: Arc::default(),
        }
    }

    /// Returns a number that identifies the policy within this process. It is at least 1. A copy has the same number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns all rules of the policy, in the order of the file.
    pub fn rules(&self) -> &[Rule] {
        &self.rules.all
    }

    /// Returns the rules that the field `replaces` of a rule of this policy lists. They do not apply to a request to
    /// which the rule applies.
    pub fn rules_replaced_by(&self, rule: &Rule) -> impl Iterator<Item = &Rule> {
        rule.replaces.iter().filter_map(|index| self.rules.all.get(*index as usize))
    }

    /// Returns whether a limit bounds the [requests in flight](crate::Limit::concurrent), so that decisions may have a
    /// [permit](crate::Permit).
    pub fn has_concurrent_limits(&self) -> bool {
        self.has_concurrent_limits
    }

    /// Returns warnings about valid parts of the file that probably have an unintended effect: counters that a client
    /// can evade, and rules that never apply. The warnings are in the order of the file.
    pub fn warnings(&self) -> &[PolicyWarning] {
        &self.warnings
    }

    /// Returns the domains that have rules.
    pub fn domains(&self) -> impl Iterator<Item = &str> {
        self.by_domain.keys().map(|domain| &**domain)
    }

    /// Returns every limit of every rule, including the limits of its overrides. Each limit comes with its rule.
    pub fn limits(&self) -> impl Iterator<Item = (&Rule, &RuleLimit)> {
        self.rules.all.iter().flat_map(|rule| rule.all_limits().map(move |limit| (rule, limit)))
    }

    /// Returns the names of all attributes that the rules use, sorted and without duplicates. Other attributes of a
    /// request have no effect.
    ///
    /// ```
    /// let rule = "{ name: a, per: [header.x-api-key|ip], when: { method: POST }, limits: [1/s] }";
    /// let policy = slidegate::Policy::from_yaml(&format!("rules: [{rule}]"))?;
    /// assert_eq!(policy.attribute_names(), ["header.x-api-key", "ip", "method"].into());
    /// # Ok::<(), slidegate::PolicyErrors>(())
    /// ```
    pub fn attribute_names(&self) -> BTreeSet<&str> {
        self.rules.all.iter().flat_map(|rule| &*rule.attribute_names).map(|name| &**name).collect()
    }

    /// Returns the names of the attributes and costs that the rules of a domain use; `None` if the domain has no rules.
    pub fn domain_names(&self, domain: &str) -> Option<&DomainNames> {
        self.by_domain.get(domain).map(|domain| &domain.names)
    }

    /// Returns a copy of the policy in which every rule has mode `observe`: the rules count requests and never deny
    /// them. Rules with mode `off` stay off.
    #[must_use]
    pub fn observing(&self) -> Self {
        let observing = self.rules.all.iter().map(Rule::observing).collect();
        let declared = self.declared_attributes.clone();
        let (warnings, normalizations) = (self.warnings.clone(), self.normalizations.clone());
        Self { warnings, ..Self::new(observing, self.routes.clone(), declared, normalizations) }
    }

    /// Sets the number of slidegate instances that share the store. While the store is unavailable, each instance
    /// enforces its share of each limit.
    pub(crate) fn with_instance_count(self, instances: NonZeroU32) -> Self {
        Self { rules: self.rules.with_instance_count(instances), ..self }
    }

    /// Returns the route templates, such as `/users/{id}`. The template that matches the `path` of a request becomes
    /// the value of the attribute `route`.
    pub fn routes(&self) -> impl Iterator<Item = &str> {
        self.routes.templates()
    }

    /// Returns the route template that matches a path; `None` if no template matches. A `?` or `#` in `path` and the
    /// text after it are ignored.
    ///
    /// ```
    /// let policy = slidegate::Policy::from_yaml("{ routes: ['/users/{id}'], rules: [] }")?;
    /// assert_eq!(policy.route_of("/users/7?full"), Some("/users/{id}"));
    /// assert_eq!(policy.route_of("/nowhere"), None);
    /// # Ok::<(), slidegate::PolicyErrors>(())
    /// ```
    pub fn route_of(&self, path: &str) -> Option<&str> {
        self.routes.match_path(path)
    }

    /// Returns the value of an attribute as the rules of a domain compare and count it: after its
    /// [normalization](NormalizeStep).
    pub fn normalize_value<'v>(
        &self,
        domain: &str,
        attribute: &str,
        value: &'v str,
    ) -> Cow<'v, str> {
        let domain = self.by_domain.get(domain);
        let normalization = domain.and_then(|domain| domain.normalization.as_ref());
        normalization.map_or(Cow::Borrowed(value), |steps| steps.normalize_value(attribute, value))
    }

    /// Returns the rules that apply to a request, with the keys of their counters. A rule does not apply if another
    /// matching rule lists it in `replaces`.
    pub fn apply<'r>(&'r self, request: &'r Request<'_>) -> MatchedRules<'r> {
        let mut matched_rules = self.match_request(request);
        if self.has_replaces {
            matched_rules.remove_replaced();
        }
        matched_rules
    }

    /// Returns the rules that match the descriptors of a request, including rules that other matching rules replace.
    fn match_request<'r>(&'r self, request: &'r Request<'_>) -> MatchedRules<'r> {
        let mut matched_rules = MatchedRules::new(&self.rules, request.call_options());
        let Some(domain) = self.by_domain.get(request.domain) else { return matched_rules };
        for (descriptor_index, descriptor) in (0..).zip(&request.descriptors) {
            let normalized = domain.normalize(descriptor);
            let attributes = domain.attributes(descriptor, normalized.as_deref(), &self.routes);
            let first_match = matched_rules.len();
            let new_match =
                |rule_index, rule| Match::new(rule_index, rule, descriptor_index, descriptor);
            let mut candidates = CandidateRules::default();
            for candidate in domain.index.find_candidate_rules(&attributes, &mut candidates) {
                let rule = &self.rules.all[candidate.rule_index as usize];
                if rule.check_descriptor(&attributes, candidate.met_condition).is_ok() {
                    matched_rules.push_match(new_match(candidate.rule_index, rule), |rule_match| {
                        rule.fill_in_match(&attributes, rule_match)
                    });
                }
            }
            if let Some((rule_index, rule)) = self.requested_limits_rule(domain, descriptor) {
                let mut other_matches = matched_rules.matches.drain(first_match..);
                let same_counter =
                    other_matches.find(|other| other.has_exclusive_counter(&attributes));
                drop(other_matches);
                matched_rules.push_match(new_match(rule_index, rule), |rule_match| {
                    rule.fill_in_requested_limit_match(&attributes, same_counter, rule_match)
                });
            }
        }
        matched_rules
    }

    /// Returns the rule with `limits: requested` of a domain, with its index, if the descriptor contains a limit. In
    /// this case, no other rule applies to the descriptor.
    fn requested_limits_rule(
        &self,
        domain: &DomainRules,
        descriptor: &Descriptor<'_>,
    ) -> Option<(u32, &Rule)> {
        let rule_index = domain.requested_limits_rule.filter(|_| descriptor.limit.is_some())?;
        Some((rule_index, &self.rules.all[rule_index as usize]))
    }

    /// Returns one result for each pair of a descriptor and a rule of the request's domain: the match if the rule
    /// applies to the descriptor, otherwise the reason why the rule does not apply.
    pub fn explain<'r>(
        &'r self,
        request: &'r Request<'_>,
    ) -> impl Iterator<Item = (&'r Rule, Result<Match<'r>, NoMatchReason<'r>>)> {
        let matched_rules = self.match_request(request);
        // Maps instead of lists, because a search in a list for each pair of descriptor and rule would take quadratic
        // time.
        let mut replaced_by: HashMap<u32, &'r str> = HashMap::new();
        for rule in matched_rules.matches().map(Match::rule) {
            for replaced in &*rule.replaces {
                replaced_by.entry(*replaced).or_insert(rule.name());
            }
        }
        let matches = matched_rules.matches.into_iter();
        let mut matches: HashMap<(u32, u32), Match<'r>> = matches
            .map(|rule_match| ((rule_match.origin.descriptor, rule_match.origin.rule), rule_match))
            .collect();
        (0..).zip(&request.descriptors).flat_map(move |(descriptor_index, descriptor)| {
            let Some(domain) = self.by_domain.get(request.domain) else { return Vec::new() };
            let normalized = domain.normalize(descriptor);
            let attributes = domain.attributes(descriptor, normalized.as_deref(), &self.routes);
            let requested_limits_rule = self.requested_limits_rule(domain, descriptor);
            let rules =
                (0..).zip(&*self.rules.all).filter(|(_, rule)| *rule.domain == *request.domain);
            let explained = rules.map(|(rule_index, rule)| {
                let own_match = matches.remove(&(descriptor_index, rule_index));
                let details = match (own_match, replaced_by.get(&rule_index).copied()) {
                    (Some(_), Some(other)) => Err(NoMatchReason::Replaced(other)),
                    (Some(rule_match), None) => Ok(rule_match),
                    (None, _) => {
                        let mut own = Match::new(rule_index, rule, descriptor_index, descriptor);
                        let checked = rule.check_descriptor(&attributes, None);
                        let completed =
                            checked.and_then(|()| rule.fill_in_match(&attributes, &mut own));
                        match (completed, requested_limits_rule) {
                            (Ok(()), Some((_, other))) => Err(NoMatchReason::Replaced(&other.name)),
                            (completed, _) => completed.map(|()| own),
                        }
                    }
                };
                (rule, details)
            });
            explained.collect::<Vec<_>>()
        })
    }

    /// Returns the overrides of a rule whose `when` a descriptor does not meet, up to the first override that applies.
    /// Each entry has the index of the override, the name of an attribute that does not meet its condition, and the
    /// value of the attribute; `None` if the attribute is absent.
    pub fn unused_overrides<'r>(
        &self,
        rule: &'r Rule,
        descriptor: &Descriptor<'_>,
    ) -> Vec<(usize, &'r str, Option<String>)> {
        let Some(domain) = self.by_domain.get(rule.domain()) else { return Vec::new() };
        let normalized = domain.normalize(descriptor);
        let attributes = domain.attributes(descriptor, normalized.as_deref(), &self.routes);
        rule.unused_overrides(&attributes)
    }
}

impl DomainRules {
    /// Creates the rules of one domain. Each rule in `rules` comes with its index in the policy.
    fn new(
        rules: &[(u32, &Rule)],
        names: DomainNames,
        normalization: Option<DomainNormalization>,
    ) -> Self {
        let (requested, others): (Vec<_>, Vec<_>) =
            rules.iter().copied().partition(|(_, rule)| rule.is_for_requested_limits);
        let requested = requested.iter().find(|(_, rule)| rule.settings.mode != Mode::Off);
        Self {
            index: RuleIndex::new(&others),
            requested_limits_rule: requested.map(|(rule_index, _)| *rule_index),
            names,
            normalization,
        }
    }

    /// Returns the attributes of a descriptor with normalized values; `None` if all values are normalized already.
    fn normalize<'r>(&self, descriptor: &'r Descriptor<'_>) -> Option<AttributePairs<'r>> {
        self.normalization.as_ref()?.normalize(descriptor)
    }

    /// Returns the attributes of a descriptor in the form in which rules match them. `normalized` contains their
    /// normalized values; `None` if all values are normalized already.
    fn attributes<'a: 'r, 'r, 'd>(
        &'d self,
        descriptor: &'d Descriptor<'a>,
        normalized: Option<&'d [(&'r str, &'r str)]>,
        routes: &'r Routes,
    ) -> DescriptorAttributes<'r, 'd> {
        DescriptorAttributes::new(descriptor, normalized, self.normalization.as_ref(), routes)
    }
}
