//! Finds overrides with which a client can give itself a higher limit: it only has to send a header.
//!
//! A policy does not state the sender of a header. A proxy that sets `X-Plan` in each request is safe. A proxy that
//! forwards the header of the client is not. If the policy lists the header in `attributes`, there is no warning.

use super::super::deserialize::Field;
use super::super::spec::WhenSpec;
use super::{RuleWithSource, SourceSpan, WarningCollector};
use crate::policy::mode::Mode;
use crate::policy::rule::{Override, RuleSettings};

/// The prefixes of the names of attributes that a client can send.
const CLIENT_ATTRIBUTE_PREFIXES: [&str; 3] = ["header.", "query.", "cookie."];

/// Attributes other than headers, query parameters and cookies whose values a client chooses by its request.
const CLIENT_CHOSEN_REQUEST_PARTS: [&str; 4] = ["method", "path", "route", "host"];

/// The last parts of the names of attributes that contain credentials, such as `header.x-api-key`. They give no
/// warning: a client must know the value of a credential, so the value proves the identity of the client.
const CREDENTIAL_NAME_SUFFIXES: [&str; 7] =
    ["authorization", "cookie", "key", "password", "secret", "signature", "token"];

impl WarningCollector<'_> {
    /// Adds a warning for each attribute of a rule that a client can send, and that selects a higher limit.
    pub(super) fn warn_about_client_chosen_limits(&mut self, source: &RuleWithSource<'_>) {
        let rule = source.rule;
        if !settings_can_deny(&rule.settings) {
            return;
        }
        let declared = self.policy.declared_attributes.names_for_domain(rule.domain());
        let is_declared = |name: &str| {
            declared.is_some_and(|declared| declared.iter().any(|other| **other == *name))
        };
        let mut warned: Vec<&str> = Vec::new();
        for (index, other) in rule.overrides.iter().enumerate() {
            if !admits_more_units(&other.settings, &rule.settings)
                || !is_override_chosen_by_client(other)
            {
                continue;
            }
            let conditions = other.when.conditions();
            for (name, _) in conditions.filter(|(name, _)| is_attribute_sent_by_client(name)) {
                if is_declared(name) || warned.contains(&name) {
                    continue;
                }
                warned.push(name);
                let message = format_args!(
                    "a client that sends `{name}` gets this higher limit, unless your proxy or service sets the value in each request; if it does, list `{name}` in `attributes`"
                );
                self.add_warning(condition_span(source, index, name), message);
            }
        }
    }
}

/// Returns `true` if the client chooses all values by which an override applies.
fn is_override_chosen_by_client(other: &Override) -> bool {
    let mut conditions = other.when.conditions();
    conditions.all(|(name, condition)| {
        !condition.is_negated()
            && (CLIENT_CHOSEN_REQUEST_PARTS.contains(&name) || is_attribute_sent_by_client(name))
    })
}

fn is_attribute_sent_by_client(name: &str) -> bool {
    CLIENT_ATTRIBUTE_PREFIXES.iter().any(|kind| name.starts_with(kind))
        && !CREDENTIAL_NAME_SUFFIXES.iter().any(|end| name.ends_with(end))
}

fn settings_can_deny(settings: &RuleSettings) -> bool {
    let denies = match settings.mode {
        Mode::Enforce | Mode::Jointly => true,
        Mode::EnforceFor(percentage) => !percentage.is_zero(),
        Mode::Observe | Mode::Off => false,
    };
    denies && !settings.limits.is_empty()
}

/// Returns `true` if the settings of an override admit more units in the long run than the settings of its rule.
fn admits_more_units(other: &RuleSettings, base: &RuleSettings) -> bool {
    !settings_can_deny(other) || units_per_second(other) > units_per_second(base)
}

fn units_per_second(settings: &RuleSettings) -> f64 {
    let rates = settings
        .limits
        .iter()
        .filter(|limit| !limit.limit.is_concurrent() && !limit.is_block_limit())
        .map(|limit| limit.limit.quota().max() as f64 / limit.limit.window().as_secs_f64());
    rates.fold(f64::INFINITY, f64::min)
}

/// Returns the position of the condition on the attribute `name` in the override with this index. If the override has
/// no such condition, returns the position of the rule.
fn condition_span(source: &RuleWithSource<'_>, index: usize, name: &str) -> SourceSpan {
    let overrides = source.spec.overrides.get();
    let other = overrides.and_then(|overrides| overrides.get(index)).and_then(Field::get);
    let conditions = other.and_then(|other| other.when.get()).into_iter();
    let mut conditions = conditions.flat_map(|WhenSpec(conditions)| conditions);
    let found =
        conditions.find_map(|(own, _)| own.value_and_span().filter(|(own, _)| **own == *name));
    found.map_or(source.at, |(_, at)| at)
}
