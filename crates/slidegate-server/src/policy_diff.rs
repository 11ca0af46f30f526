//! Describes the differences between two policies, rule by rule, for the log of a reload.
//!
//! The order of rules is ignored, because all matching rules apply. The order of overrides is compared, because only
//! the first matching override applies.

mod counters;

use std::collections::{HashMap, HashSet};

use slidegate::Policy;
use slidegate::policy::{DomainNames, Override, Rule};

use crate::policy_description;

/// Maximum number of characters of one description in a log line. Longer descriptions are cut, because a condition may
/// list thousands of networks.
const MAX_CHANGE_DESCRIPTION_CHARS: usize = 400;

/// The differences between two policies.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PolicyDiff {
    pub added: usize,
    pub changed: usize,
    pub removed: usize,
    /// One line for each added, changed or removed rule, one line if the routes have changed, and one line for each domain
    /// whose declared attributes have changed.
    pub lines: Vec<String>,
}

/// Returns the differences between two policies. If the result is empty, both policies make the same decisions.
pub fn diff(old: &Policy, new: &Policy) -> PolicyDiff {
    let mut diff = PolicyDiff::default();
    let mut unmatched: HashMap<_, _> =
        old.rules().iter().map(|rule| (rule_domain_and_name(rule), rule)).collect();
    for rule in new.rules() {
        let line = match unmatched.remove(&rule_domain_and_name(rule)) {
            Some(old) => describe_changed_rule(old, rule).inspect(|_| diff.changed += 1),
            None => Some(describe_added_rule(rule)).inspect(|_| diff.added += 1),
        };
        diff.lines.extend(line);
    }
    for rule in
        old.rules().iter().filter(|rule| unmatched.contains_key(&rule_domain_and_name(rule)))
    {
        diff.removed += 1;
        diff.lines.push(format!("{} was removed", format_rule_label(rule)));
    }
    diff.lines.extend(describe_route_changes(old, new));
    diff.lines.extend(describe_attribute_changes(old, new));
    diff
}

/// Returns the domain and the name of a rule. Together they identify the rule in both policies.
fn rule_domain_and_name(rule: &Rule) -> (&str, &str) {
    (rule.domain(), rule.name())
}

fn format_rule_label(rule: &Rule) -> String {
    match rule.domain() {
        "default" => format!("rule `{}`", rule.name()),
        domain => format!("rule `{}` of domain `{}`", rule.name(), sanitize_for_log(domain)),
    }
}

fn describe_added_rule(rule: &Rule) -> String {
    format!(
        "{} was added: {}",
        format_rule_label(rule),
        sanitize_for_log(&policy_description::describe_rule(rule).join("; "))
    )
}

/// Describes the changes from the rule `old` to the rule `new`. Returns `None` if the rules do not differ.
fn describe_changed_rule(old: &Rule, new: &Rule) -> Option<String> {
    let parts = [
        describe_list_difference(&describe_rule_parts(old), &describe_rule_parts(new)),
        describe_override_reordering(old, new),
        counters::describe_counter_changes(old, new),
    ];
    let parts: Vec<String> = match parts {
        // The descriptions do not show the difference, for example of the names of limits.
        [None, order, Some(counters)] => {
            let counter_shapes = describe_list_difference(
                &counters::counter_shapes(old),
                &counters::counter_shapes(new),
            );
            [counter_shapes, order, Some(counters)].into_iter().flatten().collect()
        }
        parts => parts.into_iter().flatten().collect(),
    };
    (!parts.is_empty())
        .then(|| format!("{} has changed: {}", format_rule_label(new), parts.join("; ")))
}

/// Describes the texts that only one of the two lists contains, for example `was [5/s], is [9/s]`. Returns `None` if
/// both lists contain the same texts.
fn describe_list_difference(old: &[String], new: &[String]) -> Option<String> {
    let only = |left: &[String], right: &[String]| {
        let right: HashSet<&String> = right.iter().collect();
        let only: Vec<&str> =
            left.iter().filter(|part| !right.contains(part)).map(String::as_str).collect();
        (!only.is_empty()).then(|| sanitize_for_log(&only.join("; ")))
    };
    match (only(old, new), only(new, old)) {
        (Some(was), Some(is)) => Some(format!("was [{was}], is [{is}]")),
        (Some(was), None) => Some(format!("removed [{was}]")),
        (None, Some(is)) => Some(format!("added [{is}]")),
        (None, None) => None,
    }
}

