//! Compiles the fields of a rule for Envoy descriptors: `descriptor`, `replaces` and `limits: requested`.

use std::collections::{HashMap, HashSet};

use super::bounds::{MAX_DESCRIPTOR_ATTRIBUTES, MAX_REPLACED_RULES};
use super::compiler::Compiler;
use super::deserialize::Field;
use super::spec::{LimitsSpec, PolicySpec, RuleSpec};
use super::suggest::format_did_you_mean;
use crate::algorithm::Algorithm;
use crate::limit::Limit;
use crate::policy::error::SourceSpan;
use crate::policy::per::Per;
use crate::policy::redis::RuleRedisOptions;
use crate::policy::rule::{Override, Rule, When};
use crate::quota::Quota;

/// The compiled fields of a rule in which attribute names occur, from which the list of all names is built.
pub(super) struct FieldsWithAttributeNames<'n> {
    pub(super) when: &'n When,
    pub(super) per: &'n Per,
    pub(super) overrides: &'n [Override],
    pub(super) redis: Option<&'n RuleRedisOptions>,
}

impl FieldsWithAttributeNames<'_> {
    /// Returns the names of all attributes in these fields and in `descriptor`, sorted and without duplicates.
    pub(super) fn sorted_attribute_names(
        &self,
        descriptor: Option<&[Box<str>]>,
    ) -> Box<[Box<str>]> {
        let when_names =
            |when: &When| when.0.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        let mut names = when_names(self.when);
        names.extend(
            self.overrides.iter().flat_map(|rule_override| when_names(&rule_override.when)),
        );
        names.extend(self.per.entries().iter().flat_map(|entry| entry.names()).map(Into::into));
        names.extend(self.redis.iter().flat_map(|redis| redis.split_by.iter().cloned()));
        names.extend(descriptor.iter().flat_map(|names| names.iter().cloned()));
        names.sort_unstable();
        names.dedup();
        names.into()
    }
}

