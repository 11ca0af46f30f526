//! Compiles the field `normalize`, and reports names that no rule uses and routes that no normalized path matches.

use std::collections::BTreeSet;

use super::compiler::Compiler;
use super::deserialize::Field;
use super::spec::{AttributeSteps, NormalizeSpec};
use super::suggest::format_did_you_mean;
use crate::policy::error::SourceSpan;
use crate::policy::normalization::{Normalizations, NormalizeStep, normalize};
use crate::policy::rule::Rule;

impl Compiler<'_> {
    /// Compiles the field `normalize`. Its attributes and domains are checked later, when the rules are known, by
    /// [`report_unused_normalizations`](Self::report_unused_normalizations).
    pub(super) fn compile_normalizations(
        &mut self,
        field: &Field<NormalizeSpec>,
    ) -> Normalizations {
        let mut normalizations = Normalizations::default();
        let Some((spec, field_at)) = field.value_and_span() else { return normalizations };
        if spec.is_empty() {
            let message = "`normalize` is empty; add an attribute with its steps, or remove it";
            self.report(field_at, message);
        }
        for AttributeSteps { domain, attribute, steps, at } in spec.attribute_steps() {
            if steps.is_empty() {
                self.report(at, "the list is empty; add a step, for example `lowercase`");
            }
            let Some(attribute) = attribute.get() else { continue };
            let by_attribute = match domain.map(Field::get) {
                None => &mut normalizations.for_all_domains,
                Some(Some(domain)) => {
                    normalizations.by_domain.entry(domain.as_str().into()).or_default()
                }
                Some(None) => continue,
            };
            let steps = steps.iter().filter_map(Field::get).copied().collect();
            by_attribute.insert(attribute.as_str().into(), steps);
        }
        self.report_unmatched_routes(&normalizations, field_at);
        normalizations
    }

    /// Reports each route template that no path matches after the path is normalized by the steps for all domains.
    fn report_unmatched_routes(&mut self, normalizations: &Normalizations, at: SourceSpan) {
        let Some(steps) = normalizations.for_all_domains.get("path") else { return };
        let routes = std::mem::take(&mut self.routes);
        for template in routes.templates() {
            let normalized = normalize_template(steps, template);
            if normalized != template {
                let message = format_args!(
                    "the route `{template}` matches no normalized `path`; write it as `{normalized}`"
                );
                self.report(at, message);
            }
        }
        self.routes = routes;
    }

    /// Reports attributes in `normalize` that no rule uses, and domains in `normalize` that have no rules.
    pub(super) fn report_unused_normalizations(
        &mut self,
        field: &Field<NormalizeSpec>,
        rules: &[Rule],
    ) {
        let Some(spec) = field.get() else { return };
        let domains: BTreeSet<&str> = rules.iter().map(Rule::domain).collect();
        for (domain, at) in spec.domains() {
            if !domains.contains(domain) {
                self.report_domain_without_rules(domain, at, &domains);
            }
        }
        for AttributeSteps { domain, attribute, .. } in spec.attribute_steps() {
            let domain = domain.and_then(Field::get);
            let rules = rules.iter().filter(|rule| domain.is_none_or(|name| rule.domain() == name));
            if rules.clone().next().is_none() || rules.clone().any(Rule::is_for_requested_limits) {
                continue;
            }
            let mut used: BTreeSet<&str> =
                rules.flat_map(|rule| &*rule.attribute_names).map(|name| &**name).collect();
            if used.contains("route") {
                // A rule that uses `route` also uses `path`, from which the route results.
                used.insert("path");
            }
            if let Some((name, at)) =
                attribute.value_and_span().filter(|(n, _)| !used.contains(&***n))
            {
                let mut remedy = format_did_you_mean(name, used.iter().copied());
                if remedy.is_empty() {
                    remedy.push_str("; correct the name, or remove it");
                }
                self.report(at, format_args!("no rule uses the attribute `{name}`{remedy}"));
            }
        }
    }
}

/// Applies steps to a route template, but not to the names of its parameters.
fn normalize_template(steps: &[NormalizeStep], template: &str) -> String {
    let mut normalized = String::new();
    // Each part is the text before a parameter, or a parameter with its closing bracket.
    for part in template.split_inclusive('}').flat_map(|part| match part.find('{') {
        Some(start) => [&part[..start], &part[start..]],
        None => [part, ""],
    }) {
        if part.starts_with('{') {
            normalized.push_str(part);
        } else {
            let lower = [NormalizeStep::Lowercase];
            let has_lower = steps.contains(&NormalizeStep::Lowercase);
            normalized.push_str(&normalize(if has_lower { &lower } else { &[] }, part));
        }
    }
    let others: Vec<_> =
        steps.iter().copied().filter(|step| *step != NormalizeStep::Lowercase).collect();
    normalize(&others, &normalized).into_owned()
}
