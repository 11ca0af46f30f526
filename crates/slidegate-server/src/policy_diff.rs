//! Describes the changes from one policy to the next, rule by rule, for the log.
//!
//! The order of rules does not matter, because all matching rules apply. The order of overrides matters, because only
//! the first match applies.

mod counters;

use std::collections::{HashMap, HashSet};

use slidegate::Policy;
use slidegate::policy::{Override, Rule};

use crate::policy_description;

/// Maximum number of characters in each description of an old or new part: a condition may list thousands of networks.
const MAX_SHOWN_CHARS: usize = 400;

/// The differences between two policies.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PolicyDiff {
    pub added: usize,
    pub changed: usize,
    pub removed: usize,
    /// One line for each added, changed or removed rule, and one for the routes.
    pub lines: Vec<String>,
}

/// Compares two policies. If the result is empty, both policies make the same decisions.
pub fn diff(old: &Policy, new: &Policy) -> PolicyDiff {
    let mut diff = PolicyDiff::default();
    let mut unmatched: HashMap<_, _> =
        old.rules().iter().map(|rule| (rule_id(rule), rule)).collect();
    for rule in new.rules() {
        let line = match unmatched.remove(&rule_id(rule)) {
            Some(old) => describe_changed(old, rule).inspect(|_| diff.changed += 1),
            None => Some(describe_added(rule)).inspect(|_| diff.added += 1),
        };
        diff.lines.extend(line);
    }
    for rule in old.rules().iter().filter(|rule| unmatched.contains_key(&rule_id(rule))) {
        diff.removed += 1;
        diff.lines.push(format!("{} was removed", rule_label(rule)));
    }
    diff.lines.extend(describe_routes(old, new));
    diff
}

/// Returns the domain and the name, which identify a rule across policies.
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
    format!(
        "{} is new: {}",
        rule_label(rule),
        sanitize(&policy_description::describe_rule(rule).join("; "))
    )
}

/// Describes the changes of a rule, or returns `None` if there are none.
fn describe_changed(old: &Rule, new: &Rule) -> Option<String> {
    let parts = [
        describe_difference(&rule_parts(old), &rule_parts(new)),
        describe_reordering(old, new),
        counters::describe(old, new),
    ];
    let parts: Vec<String> = match parts {
        // The descriptions do not show the difference, for example of the names of limits.
        [None, order, Some(counters)] => {
            let counter_shapes =
                describe_difference(&counters::counter_shapes(old), &counters::counter_shapes(new));
            [counter_shapes, order, Some(counters)].into_iter().flatten().collect()
        }
        parts => parts.into_iter().flatten().collect(),
    };
    (!parts.is_empty()).then(|| format!("{} has changed: {}", rule_label(new), parts.join("; ")))
}

/// Returns `was […], is […]` with the parts that are not in both lists, or `None` if both have the same parts.
fn describe_difference(old: &[String], new: &[String]) -> Option<String> {
    let only = |left: &[String], right: &[String]| {
        let right: HashSet<&String> = right.iter().collect();
        let only: Vec<&str> =
            left.iter().filter(|part| !right.contains(part)).map(String::as_str).collect();
        (!only.is_empty()).then(|| sanitize(&only.join("; ")))
    };
    match (only(old, new), only(new, old)) {
        (Some(was), Some(is)) => Some(format!("was [{was}], is [{is}]")),
        (Some(was), None) => Some(format!("was also [{was}]")),
        (None, Some(is)) => Some(format!("is also [{is}]")),
        (None, None) => None,
    }
}

/// Describes the parts of a rule, independently of the order of its overrides.
fn rule_parts(rule: &Rule) -> Vec<String> {
    let overrides = rule.overrides().iter().map(override_part);
    policy_description::describe_base_rule(rule).into_iter().chain(overrides).collect()
}

fn override_part(it: &Override) -> String {
    let name = it.name().map_or("an override".into(), |name| format!("override `{name}`"));
    format!("{name}, {}", policy_description::describe_override(it))
}

/// Describes a change of the order of the overrides that both rules have.
fn describe_reordering(old: &Rule, new: &Rule) -> Option<String> {
    let override_keys =
        |rule: &Rule| -> Vec<String> { rule.overrides().iter().map(override_key).collect() };
    let (old_keys, new_keys) = (override_keys(old), override_keys(new));
    let intersection = |left: &[String], right: &[String]| -> Vec<String> {
        let right: HashSet<&String> = right.iter().collect();
        left.iter().filter(|key| right.contains(key)).cloned().collect()
    };
    let new_order = intersection(&new_keys, &old_keys);
    let is_reordered = intersection(&old_keys, &new_keys) != new_order;
    is_reordered.then(|| {
        format!("overrides are tried in a different order: {}", sanitize(&new_order.join(", ")))
    })
}

/// Returns the text that identifies an override within its rule: its name, or else its condition.
fn override_key(it: &Override) -> String {
    match it.name() {
        Some(name) => format!("`{name}`"),
        None => format!("[{}]", policy_description::describe_conditions(it.when())),
    }
}

fn describe_routes(old: &Policy, new: &Policy) -> Option<String> {
    let (old_routes, new_routes): (HashSet<&str>, HashSet<&str>) =
        (old.routes().collect(), new.routes().collect());
    let list = |label, routes: Vec<&str>| {
        (!routes.is_empty()).then(|| format!("{label} {}", sanitize(&routes.join(", "))))
    };
    let new = list("new:", new.routes().filter(|route| !old_routes.contains(route)).collect());
    let removed =
        list("removed:", old.routes().filter(|route| !new_routes.contains(route)).collect());
    let parts: Vec<String> = [new, removed].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| format!("routes have changed: {}", parts.join("; ")))
}

/// Escapes control characters, and cuts the text at [`MAX_SHOWN_CHARS`], so that it fits on one log line.
fn sanitize(text: &str) -> String {
    let mut sanitized = String::new();
    for (index, char) in text.chars().enumerate() {
        match char {
            _ if index == MAX_SHOWN_CHARS => return sanitized + "…",
            char if char.is_control() => sanitized.extend(char.escape_default()),
            char => sanitized.push(char),
        }
    }
    sanitized
}

impl PolicyDiff {
    /// Returns whether there are no differences.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns the numbers of added, changed and removed rules.
    pub fn summary(&self) -> String {
        let Self { added, changed, removed, .. } = self;
        format!("rules: {added} new, {changed} changed, {removed} removed")
    }
}

#[cfg(test)]
mod tests;
