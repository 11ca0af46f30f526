//! What changed from one policy to the next, rule by rule, in words.
//!
//! The order of rules does not matter, since all that apply hold. That of overrides does: the first holds.

mod counters;

use std::collections::{HashMap, HashSet};

use slidegate::Policy;
use slidegate::policy::{Override, Rule};

use crate::words;

/// Characters that are told of what was, and of what is: a condition may have thousands of networks.
const MAX_SHOWN_CHARS: usize = 400;

/// What changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PolicyDiff {
    pub new: usize,
    pub changed: usize,
    pub removed: usize,
    /// One for each rule that changed, and one for the routes.
    pub lines: Vec<String>,
}

/// What changed from one policy to the next. Where nothing did, both decide alike.
pub fn diff(old: &Policy, new: &Policy) -> PolicyDiff {
    let mut changes = PolicyDiff::default();
    let mut left: HashMap<_, _> = old.rules().iter().map(|rule| (rule_id(rule), rule)).collect();
    for rule in new.rules() {
        let line = match left.remove(&rule_id(rule)) {
            Some(old) => describe_changed(old, rule).inspect(|_| changes.changed += 1),
            None => Some(describe_added(rule)).inspect(|_| changes.new += 1),
        };
        changes.lines.extend(line);
    }
    for rule in old.rules().iter().filter(|rule| left.contains_key(&rule_id(rule))) {
        changes.removed += 1;
        changes.lines.push(format!("{} is gone", rule_label(rule)));
    }
    changes.lines.extend(describe_routes(old, new));
    changes
}

/// What makes it the same rule.
fn rule_id(rule: &Rule) -> (&str, &str) {
    (rule.domain(), rule.name())
}

fn rule_label(rule: &Rule) -> String {
    match rule.domain() {
        "default" => format!("rule `{}`", rule.name()),
        domain => format!("rule `{}` of domain `{}`", rule.name(), sanitize(domain)),
    }
}

fn describe_added(rule: &Rule) -> String {
    format!("{} is new: {}", rule_label(rule), sanitize(&words::rule(rule).join("; ")))
}

/// None if nothing did.
fn describe_changed(old: &Rule, new: &Rule) -> Option<String> {
    let told = [
        describe_difference(&rule_parts(old), &rule_parts(new)),
        describe_reordering(old, new),
        counters::describe(old, new),
    ];
    let told: Vec<String> = match told {
        // What words do not tell apart, such as the names of limits.
        [None, order, Some(counters)] => {
            let counter_shapes =
                describe_difference(&counters::counter_shapes(old), &counters::counter_shapes(new));
            [counter_shapes, order, Some(counters)].into_iter().flatten().collect()
        }
        told => told.into_iter().flatten().collect(),
    };
    (!told.is_empty()).then(|| format!("{} has changed: {}", rule_label(new), told.join("; ")))
}

/// `was […], is […]`, of the parts that are not in both; none if all are.
fn describe_difference(old: &[String], new: &[String]) -> Option<String> {
    let only = |these: &[String], those: &[String]| {
        let those: HashSet<&String> = those.iter().collect();
        let only: Vec<&str> =
            these.iter().filter(|part| !those.contains(part)).map(String::as_str).collect();
        (!only.is_empty()).then(|| sanitize(&only.join("; ")))
    };
    match (only(old, new), only(new, old)) {
        (Some(was), Some(is)) => Some(format!("was [{was}], is [{is}]")),
        (Some(was), None) => Some(format!("was also [{was}]")),
        (None, Some(is)) => Some(format!("is also [{is}]")),
        (None, None) => None,
    }
}

/// The parts of a rule, in words that do not depend on the places of its overrides.
fn rule_parts(rule: &Rule) -> Vec<String> {
    let others = rule.overrides().iter().map(override_part);
    words::own_terms(rule).into_iter().chain(others).collect()
}

fn override_part(other: &Override) -> String {
    let name = other.name().map_or("an override".into(), |name| format!("override `{name}`"));
    format!("{name}, {}", words::other_terms(other))
}

/// Whether the overrides that stay are tried in another order.
fn describe_reordering(old: &Rule, new: &Rule) -> Option<String> {
    let all = |rule: &Rule| -> Vec<String> { rule.overrides().iter().map(override_key).collect() };
    let (old_keys, new_keys) = (all(old), all(new));
    let both = |these: &[String], those: &[String]| -> Vec<String> {
        let those: HashSet<&String> = those.iter().collect();
        these.iter().filter(|override_key| those.contains(override_key)).cloned().collect()
    };
    let is = both(&new_keys, &old_keys);
    let moved = both(&old_keys, &new_keys) != is;
    moved.then(|| format!("overrides are tried in another order: {}", sanitize(&is.join(", "))))
}

/// What makes it the same override of a rule.
fn override_key(other: &Override) -> String {
    match other.name() {
        Some(name) => format!("`{name}`"),
        None => format!("[{}]", words::when(other.when())),
    }
}

fn describe_routes(old: &Policy, new: &Policy) -> Option<String> {
    let (was, is): (HashSet<&str>, HashSet<&str>) =
        (old.routes().collect(), new.routes().collect());
    let list = |what, routes: Vec<&str>| {
        (!routes.is_empty()).then(|| format!("{what} {}", sanitize(&routes.join(", "))))
    };
    let new = list("new:", new.routes().filter(|route| !was.contains(route)).collect());
    let removed = list("gone:", old.routes().filter(|route| !is.contains(route)).collect());
    let told: Vec<String> = [new, removed].into_iter().flatten().collect();
    (!told.is_empty()).then(|| format!("routes have changed: {}", told.join("; ")))
}

/// As a log may show it: in one line that is not too long.
fn sanitize(text: &str) -> String {
    let mut sanitize = String::new();
    for (nth, char) in text.chars().enumerate() {
        match char {
            _ if nth == MAX_SHOWN_CHARS => return sanitize + "…",
            char if char.is_control() => sanitize.extend(char.escape_default()),
            char => sanitize.push(char),
        }
    }
    sanitize
}

impl PolicyDiff {
    /// Whether nothing did.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// How many rules, and how.
    pub fn summary(&self) -> String {
        let Self { new, changed, removed, .. } = self;
        format!("rules: {new} new, {changed} changed, {removed} gone")
    }
}

#[cfg(test)]
mod tests;
