//! Makes overrides of what a policy file says of them.

use super::compile::{Compiler, algorithm};
use super::deserialize::Field;
use super::limits::Counted;
use super::rule_context::RuleContext;
use super::spec::{LimitsSpec, OverrideSpec, RuleSpec, WhenSpec};
use super::{MAX_OVERRIDES, SourceSpan};
use crate::algorithm::Algorithm;
use crate::policy::ChargeSettings;
use crate::policy::mode::Mode;
use crate::policy::rule::{Override, RuleSettings, When};

impl Compiler<'_> {
    pub(super) fn overrides(
        &mut self,
        entry: &RuleSpec,
        (by_default, mode, charge): (Algorithm, Mode, &ChargeSettings),
        rule_when: &When,
        context: &RuleContext<'_>,
    ) -> Vec<Override> {
        let entries = entry.overrides.get().map_or(&[][..], |overrides| overrides);
        if entries.len() > MAX_OVERRIDES {
            self.wrong(entry.overrides.place(), format_args!("at most {MAX_OVERRIDES} overrides"));
        }
        let mut overrides: Vec<(Override, SourceSpan)> = Vec::new();
        for entry_of in entries.iter().take(MAX_OVERRIDES) {
            let Some((own, at)) = entry_of.given() else { continue };
            if let Some((name, at)) = own.name.given() {
                self.name("override", name, at);
            }
            let when = self.override_when(own, at, rule_when);
            let same =
                |(other, _): &&(Override, SourceSpan)| !when.0.is_empty() && other.when == when;
            if self.has_patience(overrides.len())
                && let Some((_, other)) = overrides.iter().find(same)
            {
                let message = format_args!(
                    "never holds: the override in line {} has the same `when`, and the first that matches holds",
                    other.line
                );
                self.wrong(at, message);
            }
            let limits = self.override_limits(own, at, &entry.limits, by_default);
            self.charge_fits(charge, &limits);
            let mode = self.mode(&own.mode).unwrap_or(mode);
            let settings = RuleSettings { mode, limits: self.rule_limits(limits, context, at) };
            let name = own.name.get().map(|name| name.as_str().into());
            overrides.push((Override { name, when, settings }, at));
        }
        overrides.into_iter().map(|(other, _)| other).collect()
    }

    fn override_when(&mut self, own: &OverrideSpec, at: SourceSpan, rule_when: &When) -> When {
        if own.when.is_absent() {
            self.wrong(at, "an override needs `when`, for example `when: { plan: pro }`");
        }
        let when = self.when(&own.when);
        let conditions = own.when.get().map_or(&[][..], |WhenSpec(conditions)| conditions);
        for ((attribute, condition), (key, _)) in when.0.iter().zip(conditions) {
            if !self.has_patience(rule_when.0.len()) {
                break;
            }
            let same = rule_when.0.iter().find(|(other, _)| other == attribute);
            if let Some((_, wanted)) = same
                && self.has_patience(condition.literals().len() * (wanted.globs().len() + 1))
                && condition.excludes(wanted)
            {
                let message = format_args!(
                    "never holds: the rule itself is only for requests whose `{attribute}` is {wanted}"
                );
                self.wrong(key.place(), message);
            }
        }
        when
    }

    fn override_limits(
        &mut self,
        own: &OverrideSpec,
        at: SourceSpan,
        of_rule: &Field<LimitsSpec>,
        by_default: Algorithm,
    ) -> Vec<Counted> {
        if own.limits.is_absent() && own.algorithm.is_absent() && own.mode.is_absent() {
            let message = "an override changes something: give it `limits`, `algorithm` or `mode`";
            self.wrong(at, message);
        }
        if let Some((LimitsSpec::Requested, at)) = own.limits.given() {
            self.wrong(at, "`requested` is for a whole rule: give it a rule of its own");
        }
        let words = matches!(own.limits.get(), Some(LimitsSpec::Unlimited | LimitsSpec::Denied));
        if words && let Some((_, at)) = own.algorithm.given() {
            self.wrong(at, "there is nothing to count here: leave `algorithm` out");
        }
        let inherits = own.limits.is_absent();
        let limits = if inherits { of_rule } else { &own.limits };
        let said = algorithm(&own.algorithm);
        let limits = self.limits(limits, said.unwrap_or(by_default));
        let said_here = said.filter(|_| inherits).map(|said| (said, own.algorithm.place()));
        self.supported(&limits, said_here);
        limits
    }
}
