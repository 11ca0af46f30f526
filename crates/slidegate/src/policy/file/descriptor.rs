//! Makes what a policy file says for descriptors of Envoy: which names they have, which rules stand in for
//! others, and limits that they bring along.

use std::collections::{HashMap, HashSet};

use super::compile::Compiler;
use super::deserialize::Field;
use super::limits::Counted;
use super::spec::{LimitsSpec, PolicySpec, RuleSpec};
use super::suggest::did_you_mean;
use super::{MAX_DESCRIPTOR, MAX_REPLACES, SourceSpan};
use crate::algorithm::Algorithm;
use crate::limit::Limit;
use crate::policy::per::Per;
use crate::policy::redis::RuleRedis;
use crate::policy::rule::{Override, Rule, When};
use crate::quota::Quota;

/// What a rule's fields say that name attributes.
pub(super) struct Naming<'n> {
    pub(super) when: &'n When,
    pub(super) per: &'n Per,
    pub(super) overrides: &'n [Override],
    pub(super) redis: Option<&'n RuleRedis>,
}

impl Naming<'_> {
    /// Every attribute that the rule names, in order.
    pub(super) fn names(&self, descriptor: Option<&[Box<str>]>) -> Box<[Box<str>]> {
        let of_when = |when: &When| when.0.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        let mut names = of_when(self.when);
        names.extend(self.overrides.iter().flat_map(|other| of_when(&other.when)));
        names.extend(self.per.entries().iter().flat_map(|one| one.names()).map(Into::into));
        names.extend(self.redis.iter().flat_map(|redis| redis.split_by.iter().cloned()));
        names.extend(descriptor.iter().flat_map(|names| names.iter().cloned()));
        names.sort_unstable();
        names.dedup();
        names.into()
    }
}

impl Compiler<'_> {
    /// The names that a descriptor must have, if the rule says so.
    pub(super) fn descriptor(&mut self, entry: &RuleSpec) -> Option<Box<[Box<str>]>> {
        let (names, at) = entry.descriptor.given()?;
        if names.is_empty() || names.len() > MAX_DESCRIPTOR {
            self.wrong(at, format_args!("a descriptor has 1 to {MAX_DESCRIPTOR} attributes"));
            return None;
        }
        let mut known: HashMap<&str, usize> = HashMap::new();
        for (name, at) in names.iter().filter_map(Field::given) {
            self.attribute_name(name, at);
            let times = known.entry(name).or_default();
            *times += 1;
            if *times > 1 {
                let message = format_args!(
                    "`{name}` stands in `descriptor` twice: its second time is called `{name}#2`"
                );
                self.wrong(at, message);
            }
        }
        self.named_in_descriptor(entry, &known.into_keys().collect());
        Some(names.iter().filter_map(Field::get).map(|name| name.as_str().into()).collect())
    }

    /// A rule that needs an attribute which its descriptors do not have would never apply.
    fn named_in_descriptor(&mut self, entry: &RuleSpec, known: &HashSet<&str>) {
        let of_when = entry.when.get().into_iter().flat_map(|when| &when.0);
        let of_per = entry.per.get().into_iter().flatten().filter_map(Field::given);
        let single = of_per.filter(|(text, _)| !text.contains('|'));
        let wanted = of_when.filter_map(|(name, _)| name.given()).chain(single);
        for (name, at) in wanted {
            let routed = name == "route" && known.contains("path");
            if !known.contains(name.trim()) && !routed {
                let hint = did_you_mean(name, known.iter().copied());
                let message =
                    format_args!("never applies: `{name}` does not stand in `descriptor`{hint}");
                self.wrong(at, message);
            }
        }
    }

    /// Whether the rule is for limits that descriptors bring along. Such a rule says nothing of attributes.
    pub(super) fn requested(
        &mut self,
        entry: &RuleSpec,
        algorithm: Algorithm,
        at: SourceSpan,
    ) -> bool {
        let requested = matches!(entry.limits.get(), Some(LimitsSpec::Requested));
        let given = [
            ("when", entry.when.is_absent()),
            ("per", entry.per.is_absent()),
            ("descriptor", entry.descriptor.is_absent()),
            ("overrides", entry.overrides.is_absent()),
            ("redis", entry.redis.is_absent()),
        ];
        if requested && let Some((field, _)) = given.iter().find(|(_, absent)| !absent) {
            let message = format_args!(
                "`limits: requested` is for every descriptor that brings a limit along and that no other rule applies to, and counts per all its attributes: leave `{field}` out"
            );
            self.wrong(at, message);
        }
        // Any quota shows whether the store can count so.
        if requested && let Ok(limit) = Limit::new(Quota::from_parts(1, 1_000_000), algorithm) {
            let at = match entry.algorithm.is_absent() {
                true => entry.limits.place(),
                false => entry.algorithm.place(),
            };
            self.supports(&limit, at);
        }
        requested
    }

    /// Gives each rule the places of those that it replaces.
    pub(super) fn replaces(&mut self, entry: &PolicySpec, rules: &mut [Rule]) {
        let entries = entry.rules.get().into_iter().flatten().filter_map(Field::get);
        if entries.clone().all(|rule| rule.replaces.is_absent()) {
            return;
        }
        let places: HashMap<(Box<str>, Box<str>), u32> = (0..)
            .zip(&*rules)
            .map(|(nth, rule)| ((rule.domain.clone(), rule.name.clone()), nth))
            .collect();
        for (nth, (rule, entry)) in (0..).zip(rules.iter_mut().zip(entries)) {
            let Some((names, at)) = entry.replaces.given() else { continue };
            if names.is_empty() || names.len() > MAX_REPLACES {
                self.wrong(at, format_args!("a rule replaces 1 to {MAX_REPLACES} others"));
                continue;
            }
            let names = names.iter().filter_map(Field::given);
            let places = names.filter_map(|(name, at)| {
                let place = places.get(&(rule.domain.clone(), name.as_str().into()));
                match place {
                    Some(&place) if place == nth => self.wrong(at, "a rule cannot replace itself"),
                    Some(&place) => return Some(place),
                    None => self.no_rule(name, &rule.domain, at, places.keys()),
                }
                None
            });
            rule.replaces = places.collect();
        }
    }

    fn no_rule<'k>(
        &mut self,
        name: &str,
        domain: &str,
        at: SourceSpan,
        known: impl ExactSizeIterator<Item = &'k (Box<str>, Box<str>)>,
    ) {
        let others = known.len();
        let names = known.filter(|(of, _)| **of == *domain).map(|(_, name)| &**name);
        let hint = match self.has_patience(others.saturating_mul(name.len())) {
            true => did_you_mean(name, names),
            false => String::new(),
        };
        self.wrong(at, format_args!("there is no rule `{name}` in domain `{domain}`{hint}"));
    }

    /// A domain has one rule for limits that are brought along.
    pub(super) fn one_for_requested(&mut self, entry: &PolicySpec, rules: &[Rule]) {
        let entries = entry.rules.get().into_iter().flatten().filter_map(Field::given);
        let mut known = HashSet::new();
        for (rule, (entry, _)) in rules.iter().zip(entries) {
            if rule.requested && !known.insert(&rule.domain) {
                let message = format_args!(
                    "domain `{}` has a rule with `limits: requested` already, and one is enough",
                    rule.domain
                );
                self.wrong(entry.limits.place(), message);
            }
        }
    }
}

impl Counted {
    /// Stands for what is brought along.
    pub(super) fn requested(at: SourceSpan) -> Self {
        Self { id: "requested".into(), limit: Limit::denied(), at }
    }
}
