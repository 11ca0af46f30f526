//! Finds rules that are valid, but can be evaded or never apply.
//!
//! Every warning is about something that can be shown: of a count that a client can evade, by a request that
//! evades it; of a rule that never applies, by the conditions that exclude each other. What cannot be shown within
//! [`PATIENCE`] is not found.

mod evasion;
mod never;
mod witness;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::deserialize::Field;
use super::error::{Diagnostics, PolicyWarning, SourceSpan};
use super::spec::{PolicySpec, RuleSpec, WhenSpec};
use crate::policy::{Policy, Rule};

/// The attributes whose values a client chooses freely; `*` stands for any name. `path` is one of them: a client can
/// add anything to a path, unlike to a `route`.
pub const CLIENT_CHOSEN: [&str; 6] =
    ["header.*", "query.*", "cookie.*", "api_key", "user_agent", "path"];

/// The attributes that hold the client's address: `ip`, and the names that Envoy gives it.
const ADDRESSES: [&str; 3] = ["ip", "remote_address", "masked_remote_address"];

/// Steps that are made to find warnings: comparing two patterns, or applying a rule to a request. Less than a second.
const PATIENCE: usize = 20_000_000;

/// Finds the warnings of a policy and notes them at their places.
struct Advice<'a> {
    policy: &'a Policy,
    noted: Diagnostics<'a>,
    patience: usize,
}

/// A rule, what the file says of it, and where.
#[derive(Clone, Copy)]
struct Written<'a> {
    /// The place in the policy.
    nth: u32,
    rule: &'a Rule,
    entry: &'a RuleSpec,
    at: SourceSpan,
}

/// The warnings of a policy without mistakes.
pub(super) fn warnings(text: &str, entry: &PolicySpec, policy: &Policy) -> Arc<[PolicyWarning]> {
    let mut advice = Advice { policy, noted: Diagnostics::new(text), patience: PATIENCE };
    advice.colons_in_routes(entry);
    let entries = entry.rules.get().into_iter().flatten().filter_map(Field::given);
    let written = (0..).zip(policy.rules()).zip(entries);
    let written = written.map(|((nth, rule), (entry, at))| Written { nth, rule, entry, at });
    let mut domains: HashMap<&str, Vec<Written<'_>>> = HashMap::new();
    for one in written {
        advice.route_without_routes(&one);
        advice.never_applies(&one);
        domains.entry(one.rule.domain()).or_default().push(one);
    }
    for rules in domains.values() {
        advice.replaced(rules);
        advice.evasions(rules);
    }
    advice.noted.into_warnings()
}

impl Advice<'_> {
    fn warn(&self, at: SourceSpan, message: impl fmt::Display) {
        self.noted.note(at, message);
    }

    /// Whether that many steps may still be made. They then are.
    fn has_patience(&mut self, steps: usize) -> bool {
        let left = self.patience.checked_sub(steps);
        self.patience = left.unwrap_or_default();
        left.is_some()
    }

    /// `:id` is how other routers write a parameter.
    fn colons_in_routes(&self, entry: &PolicySpec) {
        for (template, at) in entry.routes.get().into_iter().flatten().filter_map(Field::given) {
            let segments = template.split('/').map(|segment| (segment, parameter(segment)));
            let Some((colon, _)) = segments.clone().find(|(_, name)| name.is_some()) else {
                continue;
            };
            let closest_match = segments.map(|(segment, name)| match name {
                Some(name) => format!("{{{name}}}"),
                None => segment.to_owned(),
            });
            let closest_match = closest_match.collect::<Vec<_>>().join("/");
            let message = format_args!(
                "`{colon}` in `{template}` matches only the text `{colon}`; write `{closest_match}` for any segment"
            );
            self.warn(at, message);
        }
    }

    /// Without `routes:` nothing here makes a `route` of a path.
    fn route_without_routes(&self, one: &Written<'_>) {
        // What a descriptor calls so may be anything.
        if !self.policy.routes.is_empty() || one.rule.descriptor.is_some() {
            return;
        }
        let overrides = one.entry.overrides.get().into_iter().flatten().filter_map(Field::get);
        let whens = overrides.map(|other| &other.when).chain([&one.entry.when]);
        let names = whens.filter_map(Field::get).flat_map(|WhenSpec(conditions)| conditions);
        for (name, at) in names.filter_map(|(name, _)| name.given()) {
            if name == "route" {
                self.warn(
                    at,
                    "matches only if the caller sends the attribute `route`, since the policy has no `routes:`; list the paths in `routes:`, unless the caller sends it",
                );
            }
        }
    }
}

/// The name in `:name`.
fn parameter(segment: &str) -> Option<&str> {
    let name = segment.strip_prefix(':')?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && name.chars().all(is_plain))
        .then_some(name)
}

/// An attribute without the place that it has among entries of one name: the second `key` is `key#2`.
fn base_name(name: &str) -> &str {
    match name.rsplit_once('#') {
        Some((base, nth)) if !nth.is_empty() && nth.bytes().all(|b| b.is_ascii_digit()) => base,
        _ => name,
    }
}

fn is_address(name: &str) -> bool {
    ADDRESSES.contains(&base_name(name))
}

/// Whether a rule counts by an attribute whose values the client chooses.
fn is_client_chosen(rule: &Rule, name: &str) -> bool {
    let name = base_name(name);
    // What a descriptor calls a path may be anything.
    let is_path_of_descriptor = name == "path" && rule.descriptor.is_some();
    let is_listed = |listed: &str| match listed.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == listed,
    };
    !is_path_of_descriptor && CLIENT_CHOSEN.into_iter().any(is_listed)
}
