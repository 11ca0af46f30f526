//! Finds rules and overrides that can never apply, and values in conditions that can never match.

use std::net::IpAddr;

use super::super::deserialize::Field;
use super::super::spec::{ConditionSpec, WhenSpec};
use super::{RuleWithSource, SourceSpan, WarningCollector};
use crate::policy::mode::{Mode, WhenMissing};
use crate::policy::pattern::Condition;
use crate::policy::rule::{Rule, When};

impl WarningCollector<'_> {
    /// Adds all warnings about one rule that do not depend on other rules.
    pub(super) fn add_warnings_about_single_rule(&mut self, source: &RuleWithSource<'_>) {
        self.warn_about_zero_percentage(source);
        if source.rule.descriptor.is_none() {
            self.warn_about_impossible_literals(&source.spec.when);
            let overrides = source.spec.overrides.get().into_iter().flatten();
            for other in overrides.filter_map(Field::get) {
                self.warn_about_impossible_literals(&other.when);
            }
            self.warn_about_contradictory_path_and_route(source);
        }
        self.warn_about_count_by_absent_attribute(source);
        self.warn_about_shadowed_overrides(source);
    }

    /// Adds a warning if the mode of a rule is `{ enforce: 0% }`, so that the rule never denies.
    fn warn_about_zero_percentage(&self, source: &RuleWithSource<'_>) {
        let is_none =
            |mode: Mode| matches!(mode, Mode::EnforceFor(percentage) if percentage.is_zero());
        if is_none(source.rule.settings.mode) {
            let at = if source.spec.mode.is_absent() { source.at } else { source.spec.mode.span() };
            self.add_warning(
                at,
                "this rule never denies, because 0% selects no key; write `mode: observe`, or a larger percentage",
            );
        }
    }

    /// Adds a warning for each value in a `literal` condition that the attribute can never have.
    fn warn_about_impossible_literals(&self, when: &Field<WhenSpec>) {
        let Some(WhenSpec(conditions)) = when.get() else { return };
        for (name, condition) in conditions {
            let (Some(name), Some(ConditionSpec::Map(map))) = (name.get(), condition.get()) else {
                continue;
            };
            let not = map.not.get().and_then(|condition| match condition {
                ConditionSpec::Map(map) => map.literal.get(),
                ConditionSpec::One(_) | ConditionSpec::Any(_) => None,
            });
            let literals = map.literal.get().into_iter().chain(not).flatten();
            for (literal, at) in literals.filter_map(Field::value_and_span) {
                if let Some(reason) = self.impossible_value_reason(name, literal) {
                    self.add_warning(
                        at,
                        format_args!("this value never matches, because {reason}"),
                    );
                }
            }
        }
    }

    /// Returns the reason why the attribute `name` can never have the value `value`; `None` if it can.
    fn impossible_value_reason(&self, name: &str, value: &str) -> Option<String> {
        match name {
            "method" if value.bytes().any(|byte| byte.is_ascii_lowercase()) => {
                Some(format!("methods are upper-case; write `{}`", value.to_ascii_uppercase()))
            }
            "path" if !value.starts_with('/') => {
                Some(format!("a path begins with `/`; write `/{value}`"))
            }
            "ip" if value.parse::<IpAddr>().is_err() => {
                Some(format!("`{value}` is not an address; write a network without `literal`"))
            }
            "route"
                if !self.policy.routes.is_empty() && !self.policy.routes().any(|r| r == value) =>
            {
                Some(format!("`{value}` is not listed in `routes`; add it there"))
            }
            _ => None,
        }
    }

    /// Adds a warning if `when` has conditions on `path` and `route`, and no path that meets the first condition
    /// matches a route that meets the second.
    fn warn_about_contradictory_path_and_route(&self, source: &RuleWithSource<'_>) {
        let When(conditions) = &source.rule.when;
        let condition_on = |name: &str| {
            conditions.iter().find(|(other, _)| **other == *name).map(|(_, condition)| condition)
        };
        let (Some(path), Some(route)) = (condition_on("path"), condition_on("route")) else {
            return;
        };
        let has_literals_only = path.globs().is_empty() && path.networks().is_empty();
        if self.policy.routes.is_empty() || path.is_negated() || !has_literals_only {
            return;
        }
        if path.literals().iter().any(|path| route.matches(self.policy.route_of(path))) {
            return;
        }
        let message = format_args!(
            "this rule never applies, because no `path` that is {path} has a `route` that is {route}; remove one of the two conditions"
        );
        self.add_warning(
            attribute_name_span(&source.spec.when, "route").unwrap_or(source.at),
            message,
        );
    }

    /// Adds a warning if a rule counts by an attribute that its `when` requires to be absent.
    fn warn_about_count_by_absent_attribute(&self, source: &RuleWithSource<'_>) {
        let rule = source.rule;
        let is_absent = |name: &str| {
            let mut conditions = rule.when.0.iter().filter(|(own, _)| **own == *name);
            conditions.any(|(_, expected)| expected.is_negated() && expected.matches_every_value())
        };
        let Some(entry) = rule.per.entries().iter().find(|entry| entry.names().all(is_absent))
        else {
            return;
        };
        if rule.when_missing() == WhenMissing::Skip && rule.counts_every_request() {
            let texts =
                source.spec.per.get().into_iter().flatten().filter_map(Field::value_and_span);
            let at = texts.zip(rule.per.entries()).find(|(_, own)| *own == entry);
            let message = format_args!(
                "this rule never applies, because `when` requires `{entry}` to be absent, but `per` counts by it; remove it from one of them"
            );
            self.add_warning(at.map_or(source.at, |((_, at), _)| at), message);
        }
    }

    /// Adds a warning for each override that never applies, since an earlier override matches all of its requests.
    fn warn_about_shadowed_overrides(&mut self, source: &RuleWithSource<'_>) {
        let entries =
            source.spec.overrides.get().into_iter().flatten().filter_map(Field::value_and_span);
        let spans: Vec<SourceSpan> = entries.map(|(_, at)| at).collect();
        let overrides = &source.rule.overrides;
        for (index, (later, at)) in overrides.iter().zip(&spans).enumerate() {
            for (earlier, earlier_at) in overrides[..index].iter().zip(&spans) {
                if !self.spend_search_steps(count_comparison_steps(&later.when, &earlier.when)) {
                    return;
                }
                if conditions_imply(&source.rule.when, &later.when, &earlier.when) {
                    let message = format_args!(
                        "this override never applies, because the override in line {} matches all of its requests and comes first; move this override before it",
                        earlier_at.line
                    );
                    self.add_warning(*at, message);
                    break;
                }
            }
        }
    }

    /// Adds a warning for each rule of a domain that never applies, since another rule replaces it for all of its
    /// requests.
    pub(super) fn warn_about_always_replaced_rules(&mut self, domain: &[RuleWithSource<'_>]) {
        for replacing in domain.iter().filter(|source| !source.rule.replaces.is_empty()) {
            for rule_index in &replacing.rule.replaces {
                // The rules of the domain are in the order of the policy, so they are sorted by index.
                let Ok(position) =
                    domain.binary_search_by_key(rule_index, |source| source.rule_index)
                else {
                    continue;
                };
                let replaced = &domain[position];
                let names = replaced.rule.attribute_names.len() + 1;
                if !self.spend_search_steps(
                    names * count_comparison_steps(&replaced.rule.when, &replacing.rule.when),
                ) {
                    return;
                }
                if applies_wherever_other_applies(replacing.rule, replaced.rule) {
                    let message = format_args!(
                        "this rule never applies, because rule `{}` replaces it and applies to all of its requests; remove one of them",
                        replacing.rule.name()
                    );
                    self.add_warning(replaced.spec.name.span(), message);
                }
            }
        }
    }
}

