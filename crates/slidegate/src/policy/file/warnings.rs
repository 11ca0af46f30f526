//! Finds rules that are valid but have counters that a client can evade, or a part that never has an effect.
//!
//! Every warning is proved, except warnings about misspelt names and about headers with which a client can give itself
//! a higher limit. For example, a sample request that evades a counter proves that a client can evade it, and
//! conditions that exclude each other prove that a rule never applies. A problem that cannot be proved within
//! [`MAX_WARNING_SEARCH_STEPS`] is not reported.

mod client_headers;
mod evasion;
mod misspelt;
mod sample_requests;
mod unreachable;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::attributes::name_without_number_suffix;
use super::deserialize::Field;
use super::spec::{PolicySpec, RuleSpec, WhenSpec};
use crate::on_store_error::OnStoreError;
use crate::policy::Policy;
use crate::policy::error::{Diagnostics, PolicyWarning, SourceSpan};
use crate::policy::rule::Rule;

/// Attributes whose values a client chooses freely.
///
/// The `*` in `header.*` matches any name. `path` is in the list because a client can append any text to a path.
/// `route` is not, because its values are the templates of the policy.
pub const CLIENT_CHOSEN_ATTRIBUTES: [&str; 6] =
    ["header.*", "query.*", "cookie.*", "api_key", "user_agent", "path"];

/// Attributes that contain the address of the client: `ip`, and the names of this attribute in Envoy descriptors.
const ADDRESS_ATTRIBUTES: [&str; 3] = ["ip", "remote_address", "masked_remote_address"];

/// The maximum number of steps in the search for warnings about one policy. This many steps take less than a second. A
/// step compares two patterns, or matches a rule against a request.
const MAX_WARNING_SEARCH_STEPS: usize = 20_000_000;

/// A collector that searches a policy for problems and records warnings about them.
struct WarningCollector<'a> {
    policy: &'a Policy,
    diagnostics: Diagnostics<'a>,
    remaining_steps: usize,
}

/// A compiled rule with the [`RuleSpec`] from which it was compiled, and with its position in the policy file.
#[derive(Clone, Copy)]
struct RuleWithSource<'a> {
    /// Index of the rule in the policy.
    rule_index: u32,
    rule: &'a Rule,
    spec: &'a RuleSpec,
    at: SourceSpan,
}

/// Returns the warnings of a policy in which no error was found.
pub(super) fn find_warnings(
    text: &str,
    spec: &PolicySpec,
    policy: &Policy,
) -> Arc<[PolicyWarning]> {
    let mut collector = WarningCollector {
        policy,
        diagnostics: Diagnostics::new(text),
        remaining_steps: MAX_WARNING_SEARCH_STEPS,
    };
    collector.warn_about_colon_parameters(spec);
    let specs = spec.rules.get().into_iter().flatten().filter_map(Field::value_and_span);
    let sources = (0..).zip(policy.rules()).zip(specs);
    let sources = sources.map(|((rule_index, rule), (spec, at))| RuleWithSource {
        rule_index,
        rule,
        spec,
        at,
    });
    let mut domains: HashMap<&str, Vec<RuleWithSource<'_>>> = HashMap::new();
    for source in sources {
        collector.warn_about_route_without_routes(&source);
        collector.warn_about_unlimited_rule_that_denies_without_store(&source);
        collector.warn_about_client_chosen_limits(&source);
        collector.add_warnings_about_single_rule(&source);
        domains.entry(source.rule.domain()).or_default().push(source);
    }
    for rules in domains.values() {
        collector.warn_about_always_replaced_rules(rules);
        collector.warn_about_evadable_rules(rules);
    }
    // Misspelt names are searched last, because this search may use all steps that remain.
    for rules in domains.values() {
        collector.warn_about_misspelt_attributes(rules);
    }
    collector.diagnostics.into_warnings()
}

