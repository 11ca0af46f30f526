//! Compiles the field `attributes`, which declares the attributes that rules may use, and reports other attributes.

use std::collections::{BTreeSet, HashSet};

use super::bounds::MAX_DECLARED_ATTRIBUTES;
use super::compiler::Compiler;
use super::deserialize::Field;
use super::spec::{AttributesSpec, PolicySpec, RuleSpec, WhenSpec};
use super::suggest::format_did_you_mean;
use crate::key::DEFAULT_DOMAIN;
use crate::policy::NameMap;
use crate::policy::declared_attributes::DeclaredAttributes;
use crate::policy::error::SourceSpan;
use crate::policy::rule::Rule;

impl Compiler<'_> {
    /// Compiles the field `attributes`. Reports names that are invalid or listed twice, and domains without rules.
    pub(super) fn compile_declared_attributes(
        &mut self,
        spec: &PolicySpec,
        rules: &[Rule],
    ) -> DeclaredAttributes {
        match spec.attributes.value_and_span() {
            None => DeclaredAttributes::Undeclared,
            Some((AttributesSpec::All(names), at)) => {
                DeclaredAttributes::ForAllDomains(self.compile_attribute_names(names, at))
            }
            Some((AttributesSpec::ByDomain(domains), _)) => {
                let with_rules: BTreeSet<&str> = rules.iter().map(Rule::domain).collect();
                let mut by_domain = NameMap::default();
                for (domain, names) in domains {
                    if let Some((domain, at)) = domain.value_and_span()
                        && !with_rules.contains(&**domain)
                    {
                        self.report_domain_without_rules(domain, at, &with_rules);
                    }
                    if let (Some(domain), Some((names, at))) =
                        (domain.get(), names.value_and_span())
                    {
                        let names = self.compile_attribute_names(names, at);
                        by_domain.insert(domain.as_str().into(), names);
                    }
                }
                DeclaredAttributes::ByDomain(by_domain)
            }
        }
    }

    fn compile_attribute_names(
        &mut self,
        names: &[Field<String>],
        at: SourceSpan,
    ) -> Box<[Box<str>]> {
        if names.len() > MAX_DECLARED_ATTRIBUTES {
            let message = format_args!(
                "too many attributes: {}; the maximum is {MAX_DECLARED_ATTRIBUTES}",
                names.len()
            );
            self.report(at, message);
        }
        let mut seen = HashSet::new();
        let names = names.iter().take(MAX_DECLARED_ATTRIBUTES).filter_map(Field::value_and_span);
        let names = names.map(|(name, at)| {
            self.report_invalid_attribute_name(name, at);
            if !seen.insert(name) {
                let message = format_args!("`{name}` is listed twice in `attributes`; remove one");
                self.report(at, message);
            }
            name.as_str().into()
        });
        names.collect()
    }

    pub(super) fn report_domain_without_rules(
        &mut self,
        domain: &str,
        at: SourceSpan,
        with_rules: &BTreeSet<&str>,
    ) {
        let mut remedy = if self.spend_suggestion_steps(domain, with_rules.iter().copied()) {
            format_did_you_mean(domain, with_rules.iter().copied())
        } else {
            String::new()
        };
        if remedy.is_empty() {
            remedy.push_str("; write the domain of a rule, or remove it");
        }
        self.report(at, format_args!("no rule has the domain `{domain}`{remedy}"));
    }

    /// Reports each attribute of a rule that the policy does not declare, if it declares attributes for the domain.
    pub(super) fn report_undeclared_attributes(
        &mut self,
        spec: &PolicySpec,
        declared: &DeclaredAttributes,
    ) {
        for rule in spec.rules.get().into_iter().flatten().filter_map(Field::get) {
            let domain = rule.domain.get().map_or(DEFAULT_DOMAIN, |domain| domain);
            let Some(declared) = declared.names_for_domain(domain) else { continue };
            let mut known: BTreeSet<&str> = declared.iter().map(|name| &**name).collect();
            if known.contains("path") {
                // A declaration of `path` also declares `route`, which results from the path.
                known.insert("route");
            }
            for (name, at) in attribute_names_in(rule) {
                if known.contains(name) || known.contains(name_without_number_suffix(name)) {
                    continue;
                }
                let mut remedy = if self.spend_suggestion_steps(name, known.iter().copied()) {
                    format_did_you_mean(name, known.iter().copied())
                } else {
                    String::new()
                };
                if remedy.is_empty() {
                    remedy.push_str("; add it there, or correct the name");
                }
                self.report(at, format_args!("`{name}` is not listed in `attributes`{remedy}"));
            }
        }
    }

    /// Subtracts the steps that a search for a correction of `name` takes from the remaining comparison steps. Returns
    /// `false`, and subtracts nothing, if fewer steps remain.
    fn spend_suggestion_steps<'n>(
        &mut self,
        name: &str,
        known: impl Iterator<Item = &'n str>,
    ) -> bool {
        let bytes: usize = known.map(str::len).sum();
        self.spend_comparison_steps(name.len().saturating_mul(bytes))
    }
}

/// Returns the name of each attribute in the fields of a rule, with its position. A name can occur several times. The
/// field `redis.slot_by` is left out, because it repeats entries of `per`.
pub(super) fn attribute_names_in(rule: &RuleSpec) -> impl Iterator<Item = (&str, SourceSpan)> {
    let overrides = rule.overrides.get().into_iter().flatten().filter_map(Field::get);
    let whens = [&rule.when].into_iter().chain(overrides.map(|one| &one.when));
    let conditions = whens.filter_map(Field::get).flat_map(|WhenSpec(conditions)| conditions);
    let in_conditions = conditions.map(|(name, _)| name);
    let split = rule.redis.get().and_then(|redis| redis.split.get());
    let split_by = split.and_then(|split| split.by.get()).into_iter().flatten();
    let descriptor = rule.descriptor.get().into_iter().flatten();
    let single = in_conditions.chain(descriptor).chain(split_by).filter_map(Field::value_and_span);
    let per = rule.per.get().into_iter().flatten().filter_map(Field::value_and_span);
    let per_names = per.flat_map(|(entry, at)| entry.split('|').map(move |name| (name.trim(), at)));
    single.map(|(name, at)| (name.as_str(), at)).chain(per_names)
}

/// Returns an attribute name without a suffix such as `#2`. In a descriptor, the suffix distinguishes attributes with
/// the same name: the second `key` is `key#2`.
pub(super) fn name_without_number_suffix(name: &str) -> &str {
    match name.rsplit_once('#') {
        Some((base, number))
            if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) =>
        {
            base
        }
        _ => name,
    }
}
