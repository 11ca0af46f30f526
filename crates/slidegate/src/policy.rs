//! Rules, and how a request becomes hits by them.

pub mod file;
mod index;
mod mode;
mod pattern;
mod per;
mod redis;
mod route;
mod rule;

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::hit::{Admission, Hit};
use crate::key::{Key, Value};
use crate::request::{Descriptor, Request};

use index::Index;
use per::Identity;
use route::Routes;
use rule::{Chosen, Fit};

pub use mode::{Mode, OnStoreError, Share, ShareError, WhenMissing};
pub use pattern::Condition;
pub use per::{Alternatives, Per};
pub use redis::RuleRedis;
pub use rule::{Misfit, Override, Rule, RuleLimit, Terms, When};

/// What is to be enforced: rules, by domain. Read it from YAML with [`Policy::from_yaml`].
#[derive(Clone, Debug, Default)]
pub struct Policy {
    rules: Arc<[Rule]>,
    routes: Routes,
    by_domain: HashMap<Box<str>, Index>,
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
        let by_domain = by_domain.iter().map(|(&domain, of)| (domain.into(), Index::new(of)));
        Self { by_domain: by_domain.collect(), rules: rules.into(), routes }
    }

    /// The rules, in the order of the file.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Every limit of every rule, also of its overrides, beside its rule.
    pub fn limits(&self) -> impl Iterator<Item = (&Rule, &RuleLimit)> {
        self.rules.iter().flat_map(|rule| rule.all_limits().map(move |limit| (rule, limit)))
    }

    /// The same policy, which only watches: it decides and counts, and never denies.
    #[must_use]
    pub fn observing(&self) -> Self {
        Self::new(self.rules.iter().map(Rule::observing).collect(), self.routes.clone())
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
    pub fn apply<'r>(&'r self, request: &'r Request<'_>) -> Applied<'r> {
        let mut matches = SmallVec::new();
        if let Some(index) = self.by_domain.get(request.domain) {
            for descriptor in &request.descriptors {
                let attributes = Attributes::new(descriptor, &self.routes);
                for nth in index.candidates(&attributes) {
                    let rule = &self.rules[nth as usize];
                    if let Ok(fit) = rule.fit(&attributes) {
                        let order = matches.len() as u32;
                        matches.push(Match { order, nth, rule, fit, cost: descriptor.cost });
                    }
                }
            }
        }
        Applied(matches)
    }

    /// How each rule of the request's domain applies, or why it does not; for each descriptor.
    pub fn explain<'r>(
        &'r self,
        request: &'r Request<'_>,
    ) -> impl Iterator<Item = (&'r Rule, Result<Match<'r>, Misfit<'r>>)> {
        request.descriptors.iter().flat_map(|descriptor| {
            let attributes = Attributes::new(descriptor, &self.routes);
            let rules = (0..).zip(&*self.rules).filter(|(_, rule)| *rule.domain == *request.domain);
            rules.map(move |(nth, rule)| {
                let fit = rule.fit(&attributes);
                (rule, fit.map(|fit| Match { order: 0, nth, rule, fit, cost: descriptor.cost }))
            })
        })
    }
}

/// What is known of a descriptor: what it says, and its route.
pub(crate) struct Attributes<'r, 'a> {
    descriptor: &'r Descriptor<'a>,
    /// The route that its path is of, unless it says its route itself.
    route: Option<&'r str>,
}

impl<'r, 'a> Attributes<'r, 'a> {
    fn new(descriptor: &'r Descriptor<'a>, routes: &'r Routes) -> Self {
        let unknown = !routes.is_empty() && descriptor.get("route").is_none();
        let path = descriptor.get("path").filter(|_| unknown);
        Self { descriptor, route: path.and_then(|path| routes.of_path(path)) }
    }

    fn get(&self, name: &str) -> Option<&'r str> {
        self.descriptor.get(name).or_else(|| self.route.filter(|_| name == "route"))
    }

    fn iter(&self) -> impl Iterator<Item = (&'r str, &'r str)> {
        let own =
            self.descriptor.iter().map(|(name, value)| -> (&'r str, &'r str) { (name, value) });
        own.chain(self.route.map(|route| ("route", route)))
    }
}

/// The rules that apply to a request.
#[derive(Clone, Debug)]
pub struct Applied<'r>(SmallVec<[Match<'r>; 2]>);

/// A rule that applies to a request, and how.
#[derive(Clone, Debug)]
pub struct Match<'r> {
    /// Its place among those that apply.
    order: u32,
    nth: u32,
    rule: &'r Rule,
    fit: Fit<'r>,
    cost: u64,
}