/// Returns `true` if `rule` provably applies to every descriptor to which `other` applies. This includes exact
/// descriptors, which match only rules that name all of their attributes.
fn applies_wherever_other_applies(rule: &Rule, other: &Rule) -> bool {
    let is_on = |mode: Mode| mode != Mode::Off;
    let is_counted_by_other = |entry| other.per.entries().contains(entry);
    is_on(rule.settings.mode)
        && rule.overrides.iter().all(|rule_override| is_on(rule_override.settings.mode))
        && !rule.is_for_requested_limits
        && rule.descriptor == other.descriptor
        && rule.per.entries().iter().all(is_counted_by_other)
        && other.attribute_names.iter().all(|name| rule.attribute_names.binary_search(name).is_ok())
        && other.when_missing() == WhenMissing::Skip
        && other.counts_every_request()
        && conditions_imply(&When::default(), &other.when, &rule.when)
        // An exact descriptor must have all attributes in the `when` of a rule. So `other` must name these attributes
        // in its `when`, too, or it could apply where `rule` does not.
        && rule.when.0.iter().all(|(name, _)| other.when.0.iter().any(|(own, _)| own == name))
}

/// Returns `true` if every request that meets the conditions `left` and `right` provably also meets `implied`. Returns
/// `false` if this is wrong or cannot be proved.
fn conditions_imply(left: &When, right: &When, implied: &When) -> bool {
    implied.0.iter().all(|(name, expected)| {
        let mut same = left.0.iter().chain(&right.0).filter(|(own, _)| own == name);
        same.any(|(_, condition)| condition.implies(expected))
    })
}

/// Returns the maximum number of pattern comparisons that are needed to compare two `when` fields.
fn count_comparison_steps(left: &When, right: &When) -> usize {
    let patterns = |when: &When| {
        let count = |expected: &Condition| expected.patterns().count();
        1 + when.0.iter().map(|(_, expected)| count(expected)).sum::<usize>()
    };
    patterns(left).saturating_mul(patterns(right))
}

/// Returns the source position of an attribute name in `when`; `None` if `when` does not contain it.
fn attribute_name_span(when: &Field<WhenSpec>, name: &str) -> Option<SourceSpan> {
    let WhenSpec(conditions) = when.get()?;
    let mut names = conditions.iter().filter_map(|(name, _)| name.value_and_span());
    names.find(|(own, _)| *own == name).map(|(_, at)| at)
}
