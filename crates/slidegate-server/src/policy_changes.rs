//! What changed from one policy to the next, rule by rule, in words.
//!
//! The order of rules does not matter, since all that apply hold. That of overrides does: the first holds.

mod counts;

use std::collections::{HashMap, HashSet};

use slidegate::Policy;
use slidegate::policy::{Override, Rule};

use crate::policy_description;

/// Characters that are told of what was, and of what is: a condition may have thousands of networks.
const MAX_TOLD: usize = 400;

/// What changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub new: usize,
    pub changed: usize,
    pub gone: usize,
    /// One for each rule that changed, and one for the routes.
    pub lines: Vec<String>,
}

/// What changed from one policy to the next. Where nothing did, both decide alike.
pub fn between(old: &Policy, new: &Policy) -> Changes {
    let mut changes = Changes::default();
    let mut left: HashMap<_, _> = old.rules().iter().map(|rule| (identity(rule), rule)).collect();
    for rule in new.rules() {
        let line = match left.remove(&identity(rule)) {
            Some(old) => changed(old, rule).inspect(|_| changes.changed += 1),
            None => Some(added(rule)).inspect(|_| changes.new += 1),
        };
        changes.lines.extend(line);
    }
    for rule in old.rules().iter().filter(|rule| left.contains_key(&identity(rule))) {
        changes.gone += 1;
        changes.lines.push(format!("{} is gone", name(rule)));
    }
    changes.lines.extend(routes(old, new));
    changes
}

/// What makes it the same rule.
fn identity(rule: &Rule) -> (&str, &str) {
    (rule.domain(), rule.name())
}

fn name(rule: &Rule) -> String {
    match rule.domain() {
        "default" => format!("rule `{}`", rule.name()),
        domain => format!("rule `{}` of domain `{}`", rule.name(), shown(domain)),
    }
}

fn added(rule: &Rule) -> String {
    format!("{} is new: {}", name(rule), shown(&policy_description::describe_rule(rule).join("; ")))
}

/// None if nothing did.
fn changed(old: &Rule, new: &Rule) -> Option<String> {
    let told =
        [difference(&described(old), &described(new)), reordered(old, new), counts::of(old, new)];
    let told: Vec<String> = match told {
        // What words do not tell apart, such as the names of limits.
        [None, order, Some(counts)] => {
            let print = difference(&counts::print(old), &counts::print(new));
            [print, order, Some(counts)].into_iter().flatten().collect()
        }
        told => told.into_iter().flatten().collect(),
    };
    (!told.is_empty()).then(|| format!("{} has changed: {}", name(new), told.join("; ")))
}

/// `was […], is […]`, of the parts that are not in both; none if all are.
fn difference(old: &[String], new: &[String]) -> Option<String> {
    let only = |these: &[String], those: &[String]| {
        let those: HashSet<&String> = those.iter().collect();
        let only: Vec<&str> =
            these.iter().filter(|part| !those.contains(part)).map(String::as_str).collect();
        (!only.is_empty()).then(|| shown(&only.join("; ")))
    };
    match (only(old, new), only(new, old)) {
        (Some(was), Some(is)) => Some(format!("was [{was}], is [{is}]")),
        (Some(was), None) => Some(format!("was also [{was}]")),
        (None, Some(is)) => Some(format!("is also [{is}]")),
        (None, None) => None,
    }
}

/// The parts of a rule, in words that do not depend on the places of its overrides.
fn described(rule: &Rule) -> Vec<String> {
    let others = rule.overrides().iter().map(described_override);
    policy_description::describe_base_rule(rule).into_iter().chain(others).collect()
}

fn described_override(other: &Override) -> String {
    let name = other.name().map_or("an override".into(), |name| format!("override `{name}`"));
    format!("{name}, {}", policy_description::describe_override(other))
}

/// Whether the overrides that stay are tried in another order.
fn reordered(old: &Rule, new: &Rule) -> Option<String> {
    let all = |rule: &Rule| -> Vec<String> { rule.overrides().iter().map(key).collect() };
    let (old_keys, new_keys) = (all(old), all(new));
    let both = |these: &[String], those: &[String]| -> Vec<String> {
        let those: HashSet<&String> = those.iter().collect();
        these.iter().filter(|key| those.contains(key)).cloned().collect()
    };
    let is = both(&new_keys, &old_keys);
    let moved = both(&old_keys, &new_keys) != is;
    moved.then(|| format!("overrides are tried in another order: {}", shown(&is.join(", "))))
}

/// What makes it the same override of a rule.
fn key(other: &Override) -> String {
    match other.name() {
        Some(name) => format!("`{name}`"),
        None => format!("[{}]", policy_description::describe_conditions(other.when())),
    }
}

fn routes(old: &Policy, new: &Policy) -> Option<String> {
    let (was, is): (HashSet<&str>, HashSet<&str>) =
        (old.routes().collect(), new.routes().collect());
    let list = |what, routes: Vec<&str>| {
        (!routes.is_empty()).then(|| format!("{what} {}", shown(&routes.join(", "))))
    };
    let new = list("new:", new.routes().filter(|route| !was.contains(route)).collect());
    let gone = list("gone:", old.routes().filter(|route| !is.contains(route)).collect());
    let told: Vec<String> = [new, gone].into_iter().flatten().collect();
    (!told.is_empty()).then(|| format!("routes have changed: {}", told.join("; ")))
}

/// As a log may show it: in one line that is not too long.
fn shown(text: &str) -> String {
    let mut shown = String::new();
    for (nth, char) in text.chars().enumerate() {
        match char {
            _ if nth == MAX_TOLD => return shown + "…",
            char if char.is_control() => shown.extend(char.escape_default()),
            char => shown.push(char),
        }
    }
    shown
}

impl Changes {
    /// Whether nothing did.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// How many rules, and how.
    pub fn summary(&self) -> String {
        let Self { new, changed, gone, .. } = self;
        format!("rules: {new} new, {changed} changed, {gone} gone")
    }
}

#[cfg(test)]
mod tests;
