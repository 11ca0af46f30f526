//! Compiles the deserialized specs of a policy file into rules, and reports every error.
//!
//! Other files of this folder add methods to [`Compiler`] that compile parts of a rule.

use std::collections::{HashMap, HashSet};

use super::bounds::{
    MAX_DOMAIN_LIMITS, MAX_KEY_ATTRIBUTE_COMBINATIONS, MAX_PER_ENTRIES, MAX_ROUTES, MAX_RULES,
};
use super::compiler::Compiler;
use super::descriptor::FieldsWithAttributeNames;
use super::deserialize::Field;
use super::fields::algorithm_from_field;
use super::rule_context::RuleContext;
use super::spec::{DefaultsSpec, PolicySpec, RuleSpec};
use crate::algorithm::Algorithm;
use crate::on_store_error::OnStoreError;
use crate::policy::declared_attributes::DeclaredAttributes;
use crate::policy::error::SourceSpan;
use crate::policy::mode::{Mode, WhenMissing};
use crate::policy::normalization::Normalizations;
use crate::policy::per::Per;
use crate::policy::route::Routes;
use crate::policy::rule::{Rule, RuleSettings};
use crate::rule_limit::RuleLimit;

/// The version of the policy language that the field `version` of a policy must contain.
const POLICY_VERSION: u64 = 1;

/// The default prefix length of IPv6 addresses, in bits. Addresses with the same prefix share a counter. A network of
/// this size is commonly assigned to one site.
const DEFAULT_IPV6_PREFIX_BITS: u8 = 64;

/// The default settings of a policy, for rules that do not specify these settings.
#[derive(Clone, Copy, Default)]
struct RuleDefaults {
    algorithm: Algorithm,
    when_missing: WhenMissing,
    mode: Mode,
    required: Option<u64>,
    on_store_error: OnStoreError,
    ipv6_prefix: Option<u8>,
}

