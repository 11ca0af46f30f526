//! The attributes that rules use and that no line of the logs has: the rules then do less than on a server.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use slidegate::Policy;
use slidegate::policy::Rule;

use crate::stats::ReplayStats;

/// An attribute that no line has, and the rules that use it.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct MissingAttribute<'a> {
    attribute: &'a str,
    rules: Vec<&'a str>,
}

/// Returns the attributes that rules of a domain use and that no line has; none if there is no line.
pub fn missing_attributes<'a>(
    policy: &'a Policy,
    domain: &str,
    stats: &ReplayStats,
) -> Vec<MissingAttribute<'a>> {
    if stats.counts.requests == 0 {
        return Vec::new();
    }
    let is_seen = |name: &str| stats.seen_attributes.iter().any(|seen| **seen == *name);
    let is_missing = |name: &str| match name {
        "route" => policy.routes().next().is_none() || !is_seen("path"),
        "remote_address" => !is_seen("ip"),
        _ => true,
    };
    let mut missing: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for rule in policy.rules().iter().filter(|rule| rule.domain() == domain) {
        for name in attribute_names(rule) {
            if !is_seen(name) && is_missing(name) {
                missing.entry(name).or_default().push(rule.name());
            }
        }
    }
    missing.into_iter().map(|(attribute, rules)| MissingAttribute { attribute, rules }).collect()
}

fn attribute_names(rule: &Rule) -> BTreeSet<&str> {
    let overrides = rule.overrides().iter().map(|other| other.when());
    let conditions = overrides.chain([rule.when()]).flat_map(|when| when.conditions());
    let per = rule.per().entries().iter().flat_map(|entry| entry.names());
    conditions.map(|(name, _)| name).chain(per).collect()
}

impl fmt::Display for MissingAttribute<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attribute, rules } = self;
        let rules = rules.join(", ");
        writeln!(
            f,
            "(No line has `{attribute}`, which {rules} use{s}. Lines in JSON can have it: --map {attribute}=FIELD.)",
            s = if self.rules.len() == 1 { "s" } else { "" }
        )
    }
}
