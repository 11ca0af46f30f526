//! Rules, overrides and values that can never apply.

use std::net::IpAddr;

use super::super::deserialize::Field;
use super::super::spec::{ConditionSpec, WhenSpec};
use super::{Advice, SourceSpan, Written};
use crate::policy::mode::{Mode, WhenMissing};
use crate::policy::pattern::Condition;
use crate::policy::rule::{Rule, When};

impl Advice<'_> {
    /// Warns of what can be seen of a rule alone.
    pub(super) fn never_applies(&mut self, one: &Written<'_>) {
        self.enforces_for_none(one);
        if one.rule.descriptor.is_none() {
            self.impossible_literals(&one.entry.when);
            let overrides = one.entry.overrides.get().into_iter().flatten();
            for other in overrides.filter_map(Field::get) {
                self.impossible_literals(&other.when);
            }
            self.path_without_route(one);
        }
        self.counts_what_is_absent(one);
        self.shadowed_overrides(one);
    }

    /// A share of no keys.
    fn enforces_for_none(&self, one: &Written<'_>) {
        let is_none = |mode: Mode| matches!(mode, Mode::EnforceFor(share) if share.is_none());
        if is_none(one.rule.settings.mode) {
            let at = if one.entry.mode.is_absent() { one.at } else { one.entry.mode.place() };
            self.warn(at, "never denies: 0% is no key at all; write `observe`, or a larger share");
        }
    }

    /// `literal` takes any text, also one that the attribute never has.
    fn impossible_literals(&self, when: &Field<WhenSpec>) {
        let Some(WhenSpec(conditions)) = when.get() else { return };
        for (name, condition) in conditions {
            let (Some(name), Some(ConditionSpec::Map(map))) = (name.get(), condition.get()) else {
                continue;
            };
            let not = map.not.get().and_then(|condition| match condition {
                ConditionSpec::Map(map) => map.literal.get(),
                ConditionSpec::One(_) | ConditionSpec::Any(_) => None,
            });
            let literals = map.literal.get().into_iter().chain(not).flatten();
            for (literal, at) in literals.filter_map(Field::given) {
                if let Some(why) = self.never_is(name, literal) {
                    self.warn(at, format_args!("never matches: {why}"));
                }
            }
        }
    }

    /// Why an attribute never has a value.
    fn never_is(&self, name: &str, value: &str) -> Option<String> {
        match name {
            "method" if value.bytes().any(|byte| byte.is_ascii_lowercase()) => {
                Some(format!("methods are upper-case; write `{}`", value.to_ascii_uppercase()))
            }
            "path" if !value.starts_with('/') => {
                Some(format!("a path begins with `/`; write `/{value}`"))
            }
            "ip" if value.parse::<IpAddr>().is_err() => {
                Some(format!("`{value}` is not an address; leave `literal` out for a network"))
            }
            "route"
                if !self.policy.routes.is_empty() && !self.policy.routes().any(|r| r == value) =>
            {
                Some(format!("`{value}` is none of `routes`; add it there"))
            }
            _ => None,
        }
    }

    /// Paths that have no route which the rule wants.
    fn path_without_route(&self, one: &Written<'_>) {
        let When(conditions) = &one.rule.when;
        let of = |name: &str| conditions.iter().find(|(own, _)| **own == *name).map(|(_, own)| own);
        let (Some(path), Some(route)) = (of("path"), of("route")) else { return };
        let has_literals_only = path.globs().is_empty() && path.networks().is_empty();
        if self.policy.routes.is_empty() || path.is_negated() || !has_literals_only {
            return;
        }
        if path.literals().iter().any(|path| route.holds(self.policy.route_of(path))) {
            return;
        }
        let message = format_args!(
            "never applies: no `path` that is {path} has a `route` that is {route}; write one of the two"
        );
        self.warn(place(&one.entry.when, "route").unwrap_or(one.at), message);
    }

    /// A rule that counts by what its `when` wants to be absent.
    fn counts_what_is_absent(&self, one: &Written<'_>) {
        let rule = one.rule;
        let is_absent = |name: &str| {
            let mut conditions = rule.when.0.iter().filter(|(own, _)| **own == *name);
            conditions.any(|(_, wanted)| wanted.is_negated() && wanted.matches_every_value())
        };
        let Some(entry) = rule.per.entries().iter().find(|entry| entry.names().all(is_absent))
        else {
            return;
        };
        if rule.when_missing() == WhenMissing::Skip && rule.always_counts() {
            let texts = one.entry.per.get().into_iter().flatten().filter_map(Field::given);
            let at = texts.zip(rule.per.entries()).find(|(_, own)| *own == entry);
            let message = format_args!(
                "never applies: `when` wants `{entry}` to be absent, and the rule counts by it; take it away here or there"
            );
            self.warn(at.map_or(one.at, |((_, at), _)| at), message);
        }
    }

    /// Overrides behind one that matches whatever they do.
    fn shadowed_overrides(&mut self, one: &Written<'_>) {
        let entries = one.entry.overrides.get().into_iter().flatten().filter_map(Field::given);
        let places: Vec<SourceSpan> = entries.map(|(_, at)| at).collect();
        let overrides = &one.rule.overrides;
        for (nth, (own, at)) in overrides.iter().zip(&places).enumerate() {
            for (earlier, earlier_at) in overrides[..nth].iter().zip(&places) {
                if !self.has_patience(steps(&own.when, &earlier.when)) {
                    return;
                }
                if implies(&one.rule.when, &own.when, &earlier.when) {
                    let message = format_args!(
                        "never holds: the override in line {} matches all that this one does, and the first that matches holds; put this one before it",
                        earlier_at.line
                    );
                    self.warn(*at, message);
                    break;
                }
            }
        }
    }

    /// Warns of rules of a domain that others replace wherever they would apply.
    pub(super) fn replaced(&mut self, domain: &[Written<'_>]) {
        for replacing in domain.iter().filter(|one| !one.rule.replaces.is_empty()) {
            for nth in &replacing.rule.replaces {
                // They are in the order of the policy.
                let Ok(place) = domain.binary_search_by_key(nth, |one| one.nth) else { continue };
                let replaced = &domain[place];
                let names = replaced.rule.named.len() + 1;
                if !self.has_patience(names * steps(&replaced.rule.when, &replacing.rule.when)) {
                    return;
                }
                if always_replaces(replacing.rule, replaced.rule) {
                    let message = format_args!(
                        "never applies: rule `{}` replaces it, and applies to all that it does; take one of them away",
                        replacing.rule.name()
                    );
                    self.warn(replaced.entry.name.place(), message);
                }
            }
        }
    }
}