/// Returns one description for each part of a rule, including each override. The descriptions are compared as a set, so
/// the order of the overrides does not matter.
fn describe_rule_parts(rule: &Rule) -> Vec<String> {
    let overrides = rule.overrides().iter().map(describe_override_with_name);
    policy_description::describe_base_rule(rule).into_iter().chain(overrides).collect()
}

/// Describes an override. The description starts with the name of the override.
fn describe_override_with_name(it: &Override) -> String {
    let name = it.name().map_or("an override".into(), |name| format!("override `{name}`"));
    format!("{name}, {}", policy_description::describe_override(it))
}

/// Describes a change in the order of overrides. Compares only the overrides that both versions of a rule contain.
/// Returns `None` if their order is the same.
fn describe_override_reordering(old: &Rule, new: &Rule) -> Option<String> {
    let override_identifiers =
        |rule: &Rule| -> Vec<String> { rule.overrides().iter().map(override_identifier).collect() };
    let (old_keys, new_keys) = (override_identifiers(old), override_identifiers(new));
    let intersection = |left: &[String], right: &[String]| -> Vec<String> {
        let right: HashSet<&String> = right.iter().collect();
        left.iter().filter(|key| right.contains(key)).cloned().collect()
    };
    let new_order = intersection(&new_keys, &old_keys);
    let is_reordered = intersection(&old_keys, &new_keys) != new_order;
    is_reordered.then(|| {
        format!("the order of the overrides is now {}", sanitize_for_log(&new_order.join(", ")))
    })
}

/// Returns the text that identifies an override within its rule: its name, or its conditions if it has no name.
fn override_identifier(it: &Override) -> String {
    match it.name() {
        Some(name) => format!("`{name}`"),
        None => format!("[{}]", policy_description::describe_conditions(it.when())),
    }
}

fn describe_route_changes(old: &Policy, new: &Policy) -> Option<String> {
    let (old_routes, new_routes): (HashSet<&str>, HashSet<&str>) =
        (old.routes().collect(), new.routes().collect());
    let list = |label, routes: Vec<&str>| {
        (!routes.is_empty()).then(|| format!("{label} {}", sanitize_for_log(&routes.join(", "))))
    };
    let added = list("added", new.routes().filter(|route| !old_routes.contains(route)).collect());
    let removed =
        list("removed", old.routes().filter(|route| !new_routes.contains(route)).collect());
    let parts: Vec<String> = [added, removed].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| format!("routes have changed: {}", parts.join("; ")))
}

/// Describes the attributes that only one of the policies declares, for each domain of the new policy.
fn describe_attribute_changes(old: &Policy, new: &Policy) -> Vec<String> {
    let declared = |policy: &Policy, domain: &str| -> Vec<String> {
        let names = policy.domain_names(domain).and_then(DomainNames::declared_attributes);
        names.into_iter().flatten().map(str::to_owned).collect()
    };
    let changes = new.domains().filter_map(|domain| {
        let change = describe_list_difference(&declared(old, domain), &declared(new, domain))?;
        Some(format!("attributes of domain `{}` have changed: {change}", sanitize_for_log(domain)))
    });
    changes.collect()
}

/// Escapes control characters, and cuts the text after [`MAX_CHANGE_DESCRIPTION_CHARS`] characters, so that it fits on
/// one log line.
fn sanitize_for_log(text: &str) -> String {
    let mut sanitized = String::new();
    for (index, char) in text.chars().enumerate() {
        match char {
            _ if index == MAX_CHANGE_DESCRIPTION_CHARS => return sanitized + "…",
            char if char.is_control() => sanitized.extend(char.escape_default()),
            char => sanitized.push(char),
        }
    }
    sanitized
}

impl PolicyDiff {
    /// Returns `true` if the two policies do not differ.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns a text with the numbers of added, changed and removed rules.
    pub fn summary(&self) -> String {
        let Self { added, changed, removed, .. } = self;
        format!("rules: {added} added, {changed} changed, {removed} removed")
    }
}

#[cfg(test)]
mod tests;
