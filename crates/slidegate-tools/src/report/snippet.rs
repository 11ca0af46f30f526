//! Formats suggested limits as the YAML of a policy.

use slidegate::Quota;

use super::rule_suggestions::RuleSuggestions;
use crate::suggest::{DENIABLE_CLIENTS_PER_MILLE, Headroom};

/// Returns the YAML of a policy with the suggested limits that deny the fewest clients. Limits that deny more clients
/// are added as comments.
pub fn policy(rules: &[RuleSuggestions<'_>], Headroom(headroom): Headroom) -> String {
    if rules.is_empty() {
        return "version: 1\nrules: []\n".to_owned();
    }
    let shares = DENIABLE_CLIENTS_PER_MILLE.map(|per_mille| per_mille as f64 / 10.0);
    let header = format!(
        "# Suggested by `slidegate replay --suggest`: at most {} % of clients denied, {headroom} % headroom.\n\
         version: 1\nrules:\n",
        shares[0]
    );
    rules.iter().fold(header, |text, suggestions| text + &format_rule_yaml(suggestions, &shares))
}

fn format_rule_yaml(suggested: &RuleSuggestions<'_>, shares: &[f64]) -> String {
    let mut text = format!("  - name: {}\n", format_yaml_scalar(suggested.rule));
    if suggested.domain != slidegate::policy::DEFAULT_DOMAIN {
        text += &format!("    domain: {}\n", format_yaml_scalar(suggested.domain));
    }
    if !suggested.per.is_empty() {
        let per: Vec<_> = suggested.per.iter().map(|name| format_yaml_scalar(name)).collect();
        text += &format!("    per: [{}]\n", per.join(", "));
    }
    let [_, others @ ..] = shares else { return text };
    let lowest = suggested_limits_without_implied_ones(suggested, 0);
    text += &format!("    limits: {}\n", format_quotas(&lowest));
    for (index, share) in (1..).zip(others) {
        let limits = suggested_limits_without_implied_ones(suggested, index);
        if limits != lowest {
            text +=
                &format!("    # at most {share} % of clients denied: {}\n", format_quotas(&limits));
        }
    }
    text
}

/// Formats quotas as a YAML list, such as `[10/1s, 20/1m]`.
fn format_quotas(limits: &[Quota]) -> String {
    let limits: Vec<_> = limits.iter().map(Quota::to_string).collect();
    format!("[{}]", limits.join(", "))
}

/// Returns the limits that are suggested for a rule if a certain share of its clients may be denied. `choice_index` is
/// the index of this share in `DENIABLE_CLIENTS_PER_MILLE`. Omits limits that another limit implies.
fn suggested_limits_without_implied_ones(
    suggested: &RuleSuggestions<'_>,
    choice_index: usize,
) -> Vec<Quota> {
    let quotas: Vec<_> = suggested
        .windows
        .iter()
        .filter_map(|window| {
            Quota::new(window.choices[choice_index].suggested_max, window.window).ok()
        })
        .collect();
    quotas
        .iter()
        .filter(|quota| !quotas.iter().any(|other| quota_implies_other(other, quota)))
        .copied()
        .collect()
}

/// Returns `true` if every client that keeps within `quota` also keeps within `other`. There are two such cases. Either
/// `quota` has the longer window, and its max does not exceed the max of `other`. Or `quota` has the shorter window,
/// and its max, multiplied by the number of shorter windows in the longer one (rounded up), does not exceed the max of
/// `other`.
fn quota_implies_other(quota: &Quota, other: &Quota) -> bool {
    let (length, other_length) = (quota.window().as_micros(), other.window().as_micros());
    match length.cmp(&other_length) {
        std::cmp::Ordering::Greater => quota.max() <= other.max(),
        std::cmp::Ordering::Less => {
            u128::from(quota.max()) * other_length.div_ceil(length) <= other.max().into()
        }
        std::cmp::Ordering::Equal => false,
    }
}

/// Formats a name as a YAML scalar. Adds quotes if YAML could read the name as another type.
fn format_yaml_scalar(name: &str) -> String {
    const YAML_KEYWORDS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_plain = name.starts_with(|char: char| char.is_ascii_alphabetic())
        && name.chars().all(|char| char.is_ascii_alphanumeric() || "._-|".contains(char))
        && !YAML_KEYWORDS.contains(&&*name.to_ascii_lowercase());
    // A name in quotes is written as a JSON string, because every JSON string is a valid YAML string.
    if is_plain { name.to_owned() } else { serde_json::Value::from(name).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_quota(text: &str) -> Quota {
        text.parse().unwrap()
    }

    #[test]
    fn stricter_quota_implies_weaker_quota() {
        assert!(quota_implies_other(&parse_quota("10/h"), &parse_quota("10/min")));
        assert!(!quota_implies_other(&parse_quota("11/h"), &parse_quota("10/min")));
        assert!(quota_implies_other(&parse_quota("10/min"), &parse_quota("600/h")));
        assert!(!quota_implies_other(&parse_quota("10/min"), &parse_quota("599/h")));
        assert!(!quota_implies_other(&parse_quota("10/min"), &parse_quota("10/min")));
    }

    #[test]
    fn ambiguous_yaml_name_is_quoted() {
        for name in ["ip", "header.user-agent", "api_key|ip"] {
            assert_eq!(format_yaml_scalar(name), name);
        }
        for name in ["", "1", "1.0", "no", "NULL", "a: b", "é", "a\"b", "-", "[a]", "a#"] {
            assert_eq!(format_yaml_scalar(name), serde_json::to_string(name).unwrap());
        }
    }
}