/// Whether a rule applies wherever another would, also to descriptors that are meant for the other.
fn always_replaces(rule: &Rule, other: &Rule) -> bool {
    let is_on = |mode: Mode| mode != Mode::Off;
    let counted = |entry| other.per.entries().contains(entry);
    is_on(rule.settings.mode)
        && rule.overrides.iter().all(|own| is_on(own.settings.mode))
        && !rule.requested
        && rule.descriptor == other.descriptor
        && rule.per.entries().iter().all(counted)
        && other.named.iter().all(|name| rule.named.binary_search(name).is_ok())
        && other.when_missing() == WhenMissing::Skip
        && other.always_counts()
        && implies(&When::default(), &other.when, &rule.when)
        // A descriptor needs all that `when` names.
        && rule.when.0.iter().all(|(name, _)| other.when.0.iter().any(|(own, _)| own == name))
}

/// Whether what meets two of them meets the third. `false` where that cannot be shown.
fn implies(one: &When, two: &When, third: &When) -> bool {
    third.0.iter().all(|(name, wanted)| {
        let mut same = one.0.iter().chain(&two.0).filter(|(own, _)| own == name);
        same.any(|(_, own)| own.implies(wanted))
    })
}

/// Comparisons that it takes.
fn steps(one: &When, other: &When) -> usize {
    let patterns = |when: &When| {
        let of = |wanted: &Condition| wanted.patterns().count();
        1 + when.0.iter().map(|(_, wanted)| of(wanted)).sum::<usize>()
    };
    patterns(one).saturating_mul(patterns(other))
}

/// The place of an attribute in `when`.
fn place(when: &Field<WhenSpec>, name: &str) -> Option<SourceSpan> {
    let WhenSpec(conditions) = when.get()?;
    let mut names = conditions.iter().filter_map(|(name, _)| name.given());
    names.find(|(own, _)| *own == name).map(|(_, at)| at)
}
