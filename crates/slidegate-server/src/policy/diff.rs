//! Describes the differences between two policies, for the log of a reload: the lines of their descriptions that
//! differ.
//!
//! The order of rules is ignored, because all matching rules apply. The order of overrides is compared, because only
//! the first matching override applies.

use imara_diff::{Algorithm, Diff, InternedInput};
use slidegate::Policy;
use slidegate::policy::{DomainNames, Override, Rule};

use crate::policy::description::describe_rule;

/// Maximum number of characters of one log line. Longer lines are cut, because a condition may list thousands of
/// networks.
const MAX_LINE_CHARS: usize = 400;

/// Returns the differences between two policies: lines that begin with `-` for the old policy, and with `+` for the new
/// one. If the result is empty, both policies use the same counters.
pub fn diff(old: &Policy, new: &Policy) -> Vec<String> {
    let (old, new) = (describe_policy(old), describe_policy(new));
    let mut lines = InternedInput::default();
    lines.update_before(old.iter().map(String::as_str));
    lines.update_after(new.iter().map(String::as_str));
    let hunks = Diff::compute(Algorithm::Histogram, &lines);
    let hunks = hunks.hunks().flat_map(|hunk| {
        let removed = old[hunk.before.start as usize..hunk.before.end as usize].iter();
        let added = new[hunk.after.start as usize..hunk.after.end as usize].iter();
        removed.map(|line| ('-', line)).chain(added.map(|line| ('+', line)))
    });
    hunks.map(|(sign, line)| format!("{sign} {}", sanitize_for_log(line))).collect()
}

/// Describes a policy in lines, each of which names the rule that it belongs to.
fn describe_policy(policy: &Policy) -> Vec<String> {
    let mut rules: Vec<&Rule> = policy.rules().iter().collect();
    rules.sort_by_key(|rule| (rule.domain(), rule.name()));
    let rules = rules.into_iter().flat_map(|rule| {
        let label = format_rule_label(rule);
        let replaced = policy.rules_replaced_by(rule);
        let replaced = replaced.map(|other| format!("applies in place of `{}`", other.name()));
        let lines = describe_rule(rule).into_iter().chain(describe_counters(rule)).chain(replaced);
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
