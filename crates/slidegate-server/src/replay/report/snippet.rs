//! Suggested limits as the YAML of a policy.

use std::time::Duration;

use slidegate::{Algorithm, Limit, Quota};

use super::suggestions::RuleSuggestions;
use crate::replay::suggest::{Headroom, PER_MILLE};

/// Returns a policy with the limits that deny the fewest clients. The other choices are added as comments.
pub fn policy(rules: &[RuleSuggestions<'_>], Headroom(headroom): Headroom) -> String {
    if rules.is_empty() {
        return "version: 1\nrules: []\n".to_owned();
    }
    let shares = PER_MILLE.map(|per_mille| per_mille as f64 / 10.0);
    let header = format!(
        "# Suggested by `slidegate replay --suggest`: at most {} % of clients denied, {headroom} % headroom.\n\
         version: 1\nrules:\n",
        shares[0]
    );
    rules.iter().fold(header, |text, suggestions| text + &rule_yaml(suggestions, &shares))
}

fn rule_yaml(suggested: &RuleSuggestions<'_>, shares: &[f64]) -> String {
    let mut text = format!("  - name: {}\n", yaml_scalar(suggested.rule));
    if suggested.domain != slidegate::DEFAULT_DOMAIN {
        text += &format!("    domain: {}\n", yaml_scalar(suggested.domain));
    }
    if !suggested.per.is_empty() {
        let per: Vec<_> = suggested.per.iter().map(|name| yaml_scalar(name)).collect();
        text += &format!("    per: [{}]\n", per.join(", "));
    }
    let [first, others @ ..] = shares else { return text };
    let lowest = necessary_limits(suggested, 0);
    text += &format!("    limits: {}\n", format_quotas(&lowest));
    let is_loggable = |quota: &Quota| Limit::new(*quota, Algorithm::SlidingLog).is_ok();
    if lowest.iter().all(is_loggable) {
        text += "    algorithm: sliding_log   # exact, like the suggestions\n";
    }
    for (index, share) in (1..).zip(others) {
        let limits = necessary_limits(suggested, index);
        if limits != lowest {
            text += &format!("    # {share} % instead of {first} %: {}\n", format_quotas(&limits));
        }
    }
    text
}

/// Formats quotas as `[10/1s, 20/1m]`.
fn format_quotas(limits: &[Quota]) -> String {
    let limits: Vec<_> = limits.iter().map(Quota::to_string).collect();
    format!("[{}]", limits.join(", "))
}

/// Returns the limits of the choice at an index, without limits that another limit implies.
fn necessary_limits(suggested: &RuleSuggestions<'_>, choice_index: usize) -> Vec<Quota> {
    let quotas: Vec<_> = suggested
        .windows
        .iter()
        .filter_map(|window| {
            Quota::new(window.choices[choice_index].suggested_max, window.window).ok()
        })
        .collect();
    quotas
        .iter()
        .filter(|quota| !quotas.iter().any(|other| implies(other, quota)))
        .copied()
        .collect()
}

/// Returns whether every client that keeps to `quota` also keeps to `other`: a longer window with at most the same max,
/// or a shorter window whose max, multiplied by the number of such windows in the longer one, does not exceed the max
/// of `other`.
fn implies(quota: &Quota, other: &Quota) -> bool {
    let (length, other_length) = (quota.window().as_micros(), other.window().as_micros());
    match length.cmp(&other_length) {
        std::cmp::Ordering::Greater => quota.max() <= other.max(),
        std::cmp::Ordering::Less => {
            u128::from(quota.max()) * other_length.div_ceil(length) <= other.max().into()
        }
        std::cmp::Ordering::Equal => false,
    }
}

/// Formats a window as in a policy.
pub fn window_name(window: Duration) -> String {
    Quota::new(0, window).map_or_else(|_| format!("{window:?}"), |quota| quota.window_text())
}

/// Formats a name for YAML, quoted if YAML could read it as another type.
fn yaml_scalar(name: &str) -> String {
    const WORDS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_plain = name.starts_with(|char: char| char.is_ascii_alphabetic())
        && name.chars().all(|char| char.is_ascii_alphanumeric() || "._-|".contains(char))
        && !WORDS.contains(&&*name.to_ascii_lowercase());
    // Every JSON string is a valid YAML string.
    if is_plain { name.to_owned() } else { serde_json::Value::from(name).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(text: &str) -> Quota {
        text.parse().unwrap()
    }

    #[test]
    fn stricter_quota_implies_weaker_quota() {
        assert!(implies(&quota("10/h"), &quota("10/min")));
        assert!(!implies(&quota("11/h"), &quota("10/min")));
        assert!(implies(&quota("10/min"), &quota("600/h")));
        assert!(!implies(&quota("10/min"), &quota("599/h")));
        assert!(!implies(&quota("10/min"), &quota("10/min")));
    }

    #[test]
    fn ambiguous_yaml_name_is_quoted() {
        for name in ["ip", "header.user-agent", "api_key|ip"] {
            assert_eq!(yaml_scalar(name), name);
        }
        for name in ["", "1", "1.0", "no", "NULL", "a: b", "é", "a\"b", "-", "[a]", "a#"] {
            assert_eq!(yaml_scalar(name), serde_json::to_string(name).unwrap());
        }
    }
}