impl Compiler<'_> {
    /// Compiles the field `descriptor`: the names that the attributes of a descriptor must have. Returns `None` if it
    /// is absent, or after an error.
    pub(super) fn compile_descriptor_names(&mut self, spec: &RuleSpec) -> Option<Box<[Box<str>]>> {
        let (names, at) = spec.descriptor.value_and_span()?;
        if names.is_empty() || names.len() > MAX_DESCRIPTOR_ATTRIBUTES {
            self.report(
                at,
                format_args!(
                    "`descriptor` lists {} attributes; list 1 to {MAX_DESCRIPTOR_ATTRIBUTES}",
                    names.len()
                ),
            );
            return None;
        }
        let mut occurrences: HashMap<&str, usize> = HashMap::new();
        for (name, at) in names.iter().filter_map(Field::value_and_span) {
            self.report_invalid_attribute_name(name, at);
            let count = occurrences.entry(name).or_default();
            *count += 1;
            if *count > 1 {
                let message = format_args!(
                    "`{name}` is listed twice in `descriptor`; write `{name}#2` for the second one"
                );
                self.report(at, message);
            }
        }
        self.report_attributes_outside_descriptor(spec, &occurrences.into_keys().collect());
        Some(names.iter().filter_map(Field::get).map(|name| name.as_str().into()).collect())
    }

    /// Reports each attribute in `when` or `per` that the field `descriptor` does not list. A rule with such an
    /// attribute would never apply. `known` are the names in `descriptor`.
    fn report_attributes_outside_descriptor(&mut self, spec: &RuleSpec, known: &HashSet<&str>) {
        let when_names = spec.when.get().into_iter().flat_map(|when| &when.0);
        let per_entries = spec.per.get().into_iter().flatten().filter_map(Field::value_and_span);
        let single_names = per_entries.filter(|(text, _)| !text.contains('|'));
        let required = when_names.filter_map(|(name, _)| name.value_and_span()).chain(single_names);
        for (name, at) in required {
            let is_route_of_path = name == "route" && known.contains("path");
            if !known.contains(name.trim()) && !is_route_of_path {
                let mut remedy = format_did_you_mean(name, known.iter().copied());
                if remedy.is_empty() {
                    remedy.push_str("; add it there, or remove it here");
                }
                let message = format_args!(
                    "this rule never applies, because `{name}` is not listed in `descriptor`{remedy}"
                );
                self.report(at, message);
            }
        }
    }

    /// Returns `true` if the rule has `limits: requested`, so that it enforces limits that descriptors contain. Reports
    /// fields that such a rule cannot have.
    pub(super) fn validate_requested_limits_rule(
        &mut self,
        spec: &RuleSpec,
        algorithm: Algorithm,
        at: SourceSpan,
    ) -> bool {
        let is_requested = matches!(spec.limits.get(), Some(LimitsSpec::Requested));
        let fields = [
            ("when", spec.when.is_absent()),
            ("per", spec.per.is_absent()),
            ("descriptor", spec.descriptor.is_absent()),
            ("overrides", spec.overrides.is_absent()),
            ("redis", spec.redis.is_absent()),
        ];
        if is_requested && let Some((field, _)) = fields.iter().find(|(_, is_absent)| !is_absent) {
            let message = format_args!(
                "a rule with `limits: requested` applies to every descriptor that contains a limit, in place of all other rules, and counts by all of its attributes; remove `{field}`"
            );
            self.report(at, message);
        }
        // The quotas that descriptors will contain are not known, but any quota shows whether the store supports the
        // algorithm.
        if is_requested && let Ok(limit) = Limit::new(Quota::from_parts(1, 1_000_000), algorithm) {
            let at =
                if spec.algorithm.is_absent() { spec.limits.span() } else { spec.algorithm.span() };
            self.report_unsupported_limit(&limit, at);
        }
        is_requested
    }

    /// Sets `replaces` of each rule: the indexes of the rules whose names the field lists. Reports names without a
    /// rule.
    pub(super) fn set_replaced_rule_indexes(&mut self, spec: &PolicySpec, rules: &mut [Rule]) {
        let rule_specs = spec.rules.get().into_iter().flatten().filter_map(Field::get);
        if rule_specs.clone().all(|rule| rule.replaces.is_absent()) {
            return;
        }
        let index_by_name: HashMap<(Box<str>, Box<str>), u32> = (0..)
            .zip(&*rules)
            .map(|(index, rule)| ((rule.domain.clone(), rule.name.clone()), index))
            .collect();
        for (rule_index, (rule, spec)) in (0..).zip(rules.iter_mut().zip(rule_specs)) {
            let Some((names, at)) = spec.replaces.value_and_span() else { continue };
            if names.is_empty() || names.len() > MAX_REPLACED_RULES {
                let message = format_args!(
                    "`replaces` lists {} rules; list 1 to {MAX_REPLACED_RULES}",
                    names.len()
                );
                self.report(at, message);
                continue;
            }
            let names = names.iter().filter_map(Field::value_and_span);
            let replaced = names.filter_map(|(name, at)| {
                let index = index_by_name.get(&(rule.domain.clone(), name.as_str().into()));
                match index {
                    Some(&index) if index == rule_index => {
                        self.report(at, "a rule cannot replace itself; remove it from `replaces`")
                    }
                    Some(&index) => return Some(index),
                    None => self.report_unknown_rule(name, &rule.domain, at, index_by_name.keys()),
                }
                None
            });
            rule.replaces = replaced.collect();
        }
    }

    fn report_unknown_rule<'k>(
        &mut self,
        name: &str,
        domain: &str,
        at: SourceSpan,
        known: impl ExactSizeIterator<Item = &'k (Box<str>, Box<str>)>,
    ) {
        let rule_count = known.len();
        let names =
            known.filter(|(other_domain, _)| **other_domain == *domain).map(|(_, name)| &**name);
        let mut remedy = if self.spend_comparison_steps(rule_count.saturating_mul(name.len())) {
            format_did_you_mean(name, names)
        } else {
            String::new()
        };
        if remedy.is_empty() {
            remedy.push_str("; write the name of a rule of this domain");
        }
        self.report(at, format_args!("unknown rule `{name}` in domain `{domain}`{remedy}"));
    }

    /// Reports each rule with `limits: requested` in a domain that already has such a rule.
    pub(super) fn report_second_requested_limits_rule(
        &mut self,
        spec: &PolicySpec,
        rules: &[Rule],
    ) {
        let rule_specs = spec.rules.get().into_iter().flatten().filter_map(Field::value_and_span);
        let mut seen_domains = HashSet::new();
        for (rule, (spec, _)) in rules.iter().zip(rule_specs) {
            if rule.is_for_requested_limits && !seen_domains.insert(&rule.domain) {
                let message = format_args!(
                    "domain `{}` already has a rule with `limits: requested`; remove one of them",
                    rule.domain
                );
                self.report(spec.limits.span(), message);
            }
        }
    }
}
