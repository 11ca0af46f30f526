//! Policies: the rules of each domain, and the search for the rules that apply to a request.
//!
//! [`Policy::apply`] compares each descriptor of a request with the rules of the request's domain, and returns the
//! rules that apply as [`MatchedRules`]. From these, [`MatchedRules::hits`] creates the hits: the charges that the
//! store makes. A policy does not depend on a store. If a store supports only some limits, the caller reads the policy
//! with [`Policy::from_yaml_for`], which rejects the other limits.

mod cost;
pub mod file;
mod index;
mod matched;
mod mode;
mod pattern;
mod per;
mod redis;
mod route;
mod rule;

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::host::is_host_attribute;
use crate::key::{MAX_VALUE_BYTES, ShortenedValue, Value};
use crate::quota::Quota;
use crate::request::{AttributePairs, Descriptor, Request};

use file::PolicyWarning;
use index::RuleIndex;
use route::Routes;

pub use cost::RuleCost;
pub(crate) use cost::{ChargeSettings, DescriptorCosts};
pub(crate) use matched::{HitOrigin, HitOrigins};
pub use matched::{Match, MatchedRules};
pub use mode::{Mode, OnStoreError, Percentage, PercentageError, WhenMissing};
pub use pattern::Condition;
pub use per::{Alternatives, Per};
pub use redis::RuleRedisOptions;
pub(crate) use rule::SettingsSource;
pub use rule::{NoMatchReason, Override, Rule, RuleLimit, RuleSettings, When};

/// The rules to enforce, grouped by domain. [`Policy::from_yaml`] reads a policy from YAML.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    rules: Arc<[Rule]>,
    routes: Routes,
    by_domain: HashMap<Box<str>, DomainRules>,
    /// Whether any rule of the policy uses an attribute that contains a host name, in a condition or in `per`.
    uses_host_attributes: bool,
    warnings: Arc<[PolicyWarning]>,
}

/// The rules of one domain.
#[derive(Clone, Debug)]
struct DomainRules {
    index: RuleIndex,
    /// Index of the rule with `limits: requested`, which enforces limits that descriptors contain. `None` if the domain
    /// has no such rule.
    requested_rule: Option<u32>,
}

impl Policy {
    fn new(mut rules: Vec<Rule>, routes: Routes) -> Self {
        for (index, limit) in (0..).zip(rules.iter_mut().flat_map(Rule::all_limits_mut)) {
            limit.index = index;
        }
        let mut by_domain: HashMap<&str, Vec<(u32, &Rule)>> = HashMap::new();
        for (rule_index, rule) in (0..).zip(&rules) {
            by_domain.entry(&rule.domain).or_default().push((rule_index, rule));
        }
        let by_domain =
            by_domain.iter().map(|(&domain, rules)| (domain.into(), DomainRules::new(rules)));
        let by_domain = by_domain.collect();
        let uses_host_attributes = rules.iter().any(Rule::uses_host_attributes);
        Self { by_domain, rules: rules.into(), routes, uses_host_attributes, ..Self::default() }
    }

