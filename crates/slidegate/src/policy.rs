//! Rules, and how a request becomes hits by them.

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
use index::Index;
use route::Routes;

pub use cost::RuleCost;
pub(crate) use cost::{ChargeSettings, Costs};
pub use matched::{Match, MatchedRules};
pub(crate) use matched::{Origin, Origins};
pub use mode::{Mode, OnStoreError, Share, ShareError, WhenMissing};
pub use pattern::Condition;
pub use per::{Alternatives, Per};
pub use redis::RuleRedis;
pub(crate) use rule::Chosen;
pub use rule::{NoMatchReason, Override, Rule, RuleLimit, RuleSettings, When};

/// What is to be enforced: rules, by domain. Read it from YAML with [`Policy::from_yaml`].
#[derive(Clone, Debug, Default)]
pub struct Policy {
    rules: Arc<[Rule]>,
    routes: Routes,
    by_domain: HashMap<Box<str>, Domain>,
    /// Whether any rule compares or counts hosts.
    has_hosts: bool,
    warnings: Arc<[PolicyWarning]>,
}

/// The rules of a domain.
#[derive(Clone, Debug)]
struct Domain {
    index: Index,
    /// The one for limits that descriptors bring along.
    requested: Option<u32>,
}

impl Policy {
    fn new(mut rules: Vec<Rule>, routes: Routes) -> Self {
        for (place, limit) in (0..).zip(rules.iter_mut().flat_map(Rule::all_limits_mut)) {
            limit.place = place;
        }
        let mut by_domain: HashMap<&str, Vec<(u32, &Rule)>> = HashMap::new();
        for (nth, rule) in (0..).zip(&rules) {
            by_domain.entry(&rule.domain).or_default().push((nth, rule));
        }
        let by_domain = by_domain.iter().map(|(&domain, of)| (domain.into(), Domain::new(of)));
        let by_domain = by_domain.collect();
        let has_hosts = rules.iter().any(Rule::has_hosts);
        Self { by_domain, rules: rules.into(), routes, has_hosts, ..Self::default() }
    }

    /// The rules, in the order of the file.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The parts of the file that are valid and probably do not do what was meant, in the order of the file:
    /// counts that a client can evade, and rules that never apply.
    pub fn warnings(&self) -> &[PolicyWarning] {
        &self.warnings
    }

    /// The domains that have rules.
    pub fn domains(&self) -> impl Iterator<Item = &str> {
        self.by_domain.keys().map(|domain| &**domain)
    }

    /// Every limit of every rule, also of its overrides, beside its rule.
    pub fn limits(&self) -> impl Iterator<Item = (&Rule, &RuleLimit)> {
        self.rules.iter().flat_map(|rule| rule.all_limits().map(move |limit| (rule, limit)))
    }

    /// Returns the names of all attributes that the rules mention, each once, in alphabetical order. Other attributes
    /// of a request make no difference.
    ///
    /// ```
    /// let rule = "{ name: a, per: [header.x-api-key|ip], when: { method: POST }, limits: [1/s] }";
    /// let policy = slidegate::Policy::from_yaml(&format!("rules: [{rule}]"))?;
    /// assert_eq!(policy.attribute_names(), ["header.x-api-key", "ip", "method"].into());
    /// # Ok::<(), slidegate::PolicyErrors>(())
    /// ```
    pub fn attribute_names(&self) -> BTreeSet<&str> {
        self.rules.iter().flat_map(|rule| &*rule.named).map(|name| &**name).collect()
    }

    /// The same policy, which only watches: it decides and counts, and never denies.
    #[must_use]
    pub fn observing(&self) -> Self {
        let observing = self.rules.iter().map(Rule::observing).collect();
        Self { warnings: self.warnings.clone(), ..Self::new(observing, self.routes.clone()) }
    }

    /// The rules, to be kept beside the decisions that come from them.
    pub(crate) fn shared_rules(&self) -> &Arc<[Rule]> {
        &self.rules
    }

    /// The rules as each of so many instances enforces them on its own.
    pub(crate) fn rules_shared_by(&self, instances: NonZeroU32) -> Arc<[Rule]> {
        match instances {
            NonZeroU32::MIN => self.rules.clone(),
            _ => self.rules.iter().map(|rule| rule.share_of(instances)).collect(),
        }
    }

    /// The route templates: a request's `path` gives it the attribute `route`.
    pub fn routes(&self) -> impl Iterator<Item = &str> {
        self.routes.templates()
    }

    /// The route that a path is of; what stands behind `?` or `#` is no part of the path.
    ///
    /// ```
    /// let policy = slidegate::Policy::from_yaml("{ routes: ['/users/{id}'], rules: [] }")?;
    /// assert_eq!(policy.route_of("/users/7?full"), Some("/users/{id}"));
    /// assert_eq!(policy.route_of("/nowhere"), None);
    /// # Ok::<(), slidegate::PolicyErrors>(())
    /// ```
    pub fn route_of(&self, path: &str) -> Option<&str> {
        self.routes.of_path(path)
    }