impl WarningCollector<'_> {
    /// Adds a warning about the part of the policy at position `at`.
    fn add_warning(&self, at: SourceSpan, message: impl fmt::Display) {
        self.diagnostics.push(at, message);
    }

    /// Subtracts `steps` from the remaining steps and returns `true`. If fewer steps remain, returns `false` and sets
    /// the remaining steps to 0, so that the search for warnings ends.
    fn spend_search_steps(&mut self, steps: usize) -> bool {
        let remaining = self.remaining_steps.checked_sub(steps);
        self.remaining_steps = remaining.unwrap_or_default();
        remaining.is_some()
    }

    /// Adds a warning for each route template with a parameter such as `:id`. This is the syntax of other routers;
    /// slidegate uses `{id}`.
    fn warn_about_colon_parameters(&self, spec: &PolicySpec) {
        for (template, at) in
            spec.routes.get().into_iter().flatten().filter_map(Field::value_and_span)
        {
            let segments =
                template.split('/').map(|segment| (segment, parse_colon_parameter(segment)));
            let Some((colon, _)) = segments.clone().find(|(_, name)| name.is_some()) else {
                continue;
            };
            let corrected = segments.map(|(segment, name)| match name {
                Some(name) => format!("{{{name}}}"),
                None => segment.to_owned(),
            });
            let corrected = corrected.collect::<Vec<_>>().join("/");
            let message = format_args!(
                "`{colon}` in `{template}` matches only the text `{colon}`; write `{corrected}` for any segment"
            );
            self.add_warning(at, message);
        }
    }

    /// Adds a warning for each condition on `route` of a rule, if the policy has no `routes:`.
    fn warn_about_route_without_routes(&self, source: &RuleWithSource<'_>) {
        // A rule with `descriptor` is for Envoy descriptors, in which `route` is an attribute that Envoy sends.
        if !self.policy.routes.is_empty() || source.rule.descriptor.is_some() {
            return;
        }
        let overrides = source.spec.overrides.get().into_iter().flatten().filter_map(Field::get);
        let whens = overrides.map(|rule_override| &rule_override.when).chain([&source.spec.when]);
        let names = whens.filter_map(Field::get).flat_map(|WhenSpec(conditions)| conditions);
        for (name, at) in names.filter_map(|(name, _)| name.value_and_span()) {
            if name == "route" {
                self.add_warning(
                    at,
                    "the policy has no `routes`, so this condition matches only if the caller or an extractor sets the attribute `route`; list the routes of your service in `routes`, which also makes misspelled routes an error",
                );
            }
        }
    }

    /// Adds a warning if a rule without limits has the field `on_store_error: deny`. A value of `defaults` gives no
    /// warning, because it may be meant for other rules.
    fn warn_about_unlimited_rule_that_denies_without_store(&self, source: &RuleWithSource<'_>) {
        let rule = source.rule;
        let has_limits = rule.is_for_requested_limits || rule.all_limits().next().is_some();
        if let Some((OnStoreError::Deny, at)) = source.spec.on_store_error.value_and_span()
            && !has_limits
        {
            self.add_warning(
                at,
                "`deny` has no effect here, because an unlimited rule never uses the store; write a limit that is never reached, for example `limits: [1000000/s]`, or remove `on_store_error`",
            );
        }
    }
}

/// Returns the `name` in a path segment of the form `:name`; `None` if the segment has another form.
fn parse_colon_parameter(segment: &str) -> Option<&str> {
    let name = segment.strip_prefix(':')?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && name.chars().all(is_plain))
        .then_some(name)
}

fn is_address_attribute(name: &str) -> bool {
    ADDRESS_ATTRIBUTES.contains(&name_without_number_suffix(name))
}

/// Returns `true` if a client can freely choose the values of the attribute `name`, which is in the `per` of `rule`.
fn is_value_chosen_by_client(rule: &Rule, name: &str) -> bool {
    let name = name_without_number_suffix(name);
    // In an Envoy descriptor, `path` may be any value, not only the path that the client requests.
    let is_path_of_descriptor = name == "path" && rule.descriptor.is_some();
    let is_listed = |listed: &str| match listed.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == listed,
    };
    !is_path_of_descriptor && CLIENT_CHOSEN_ATTRIBUTES.into_iter().any(is_listed)
}
