//! Compiles the field `overrides` of a rule, and reports overrides that never apply.

use super::block::KeyBlockLimit;
use super::bounds::MAX_OVERRIDES;
use super::compiler::Compiler;
use super::deserialize::Field;
use super::fields::algorithm_from_field;
use super::limits::CompiledLimit;
use super::rule_context::RuleContext;
use super::spec::{LimitsSpec, OverrideSpec, RuleSpec, WhenSpec};
use crate::algorithm::Algorithm;
use crate::policy::cost::ChargeSettings;
use crate::policy::error::SourceSpan;
use crate::policy::mode::Mode;
use crate::policy::rule::{Override, RuleSettings, When};

impl Compiler<'_> {
    pub(super) fn compile_overrides(
        &mut self,
        spec: &RuleSpec,
        (default_algorithm, mode, charge, block): (
            Algorithm,
            Mode,
            &ChargeSettings,
            Option<&KeyBlockLimit>,
        ),
        rule_when: &When,
        context: &RuleContext<'_>,
    ) -> Vec<Override> {
        let override_specs = spec.overrides.get().map_or(&[][..], |overrides| overrides);
        if override_specs.len() > MAX_OVERRIDES {
            let message = format_args!(
                "too many overrides: {}; the maximum is {MAX_OVERRIDES}",
                override_specs.len()
            );
            self.report(spec.overrides.span(), message);
        }
        let mut overrides: Vec<(Override, SourceSpan)> = Vec::new();
        for override_spec in override_specs.iter().take(MAX_OVERRIDES) {
            let Some((override_spec, at)) = override_spec.value_and_span() else { continue };
            if let Some((name, at)) = override_spec.name.value_and_span() {
                self.report_invalid_name("override", name, at);
            }
            let when = self.compile_override_when_field(override_spec, at, rule_when);
            let same =
                |(other, _): &&(Override, SourceSpan)| !when.0.is_empty() && other.when == when;
            if self.spend_comparison_steps(overrides.len())
                && let Some((_, other)) = overrides.iter().find(same)
            {
                let message = format_args!(
                    "this override never applies, because the override in line {} has the same `when` and comes first; remove one of them",
                    other.line
                );
                self.report(at, message);
            }
            let mut limits =
                self.compile_override_limits(override_spec, at, &spec.limits, default_algorithm);
            self.report_limits_smaller_than_charge(charge, &limits);
            let mode = self.mode_from_field(&override_spec.mode).unwrap_or(mode);
            self.append_key_block_limit(&mut limits, block, mode);
            let settings = RuleSettings { mode, limits: self.add_key_scopes(limits, context, at) };
            let name = override_spec.name.get().map(|name| name.as_str().into());
            overrides.push((Override { name, when, settings }, at));
        }
        overrides.into_iter().map(|(other, _)| other).collect()
    }

    fn compile_override_when_field(
        &mut self,
        spec: &OverrideSpec,
        at: SourceSpan,
        rule_when: &When,
    ) -> When {
        if spec.when.is_absent() {
            self.report(at, "`when` is missing; add it, for example `when: { plan: pro }`");
        }
        let when = self.compile_when_field(&spec.when);
        let conditions = spec.when.get().map_or(&[][..], |WhenSpec(conditions)| conditions);
        for ((attribute, condition), (key, _)) in when.0.iter().zip(conditions) {
            if !self.spend_comparison_steps(rule_when.0.len()) {
                break;
            }
            let same = rule_when.0.iter().find(|(other, _)| other == attribute);
            if let Some((_, expected)) = same
                && self.spend_comparison_steps(
                    condition.literals().len() * (expected.globs().len() + 1),
                )
                && condition.excludes(expected)
            {
                let message = format_args!(
                    "this override never applies, because the rule applies only if `{attribute}` is {expected}; change one of the two conditions"
                );
                self.report(key.span(), message);
            }
        }
        when
    }

    fn compile_override_limits(
        &mut self,
        spec: &OverrideSpec,
        at: SourceSpan,
        rule_limits: &Field<LimitsSpec>,
        default_algorithm: Algorithm,
    ) -> Vec<CompiledLimit> {
        if spec.limits.is_absent() && spec.algorithm.is_absent() && spec.mode.is_absent() {
            let message = "this override changes nothing; add `limits`, `algorithm` or `mode`";
            self.report(at, message);
        }
        if let Some((LimitsSpec::Requested, at)) = spec.limits.value_and_span() {
            self.report(at, "an override cannot have `requested`; write a separate rule with `limits: requested`");
        }
        let has_no_counts =
            matches!(spec.limits.get(), Some(LimitsSpec::Unlimited | LimitsSpec::Denied));
        if has_no_counts && let Some((_, at)) = spec.algorithm.value_and_span() {
            self.report(
                at,
                "`algorithm` has no effect with `unlimited` or `denied`; remove `algorithm`",
            );
        }
        let inherits = spec.limits.is_absent();
        let limits = if inherits { rule_limits } else { &spec.limits };
        let own_algorithm = algorithm_from_field(&spec.algorithm);
        let limits = self.compile_limits(limits, own_algorithm.unwrap_or(default_algorithm));
        let inherited_with = own_algorithm
            .filter(|_| inherits)
            .map(|own_algorithm| (own_algorithm, spec.algorithm.span()));
        self.report_unsupported_limits(&limits, inherited_with);
        limits
    }
}