/// Where a hit comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    /// The place of its match.
    pub(crate) matched: u32,
    /// The rule's place in the policy.
    pub(crate) rule: u32,
    pub(crate) chosen: Chosen,
    /// The limit's place in the terms.
    pub(crate) limit: u16,
    pub(crate) admission: Admission,
}

impl<'r> Applied<'r> {
    /// Each rule that applies, in the order of the policy.
    pub fn matches(&self) -> impl Iterator<Item = &Match<'r>> {
        self.0.iter()
    }

    /// One hit for each limit of each rule.
    pub fn hits(&self) -> SmallVec<[Hit<'_>; 3]> {
        self.0.iter().flat_map(Match::hits).collect()
    }

    /// Where each hit comes from.
    pub(crate) fn origins(&self) -> SmallVec<[Origin; 3]> {
        let origins = self.0.iter().flat_map(|one| {
            (0..).zip(one.fit.limits).map(|(nth, limit)| Origin {
                matched: one.order,
                rule: one.nth,
                chosen: one.fit.chosen,
                limit: nth,
                admission: one.admission(limit),
            })
        });
        origins.collect()
    }

    /// What to do while the store does not answer: what the strictest of the rules wants. A rule that
    /// only observes has no say.
    pub(crate) fn on_store_error(&self) -> OnStoreError {
        let strict = self.0.iter().filter(|one| one.is_enforced());
        strict.map(|one| one.rule.on_store_error).max().unwrap_or_default()
    }

    /// Those that can do without the store: their rule wants its limits enforced locally, or nothing fits
    /// whatever the counts are. They apply as they stand in `own`, the policy's rules as this instance
    /// enforces them alone.
    pub(crate) fn without_store(&self, own: &'r [Rule]) -> Self {
        let can_do_without = |one: &Match<'_>| {
            one.rule.on_store_error == OnStoreError::Local
                || one.fit.limits.iter().any(|limit| limit.limit.capacity() == 0)
        };
        let matches = self.0.iter().filter(|one| can_do_without(one)).cloned();
        Self(matches.map(|one| one.under(own)).collect())
    }
}

impl<'r> Match<'r> {
    /// The same under a copy of the policy's rules that has limits of its own.
    fn under(mut self, rules: &'r [Rule]) -> Self {
        self.rule = &rules[self.nth as usize];
        self.fit.limits = self.rule.limits(self.fit.chosen);
        self
    }

    /// The rule.
    pub fn rule(&self) -> &'r Rule {
        self.rule
    }

    /// The rule's place in [`Policy::rules`].
    pub fn place(&self) -> usize {
        self.nth as usize
    }

    /// The override that holds, and its place in the rule; none if the rule's own terms do.
    pub fn chosen_override(&self) -> Option<(usize, &'r Override)> {
        match self.fit.chosen {
            Chosen::Override(nth) => {
                let nth = usize::from(nth);
                Some((nth, &self.rule.overrides[nth]))
            }
            Chosen::Base | Chosen::Missing => None,
        }
    }

    /// Whether it denies because an attribute of `per` is absent.
    pub fn lacks_attribute(&self) -> bool {
        self.fit.chosen == Chosen::Missing
    }

    /// Whether a limit that does not fit denies the request.
    pub fn is_enforced(&self) -> bool {
        !self.fit.limits.is_empty() && self.fit.admission == Admission::Enforce
    }

    /// The limits that hold; none if all pass.
    pub fn limits(&self) -> &'r [RuleLimit] {
        self.fit.limits
    }

    /// Whose counts it asks for: the names and values of `per`, in order.
    pub fn identity(&self) -> impl Iterator<Item = (&'r str, Value<'r>)> {
        let Identity { values, combination, .. } = &self.fit.identity;
        let names = self.rule.identities[usize::from(*combination)].names();
        names.zip(values.iter().copied())
    }

    /// One hit for each limit.
    pub fn hits(&self) -> impl Iterator<Item = Hit<'_>> {
        let Fit { limits, identity, .. } = &self.fit;
        limits.iter().map(|limit| Hit {
            key: Key::of_part(
                &limit.scopes[usize::from(identity.combination)],
                &identity.values,
                identity.part,
            ),
            limit: &limit.limit,
            cost: self.cost,
            admission: self.admission(limit),
        })
    }

    fn admission(&self, limit: &RuleLimit) -> Admission {
        // What has been spent is charged; to ask (cost 0) spends nothing. A max of 0 is a denial, whatever
        // has been spent.
        match self.rule.overdraft && self.cost > 0 && limit.limit.capacity() > 0 {
            true => Admission::Always,
            false => self.fit.admission,
        }
    }
}
