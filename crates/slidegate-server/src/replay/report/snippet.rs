//! Suggested limits as a policy.

use std::time::Duration;

use slidegate::{Algorithm, Limit, Quota};

use super::suggestions::RuleSuggestions;
use crate::replay::suggest::{Headroom, PER_MILLE};

/// A policy of the limits that deny the fewest; the others stand beside them as comments.
pub fn policy(rules: &[RuleSuggestions<'_>], Headroom(headroom): Headroom) -> String {
    if rules.is_empty() {
        return "version: 1\nrules: []\n".to_owned();
    }
    let shares = PER_MILLE.map(|per_mille| per_mille as f64 / 10.0);
    let begin = format!(
        "# Suggested by `slidegate replay --suggest`: at most {} % of clients denied, {headroom} % headroom.\n\
         version: 1\nrules:\n",
        shares[0]
    );
    rules.iter().fold(begin, |text, each| text + &rule(each, &shares))
}

fn rule(suggested: &RuleSuggestions<'_>, shares: &[f64]) -> String {
    let mut text = format!("  - name: {}\n", yaml_scalar(suggested.rule));
    if suggested.domain != slidegate::DEFAULT_DOMAIN {
        text += &format!("    domain: {}\n", yaml_scalar(suggested.domain));
    }
    if !suggested.per.is_empty() {
        let per: Vec<_> = suggested.per.iter().map(|name| yaml_scalar(name)).collect();
        text += &format!("    per: [{}]\n", per.join(", "));
    }
    let [first, others @ ..] = shares else { return text };
    let least = limits(suggested, 0);
    text += &format!("    limits: {}\n", format_quotas(&least));
    let fits_log = |quota: &Quota| Limit::new(*quota, Algorithm::SlidingLog).is_ok();
    if least.iter().all(fits_log) {
        text += "    algorithm: sliding_log   # exact, as the figures are\n";
    }
    for (nth, share) in (1..).zip(others) {
        let limits = limits(suggested, nth);
        if limits != least {
            text += &format!("    # {share} % instead of {first} %: {}\n", format_quotas(&limits));
        }
    }
    text
}

/// `[10/1s, 20/1m]`
fn format_quotas(limits: &[Quota]) -> String {
    let limits: Vec<_> = limits.iter().map(Quota::to_string).collect();
    format!("[{}]", limits.join(", "))
}

/// The limits of one share. Those are left out that others imply: of a minute, if as few may come in an
/// hour, and of an hour, if sixty times what may come in a minute is no more.
fn limits(suggested: &RuleSuggestions<'_>, nth: usize) -> Vec<Quota> {
    let all = suggested.windows.iter();
    let all: Vec<_> = all
        .filter_map(|window| Quota::new(window.choices[nth].suggested_max, window.window).ok())
        .collect();
    all.iter().filter(|quota| !all.iter().any(|other| implies(other, quota))).copied().collect()
}

/// Whether whoever keeps to one quota keeps to another, in any case.
fn implies(one: &Quota, other: &Quota) -> bool {
    let (short, long) = (one.window().as_micros(), other.window().as_micros());
    match short.cmp(&long) {
        std::cmp::Ordering::Greater => one.max() <= other.max(),
        std::cmp::Ordering::Less => {
            u128::from(one.max()) * long.div_ceil(short) <= other.max().into()
        }
        std::cmp::Ordering::Equal => false,
    }
}

/// The window as one writes it.
pub fn window_name(window: Duration) -> String {
    Quota::new(0, window).map_or_else(|_| format!("{window:?}"), |quota| quota.window_text())
}

/// A name in YAML, in quotes if it could be taken for anything else.
fn yaml_scalar(name: &str) -> String {
    const WORDS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_plain = name.starts_with(|char: char| char.is_ascii_alphabetic())
        && name.chars().all(|char| char.is_ascii_alphanumeric() || "._-|".contains(char))
        && !WORDS.contains(&&*name.to_ascii_lowercase());
    // A string of JSON is one of YAML.
    if is_plain { name.to_owned() } else { serde_json::Value::from(name).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(text: &str) -> Quota {
        text.parse().unwrap()
    }

    #[test]
    fn a_quota_implies_those_that_nobody_reaches_who_keeps_to_it() {
        assert!(implies(&quota("10/h"), &quota("10/min")));
        assert!(!implies(&quota("11/h"), &quota("10/min")));
        assert!(implies(&quota("10/min"), &quota("600/h")));
        assert!(!implies(&quota("10/min"), &quota("599/h")));
        assert!(!implies(&quota("10/min"), &quota("10/min")));
    }

    #[test]
    fn what_yaml_might_misread_is_quoted() {
        for name in ["ip", "header.user-agent", "api_key|ip"] {
            assert_eq!(yaml_scalar(name), name);
        }
        for name in ["", "1", "1.0", "no", "NULL", "a: b", "é", "a\"b", "-", "[a]", "a#"] {
            assert_eq!(yaml_scalar(name), serde_json::to_string(name).unwrap());
        }
    }
}