    /// The rules that apply to a request, and whose counts they ask for.
    pub fn apply<'r>(&'r self, request: &'r Request<'_>) -> MatchedRules<'r> {
        let mut applied = self.matches(request);
        if applied.matches().any(|one| !one.rule().replaces.is_empty()) {
            applied.leave_out_replaced();
        }
        applied
    }

    /// The rules that apply to any of the descriptors, each looked at alone.
    #[inline]
    fn matches<'r>(&'r self, request: &'r Request<'_>) -> MatchedRules<'r> {
        let mut applied = MatchedRules::new();
        let Some(domain) = self.by_domain.get(request.domain) else { return applied };
        for (place, descriptor) in (0..).zip(&request.descriptors) {
            let canonical = self.canonical(descriptor);
            let attributes = Attributes::new(descriptor, canonical.as_deref(), &self.routes);
            let before = applied.len();
            for nth in domain.index.candidates(&attributes) {
                let rule = &self.rules[nth as usize];
                if let Ok(fit) = rule.fit(&attributes) {
                    applied.push(nth, rule, fit, place, descriptor);
                }
            }
            if let (Some(nth), true) = (domain.requested, applied.len() == before) {
                let rule = &self.rules[nth as usize];
                if let Ok(fit) = rule.fit_requested(&attributes) {
                    applied.push(nth, rule, fit, place, descriptor);
                }
            }
        }
        applied
    }

    /// The attributes of a descriptor whose hosts have another canonical form, if a rule looks at hosts.
    #[inline]
    fn canonical<'r>(&self, descriptor: &'r Descriptor<'_>) -> Option<AttributePairs<'r>> {
        if self.has_hosts { descriptor.canonical() } else { None }
    }

    /// How each rule of the request's domain applies, or why it does not; for each descriptor.
    pub fn explain<'r>(
        &'r self,
        request: &'r Request<'_>,
    ) -> impl Iterator<Item = (&'r Rule, Result<Match<'r>, NoMatchReason<'r>>)> {
        let applied = self.matches(request);
        (0..).zip(&request.descriptors).flat_map(move |(place, descriptor)| {
            let canonical = self.canonical(descriptor);
            let attributes = Attributes::new(descriptor, canonical.as_deref(), &self.routes);
            let rules = (0..).zip(&*self.rules).filter(|(_, rule)| *rule.domain == *request.domain);
            let explained = rules.map(|(nth, rule)| {
                let own = |one: &&Match<'_>| one.nth() == nth && one.descriptor() == place as usize;
                let replaced = applied.matches().find(|one| one.rule().replaces.contains(&nth));
                let fit = match (applied.matches().find(own), replaced) {
                    (Some(_), Some(other)) => Err(NoMatchReason::Replaced(other.rule().name())),
                    (Some(one), None) => Ok(one.clone()),
                    (None, _) => {
                        let fit = rule.fit(&attributes);
                        fit.map(|fit| Match::new(nth, rule, fit, place, descriptor))
                    }
                };
                (rule, fit)
            });
            explained.collect::<Vec<_>>()
        })
    }
}

impl Domain {
    /// Of rules with their places in the policy.
    fn new(rules: &[(u32, &Rule)]) -> Self {
        let (requested, others): (Vec<_>, Vec<_>) =
            rules.iter().copied().partition(|(_, rule)| rule.requested);
        Self { index: Index::new(&others), requested: requested.first().map(|(nth, _)| *nth) }
    }
}

/// What is known of a descriptor: what it says, and its route.
pub(crate) struct Attributes<'r, 'd> {
    /// The given attributes, without the route that the path has.
    own: &'d [(&'r str, &'r str)],
    /// The route that its path is of, unless it says its route itself.
    route: Option<&'r str>,
    /// Whether it is only for rules that name all of its attributes.
    exact: bool,
    /// The limit that it brings along.
    limit: Option<Quota>,
    /// The bytes of values that are not UTF-8.
    bytes: &'d [(&'r str, &'r [u8])],
    /// Shortened values by attribute, so that many rules that count by one long value digest it once.
    shortened: RefCell<Vec<(&'r str, ShortenedValue<'r>)>>,
}

impl<'r, 'd> Attributes<'r, 'd> {
    /// Creates the attributes of a descriptor; `canonical` replaces its own if given.
    fn new<'a: 'r>(
        descriptor: &'d Descriptor<'a>,
        canonical: Option<&'d [(&'r str, &'r str)]>,
        routes: &'r Routes,
    ) -> Self {
        let own = canonical.unwrap_or(descriptor.pairs());
        let Descriptor { is_exact: exact, limit, .. } = *descriptor;
        let (bytes, shortened) = (descriptor.bytes(), RefCell::default());
        let mut attributes = Self { own, route: None, exact, limit, bytes, shortened };
        if !routes.is_empty() && attributes.get("route").is_none() {
            attributes.route = attributes.get("path").and_then(|path| routes.of_path(path));
        }
        attributes
    }

    fn get(&self, name: &str) -> Option<&'r str> {
        let own = self.own.iter().find(|(own, _)| *own == name).map(|(_, value)| *value);
        own.or_else(|| self.route.filter(|_| name == "route"))
    }

    /// Returns an attribute as a part of a key: shortened if it is too long or not UTF-8.
    #[inline]
    fn shorten(&self, name: &'r str, text: &'r str) -> Option<Value<'r>> {
        if self.bytes.is_empty() && text.len() <= MAX_VALUE_BYTES {
            return None;
        }
        self.shorten_rare(name, text)
    }

    #[cold]
    fn shorten_rare(&self, name: &'r str, text: &'r str) -> Option<Value<'r>> {
        // The bytes of a host are not canonical.
        let own = |(own, _): &&(&str, _)| *own == name && !is_host_attribute(name);
        let bytes = self.bytes.iter().find(own).map(|(_, bytes)| *bytes);
        if bytes.is_none() && text.len() <= MAX_VALUE_BYTES {
            return None;
        }
        let mut known = self.shortened.borrow_mut();
        let found = known.iter().find(|(own, _)| *own == name).map(|(_, value)| *value);
        Some(Value::Shortened(found.unwrap_or_else(|| {
            let value = ShortenedValue::new(text, bytes.unwrap_or(text.as_bytes()));
            known.push((name, value));
            value
        })))
    }

    fn iter(&self) -> impl Iterator<Item = (&'r str, &'r str)> {
        self.own.iter().copied().chain(self.route.map(|route| ("route", route)))
    }
}