impl Compiler<'_> {
    /// Compiles the rules, the routes, the declared attributes and the normalizations of a policy. The result is usable
    /// only if no error was reported.
    pub(super) fn compile_policy(
        &mut self,
        spec: &PolicySpec,
        at: SourceSpan,
    ) -> (Vec<Rule>, Routes, DeclaredAttributes, Normalizations) {
        if let Some((version, at)) =
            spec.version.value_and_span().filter(|(version, _)| **version != POLICY_VERSION)
        {
            let message =
                format_args!("unknown version {version}; write `version: {POLICY_VERSION}`");
            self.report(at, message);
        }
        let templates = spec.routes.get().map_or(&[][..], |routes| routes);
        if templates.len() > MAX_ROUTES {
            let message =
                format_args!("too many routes: {}; the maximum is {MAX_ROUTES}", templates.len());
            self.report(spec.routes.span(), message);
        }
        for route in templates.iter().take(MAX_ROUTES) {
            if let Some((template, at)) = route.value_and_span() {
                let added = self.routes.add_template(template);
                self.ok_or_report(at, added);
            }
        }
        self.normalizations = self.compile_normalizations(&spec.normalize);
        let defaults = spec
            .defaults
            .get()
            .map_or_else(RuleDefaults::default, |defaults| self.compile_rule_defaults(defaults));
        if spec.rules.is_absent() {
            self.report(at, "`rules` is missing; add `rules:` with a list of rules");
        }
        let rule_specs = spec.rules.get().map_or(&[][..], |rules| rules);
        if rule_specs.len() > MAX_RULES {
            let message =
                format_args!("too many rules: {}; the maximum is {MAX_RULES}", rule_specs.len());
            self.report(spec.rules.span(), message);
        }
        let (mut names, mut domain_limits) = (HashMap::new(), HashMap::new());
        let rules = rule_specs.iter().take(MAX_RULES).filter_map(|rule| {
            let (spec, at) = rule.value_and_span()?;
            let rule = self.compile_rule(spec, at, &defaults, &mut names);
            self.check_domain_limits(&rule, at, &mut domain_limits);
            Some(rule)
        });
        let mut rules: Vec<Rule> = rules.collect();
        self.set_replaced_rule_indexes(spec, &mut rules);
        self.report_second_requested_limits_rule(spec, &rules);
        let declared = self.compile_declared_attributes(spec, &rules);
        self.report_undeclared_attributes(spec, &declared);
        self.report_unused_normalizations(&spec.normalize, &rules);
        let normalizations = std::mem::take(&mut self.normalizations);
        (rules, std::mem::take(&mut self.routes), declared, normalizations)
    }

    /// Adds the number of limits of a rule to the sum of its domain in `domain_limits`. Reports an error if this
    /// addition raises the sum above [`MAX_DOMAIN_LIMITS`].
    fn check_domain_limits(
        &mut self,
        rule: &Rule,
        at: SourceSpan,
        domain_limits: &mut HashMap<Box<str>, usize>,
    ) {
        let overrides =
            rule.overrides().iter().map(|rule_override| rule_override.settings().limits().len());
        let max_limits =
            overrides.chain([rule.settings().limits().len()]).max().unwrap_or_default();
        let sum = domain_limits.entry(rule.domain().into()).or_default();
        let previous = *sum;
        *sum += max_limits;
        if previous <= MAX_DOMAIN_LIMITS && *sum > MAX_DOMAIN_LIMITS {
            let message = format_args!(
                "too many limits in domain `{}`; the maximum for all of its rules is {MAX_DOMAIN_LIMITS}, so move some rules to another `domain`",
                rule.domain()
            );
            self.report(at, message);
        }
    }

    fn compile_rule_defaults(&mut self, spec: &DefaultsSpec) -> RuleDefaults {
        RuleDefaults {
            algorithm: algorithm_from_field(&spec.algorithm).unwrap_or_default(),
            when_missing: spec.when_missing.get().copied().unwrap_or_default(),
            mode: self.mode_from_field(&spec.mode).unwrap_or_default(),
            required: self.units_from_field(&spec.required),
            on_store_error: spec.on_store_error.get().copied().unwrap_or_default(),
            ipv6_prefix: self.ipv6_prefix_from_field(&spec.ipv6_prefix),
        }
    }

    fn compile_rule<'f>(
        &mut self,
        spec: &'f RuleSpec,
        at: SourceSpan,
        defaults: &RuleDefaults,
        names: &mut HashMap<(&'f str, &'f str), SourceSpan>,
    ) -> Rule {
        self.has_descriptor = !spec.descriptor.is_absent();
        let domain = self.domain_from_field(&spec.domain);
        self.domain = domain.into();
        let name = self.validate_rule_name(&spec.name, at, domain, names);
        let per = self.compile_per_field(spec, defaults);
        let when = self.compile_when_field(&spec.when);
        let mode = self.mode_from_field(&spec.mode).unwrap_or(defaults.mode);
        let default_algorithm = algorithm_from_field(&spec.algorithm).unwrap_or(defaults.algorithm);
        let combinations =
            per.entries().iter().map(|alternatives| alternatives.names().count()).product();
        let redis = self.compile_redis_options(spec, &per);
        let cluster = self.compile_cluster_options(spec);
        let context = RuleContext {
            domain,
            rule: name,
            per: &per,
            combinations,
            redis: redis.as_ref(),
            cluster,
        };
        if spec.limits.is_absent() {
            self.report(at, "`limits` is missing; add it, for example `limits: [100/min]`");
        }
        let charge = self.compile_charge_settings(spec, defaults.required);
        let mut limits = self.compile_limits(&spec.limits, default_algorithm);
        self.report_unsupported_limits(&limits, None);
        self.report_limits_smaller_than_charge(&charge, &limits);
        let block = self.compile_key_block(spec);
        self.append_key_block_limit(&mut limits, block.as_ref(), mode);
        let settings = RuleSettings { mode, limits: self.add_key_scopes(limits, &context, at) };
        let overrides = self.compile_overrides(
            spec,
            (default_algorithm, mode, &charge, block.as_ref()),
            &when,
            &context,
        );
        let modes = [mode]
            .into_iter()
            .chain(overrides.iter().map(|rule_override| rule_override.settings.mode));
        self.report_key_percentage_without_per(spec, at, modes, &per);
        let missing = self.compile_missing_attribute_limit(spec, defaults, &context);
        let descriptor = self.compile_descriptor_names(spec);
        let named = FieldsWithAttributeNames {
            when: &when,
            per: &per,
            overrides: &overrides,
            redis: redis.as_ref(),
        };
        let attribute_names = named.sorted_attribute_names(descriptor.as_deref());
        Rule {
            normalized: self.normalizations.steps_by_attribute(domain, &attribute_names),
            attribute_names,
            descriptor,
            replaces: Box::default(),
            is_for_requested_limits: self.validate_requested_limits_rule(
                spec,
                default_algorithm,
                at,
            ),
            algorithm: default_algorithm,
            identity_scopes: context.key_scopes("", None),
            name: name.into(),
            domain: domain.into(),
            when,
            on_store_error: spec.on_store_error.get().copied().unwrap_or(defaults.on_store_error),
            charge,
            deny_status: self.deny_status_from_field(&spec.deny_status),
            problem: spec.problem.get().copied().unwrap_or_default(),
            is_in_headers: spec.headers.get().copied().unwrap_or(true),
            settings,
            overrides: overrides.into(),
            missing,
            redis: redis.map(Box::new),
            cluster,
            per,
        }
    }

    /// Returns the name of a rule. Reports a missing or invalid name, and a name that another rule of the domain has.
    fn validate_rule_name<'f>(
        &mut self,
        name: &'f Field<String>,
        rule_at: SourceSpan,
        domain: &'f str,
        names: &mut HashMap<(&'f str, &'f str), SourceSpan>,
    ) -> &'f str {
        let Some((text, at)) = name.value_and_span() else {
            if name.is_absent() {
                self.report(rule_at, "`name` is missing; add it, for example `name: per-client`");
            }
            return "";
        };
        self.report_invalid_name("rule", text, at);
        if let Some(other) = names.insert((domain, text), at) {
            let message = format_args!(
                "rule `{text}` already exists in domain `{domain}`, in line {}; choose another name",
                other.line
            );
            self.report(at, message);
        }
        text
    }

    /// Compiles the field `per` of a rule into the attributes by which the rule counts.
    fn compile_per_field(&mut self, spec: &RuleSpec, defaults: &RuleDefaults) -> Per {
        let mut entries: Vec<Vec<Box<str>>> = Vec::new();
        let mut seen = HashSet::new();
        for entry in spec.per.get().into_iter().flatten() {
            let Some((text, at)) = entry.value_and_span() else { continue };
            let names = text.split('|').map(str::trim);
            for name in names.clone() {
                self.report_invalid_attribute_name(name, at);
                if !seen.insert(name) {
                    self.report(at, format_args!("`{name}` is listed twice in `per`; remove one"));
                }
            }
            entries.push(names.map(Into::into).collect());
        }
        let combinations =
            entries.iter().try_fold(1usize, |all, names| all.checked_mul(names.len()));
        if entries.len() > MAX_PER_ENTRIES {
            self.report(
                spec.per.span(),
                format_args!(
                    "too many attributes in `per`: {}; the maximum is {MAX_PER_ENTRIES}",
                    entries.len()
                ),
            );
            entries.clear();
        } else if combinations.is_none_or(|all| all > MAX_KEY_ATTRIBUTE_COMBINATIONS) {
            let message = format_args!(
                "too many combinations of names in `per`; the maximum is {MAX_KEY_ATTRIBUTE_COMBINATIONS} (`[a|b, c|d]` has four)"
            );
            self.report(spec.per.span(), message);
            entries.clear();
        }
        let prefix = self.ipv6_prefix_from_field(&spec.ipv6_prefix).or(defaults.ipv6_prefix);
        Per::new(entries, prefix.unwrap_or(DEFAULT_IPV6_PREFIX_BITS))
    }

    /// Reports an error if a rule without `per` has `mode: { enforce: … }`. Such a rule has only one key, so no
    /// percentage of its keys can be selected.
    fn report_key_percentage_without_per(
        &mut self,
        spec: &RuleSpec,
        at: SourceSpan,
        mut modes: impl Iterator<Item = Mode>,
        per: &Per,
    ) {
        let has_no_key = per.entries().is_empty() && spec.per.get().is_none_or(Vec::is_empty);
        if has_no_key && modes.any(|mode| matches!(mode, Mode::EnforceFor(_))) {
            let at = if spec.mode.is_absent() { at } else { spec.mode.span() };
            self.report(
                at,
                "{ enforce: … } selects a percentage of the keys, but without `per` the rule has only one key; add `per`",
            );
        }
    }

    fn compile_missing_attribute_limit(
        &mut self,
        spec: &RuleSpec,
        defaults: &RuleDefaults,
        context: &RuleContext<'_>,
    ) -> Option<RuleLimit> {
        let when_missing = spec.when_missing.get().copied().unwrap_or(defaults.when_missing);
        let has_no_per = context.per.entries().is_empty() && spec.per.is_absent();
        if has_no_per && spec.when_missing.get() == Some(&WhenMissing::Deny) {
            let message =
                "`when_missing` has no effect without `per`; add `per`, or remove `when_missing`";
            self.report(spec.when_missing.span(), message);
        }
        (when_missing == WhenMissing::Deny && !has_no_per)
            .then(|| context.new_missing_attribute_limit())
    }
}
