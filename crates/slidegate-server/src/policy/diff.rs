//! Describes the differences between two policies, for the log of a reload: the lines of their descriptions that
//! differ.
//!
//! The order of rules is ignored, because all matching rules apply. The order of overrides is compared, because only
//! the first matching override applies.

use std::time::Duration;

use similar::{ChangeTag, TextDiff};
use slidegate::Policy;
use slidegate::policy::{DomainNames, Override, Rule};

use crate::policy::description::describe_rule;

/// Maximum number of characters of one log line. Longer lines are cut, because a condition may list thousands of
/// networks.
const MAX_LINE_CHARS: usize = 400;

/// Maximum time to search for the shortest difference. After that time, the difference may have more lines.
const MAX_DIFF_TIME: Duration = Duration::from_secs(1);

/// Returns the differences between two policies: lines that begin with `-` for the old policy, and with `+` for the new
/// one. If the result is empty, both policies make the same decisions with the same counters.
pub fn diff(old: &Policy, new: &Policy) -> Vec<String> {
    let (old, new) = (describe_policy(old), describe_policy(new));
    let (old, new): (Vec<&str>, Vec<&str>) =
        (old.iter().map(String::as_str).collect(), new.iter().map(String::as_str).collect());
    let diff = TextDiff::configure().timeout(MAX_DIFF_TIME).diff_slices(&old, &new);
    let changes = diff.iter_all_changes().filter(|change| change.tag() != ChangeTag::Equal);
    changes.map(|change| format!("{} {}", change.tag(), sanitize_for_log(change.value()))).collect()
}

/// Describes a policy in lines, each of which names the rule that it belongs to.
fn describe_policy(policy: &Policy) -> Vec<String> {
    let mut rules: Vec<&Rule> = policy.rules().iter().collect();
    rules.sort_by_key(|rule| (rule.domain(), rule.name()));
    let rules = rules.into_iter().flat_map(|rule| {
        let label = format_rule_label(rule);
        let lines = describe_rule(rule).into_iter().chain(describe_counters(rule));
        lines.map(move |line| format!("{label}: {line}"))
    });
    let mut routes: Vec<String> = policy.routes().map(|route| format!("route {route}")).collect();
    routes.sort();
    let attributes = policy.domains().flat_map(|domain| {
        let names = policy.domain_names(domain).and_then(DomainNames::declared_attributes);
        names.into_iter().flatten().map(move |name| format!("domain `{domain}`: attribute {name}"))
    });
    rules.chain(routes).chain(attributes).collect()
}

fn format_rule_label(rule: &Rule) -> String {
    match rule.domain() {
        "default" => format!("rule `{}`", rule.name()),
        domain => format!("rule `{}` of domain `{domain}`", rule.name()),
    }
}

/// Describes the counters of a rule: the name of each limit, and the shape of its counters. If a line changes, the
/// counters start at 0.
fn describe_counters(rule: &Rule) -> Vec<String> {
    let overrides = rule.overrides().iter().map(Override::settings);
    let limits = [rule.settings()].into_iter().chain(overrides).flat_map(|all| all.limits());
    let mut lines: Vec<String> = limits
        .filter(|limit| limit.limit().capacity() > 0)
        .map(|limit| format!("`{}` counted as {}", limit.id(), limit.limit().counter_shape_text()))
        .collect();
    lines.sort();
    lines.dedup();
    lines
}

/// Escapes control characters, and cuts the text after [`MAX_LINE_CHARS`] characters, so that it fits on one log line.
fn sanitize_for_log(text: &str) -> String {
    let mut sanitized = String::new();
    for (index, char) in text.chars().enumerate() {
        match char {
            _ if index == MAX_LINE_CHARS => return sanitized + "…",
            char if char.is_control() => sanitized.extend(char.escape_default()),
            char => sanitized.push(char),
        }
    }
    sanitized
}

#[cfg(test)]
mod tests;