    /// Returns all rules of the policy, in the order of the file.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
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
        self.rules.iter().flat_map(|rule| rule.all_limits().map(move |limit| (rule, limit)))
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
        self.rules.iter().flat_map(|rule| &*rule.attribute_names).map(|name| &**name).collect()
    }

    /// Returns a copy of the policy in which every rule has mode `observe`: the rules count requests and never deny
    /// them. Rules with mode `off` stay off.
    #[must_use]
    pub fn observing(&self) -> Self {
        let observing = self.rules.iter().map(Rule::observing).collect();
        Self { warnings: self.warnings.clone(), ..Self::new(observing, self.routes.clone()) }
    }

    /// Returns the shared pointer to the rules. Each ruling keeps a clone of this pointer, because it refers to the
    /// rules.
    pub(crate) fn shared_rules(&self) -> &Arc<[Rule]> {
        &self.rules
    }

    /// Returns the rules with each limit divided by the number of slidegate instances. An instance enforces these
    /// limits in its own memory while the store is unavailable.
    pub(crate) fn rules_with_divided_limits(&self, instances: NonZeroU32) -> Arc<[Rule]> {
        match instances {
            NonZeroU32::MIN => self.rules.clone(),
            _ => self.rules.iter().map(|rule| rule.with_limits_divided(instances)).collect(),
        }
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

    /// Returns the rules that apply to a request, with the keys of their counters. A rule does not apply if another
    /// matching rule lists it in `replaces`.
    pub fn apply<'r>(&'r self, request: &'r Request<'_>) -> MatchedRules<'r> {
        let mut matched_rules = self.match_descriptors(request);
        if matched_rules.matches().any(|rule_match| !rule_match.rule().replaces.is_empty()) {
            matched_rules.remove_replaced();
        }
        matched_rules
    }

    /// Returns the rules that match the descriptors of a request, including rules that other matching rules replace.
    #[inline]
    fn match_descriptors<'r>(&'r self, request: &'r Request<'_>) -> MatchedRules<'r> {
        let mut matched_rules = MatchedRules::new();
        let Some(domain) = self.by_domain.get(request.domain) else { return matched_rules };
        for (descriptor_index, descriptor) in (0..).zip(&request.descriptors) {
            let canonical = self.attribute_pairs_with_canonical_hosts(descriptor);
            let attributes =
                DescriptorAttributes::new(descriptor, canonical.as_deref(), &self.routes);
            let count_before = matched_rules.len();
            for rule_index in domain.index.candidate_rules(&attributes) {
                let rule = &self.rules[rule_index as usize];
                if let Ok(details) = rule.match_descriptor(&attributes) {
                    matched_rules.push(rule_index, rule, details, descriptor_index, descriptor);
                }
            }
            if let (Some(rule_index), true) =
                (domain.requested_rule, matched_rules.len() == count_before)
            {
                let rule = &self.rules[rule_index as usize];
                if let Ok(details) = rule.match_requested_limit(&attributes) {
                    matched_rules.push(rule_index, rule, details, descriptor_index, descriptor);
                }
            }
        }
        matched_rules
    }

    /// Returns the attributes of a descriptor with all host names in canonical form. Returns `None` if all host names
    /// are canonical already, or if no rule uses host names.
    #[inline]
    fn attribute_pairs_with_canonical_hosts<'r>(
        &self,
        descriptor: &'r Descriptor<'_>,
    ) -> Option<AttributePairs<'r>> {
        if self.uses_host_attributes { descriptor.attributes_with_canonical_hosts() } else { None }
    }

    /// Returns one result for each pair of a descriptor and a rule of the request's domain: the match if the rule
    /// applies to the descriptor, otherwise the reason why the rule does not apply.
    pub fn explain<'r>(
        &'r self,
        request: &'r Request<'_>,
    ) -> impl Iterator<Item = (&'r Rule, Result<Match<'r>, NoMatchReason<'r>>)> {
        let matched_rules = self.match_descriptors(request);
        (0..).zip(&request.descriptors).flat_map(move |(descriptor_index, descriptor)| {
            let canonical = self.attribute_pairs_with_canonical_hosts(descriptor);
            let attributes =
                DescriptorAttributes::new(descriptor, canonical.as_deref(), &self.routes);
            let rules = (0..).zip(&*self.rules).filter(|(_, rule)| *rule.domain == *request.domain);
            let explained = rules.map(|(rule_index, rule)| {
                let is_own = |rule_match: &&Match<'_>| {
                    rule_match.rule_index_u32() == rule_index
                        && rule_match.descriptor_index() == descriptor_index as usize
                };
                let replaced = matched_rules
                    .matches()
                    .find(|rule_match| rule_match.rule().replaces.contains(&rule_index));
                let details = match (matched_rules.matches().find(is_own), replaced) {
                    (Some(_), Some(other)) => Err(NoMatchReason::Replaced(other.rule().name())),
                    (Some(rule_match), None) => Ok(rule_match.clone()),
                    (None, _) => {
                        let details = rule.match_descriptor(&attributes);
                        details.map(|details| {
                            Match::new(rule_index, rule, details, descriptor_index, descriptor)
                        })
                    }
                };
                (rule, details)
            });
            explained.collect::<Vec<_>>()
        })
    }
}

