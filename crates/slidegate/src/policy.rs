//! Rules, and how a request becomes hits by them.

pub mod file;
mod pattern;

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::hit::{Admission, Hit};
use crate::key::{Key, Scope};
use crate::limit::Limit;
use crate::request::{Descriptor, Request};

use pattern::Pattern;

/// What is to be enforced: rules, by domain. Read it from YAML with [`Policy::from_yaml`].
#[derive(Clone, Debug, Default)]
pub struct Policy {
    rules: Vec<Rule>,
    /// The rules of each domain, in their order.
    by_domain: HashMap<Box<str>, Vec<u32>>,
}

/// One entry of a policy: when it applies, per what it counts, its limits.
#[derive(Clone, Debug)]
pub struct Rule {
    name: Box<str>,
    domain: Box<str>,
    when: Box<[(Box<str>, Pattern)]>,
    per: Box<[Box<str>]>,
    limits: Box<[RuleLimit]>,
}

/// One limit of a rule.
#[derive(Clone, Debug)]
pub struct RuleLimit {
    id: Box<str>,
    limit: Limit,
    scope: Scope,
}

impl Policy {
    fn of_rules(rules: Vec<Rule>) -> Self {
        let mut by_domain: HashMap<Box<str>, Vec<u32>> = HashMap::new();
        for (nth, rule) in (0..).zip(&rules) {
            by_domain.entry(rule.domain.clone()).or_default().push(nth);
        }
        Self { rules, by_domain }
    }

    /// The rules, in the order of the file.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The rules that apply to a request, and what they count by.
    pub(crate) fn apply<'r>(&'r self, request: &'r Request<'_>) -> Applied<'r> {
        let domain = self.by_domain.get(request.domain);
        let rules = domain.into_iter().flatten().map(|&nth| (nth, &self.rules[nth as usize]));
        let matches = request.descriptors.iter().flat_map(|descriptor| {
            rules.clone().filter_map(|(nth, rule)| {
                let values = rule.values(descriptor)?;
                Some(Match { nth, rule, values, cost: descriptor.cost })
            })
        });
        Applied(matches.collect())
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

    /// The attributes whose values are counted apart.
    pub fn per(&self) -> impl Iterator<Item = &str> {
        self.per.iter().map(|name| &**name)
    }

    /// The limits; all must fit.
    pub fn limits(&self) -> &[RuleLimit] {
        &self.limits
    }

    /// The values of `per`, if the rule applies.
    fn values<'r>(&self, descriptor: &'r Descriptor<'_>) -> Option<SmallVec<[&'r str; 2]>> {
        let wanted = |(name, pattern): &(Box<str>, Pattern)| {
            descriptor.get(name).is_some_and(|value| pattern.matches(value))
        };
        if !self.when.iter().all(wanted) {
            return None;
        }
        self.per.iter().map(|name| descriptor.get(name)).collect()
    }
}

impl RuleLimit {
    /// The limit's name, or else its window, such as `1m`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The limit.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }
}

/// The rules that apply to a request.
pub(crate) struct Applied<'r>(SmallVec<[Match<'r>; 2]>);

struct Match<'r> {
    nth: u32,
    rule: &'r Rule,
    values: SmallVec<[&'r str; 2]>,
    cost: u64,
}

impl Applied<'_> {
    /// One hit for each limit of each rule.
    pub(crate) fn hits(&self) -> SmallVec<[Hit<'_>; 3]> {
        let hits = self.0.iter().flat_map(|Match { rule, values, cost, .. }| {
            rule.limits.iter().map(|RuleLimit { limit, scope, .. }| Hit {
                key: Key::new(scope, values),
                limit,
                cost: *cost,
                admission: Admission::Enforce,
            })
        });
        hits.collect()
    }

    /// Where each hit comes from: the rule's place in the policy, and the limit's in the rule.
    pub(crate) fn origins(&self) -> SmallVec<[(u32, u16); 4]> {
        let origins = self.0.iter().flat_map(|applied| {
            (0..).zip(&*applied.rule.limits).map(|(limit, _)| (applied.nth, limit))
        });
        origins.collect()
    }
}