impl DomainRules {
    /// Creates the rules of one domain. Each rule in `rules` comes with its index in the policy.
    fn new(rules: &[(u32, &Rule)]) -> Self {
        let (requested, others): (Vec<_>, Vec<_>) =
            rules.iter().copied().partition(|(_, rule)| rule.is_for_requested_limits);
        Self {
            index: RuleIndex::new(&others),
            requested_rule: requested.first().map(|(rule_index, _)| *rule_index),
        }
    }
}

/// The names and values of the attributes of a descriptor, prepared for matching. If the descriptor has no attribute
/// `route`, the route is derived from its attribute `path`.
pub(crate) struct DescriptorAttributes<'r, 'd> {
    /// Names and values of the attributes in the descriptor. A route that is derived from the path is not included.
    pairs: &'d [(&'r str, &'r str)],
    /// The route template that matches the attribute `path`. `None` if no template matches, or if the descriptor
    /// contains an attribute `route`.
    route: Option<&'r str>,
    /// Whether the descriptor is exact. An exact descriptor matches only rules that name all of its attributes.
    is_exact: bool,
    /// The limit that the descriptor contains; it replaces the limits of the rules.
    limit: Option<Quota>,
    /// The original bytes of attribute values that are not UTF-8, by attribute name.
    bytes: &'d [(&'r str, &'r [u8])],
    /// Cache of shortened attribute values, by attribute name. A long value is hashed only once, even if several rules
    /// count by it.
    shortened: RefCell<Vec<(&'r str, ShortenedValue<'r>)>>,
}

impl<'r, 'd> DescriptorAttributes<'r, 'd> {
    /// Creates the attributes of a descriptor. `canonical` contains their names and values with host names in canonical
    /// form. If it is `None`, the names and values in the descriptor are used unchanged.
    fn new<'a: 'r>(
        descriptor: &'d Descriptor<'a>,
        canonical: Option<&'d [(&'r str, &'r str)]>,
        routes: &'r Routes,
    ) -> Self {
        let pairs = canonical.unwrap_or(descriptor.attribute_pairs());
        let Descriptor { is_exact, limit, .. } = *descriptor;
        let (bytes, shortened) = (descriptor.non_utf8_attributes(), RefCell::default());
        let mut attributes = Self { pairs, route: None, is_exact, limit, bytes, shortened };
        if !routes.is_empty() && attributes.get("route").is_none() {
            attributes.route = attributes.get("path").and_then(|path| routes.match_path(path));
        }
        attributes
    }

    fn get(&self, name: &str) -> Option<&'r str> {
        let pair = self.pairs.iter().find(|(own, _)| *own == name).map(|(_, value)| *value);
        pair.or_else(|| self.route.filter(|_| name == "route"))
    }

    /// Returns the shortened form of an attribute value, for use in a key. Returns `None` if the value is UTF-8 and
    /// short enough to be used unchanged.
    #[inline]
    fn shorten_value(&self, name: &'r str, text: &'r str) -> Option<Value<'r>> {
        if self.bytes.is_empty() && text.len() <= MAX_VALUE_BYTES {
            return None;
        }
        self.find_or_shorten_value(name, text)
    }

    #[cold]
    fn find_or_shorten_value(&self, name: &'r str, text: &'r str) -> Option<Value<'r>> {
        // The bytes of a host are not in canonical form.
        let has_name = |(own, _): &&(&str, _)| *own == name && !is_host_attribute(name);
        let bytes = self.bytes.iter().find(has_name).map(|(_, bytes)| *bytes);
        if bytes.is_none() && text.len() <= MAX_VALUE_BYTES {
            return None;
        }
        let mut shortened = self.shortened.borrow_mut();
        let found = shortened.iter().find(|(own, _)| *own == name).map(|(_, value)| *value);
        Some(Value::Shortened(found.unwrap_or_else(|| {
            let value = ShortenedValue::new(text, bytes.unwrap_or(text.as_bytes()));
            shortened.push((name, value));
            value
        })))
    }

    fn iter(&self) -> impl Iterator<Item = (&'r str, &'r str)> {
        self.pairs.iter().copied().chain(self.route.map(|route| ("route", route)))
    }
}
