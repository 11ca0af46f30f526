//! Compiles the field `when` into conditions on attributes, and reports values that an attribute can never have.

use super::compiler::Compiler;
use super::deserialize::Field;
use super::spec::{ConditionMap, ConditionSpec, WhenSpec};
use crate::host::{is_host_attribute, normalize_host};
use crate::policy::error::SourceSpan;
use crate::policy::normalization::normalize;
use crate::policy::pattern::{Condition, Pattern, PatternError};
use crate::policy::rule::When;

impl Compiler<'_> {
    pub(super) fn compile_when_field(&mut self, when: &Field<WhenSpec>) -> When {
        let Some((WhenSpec(entries), at)) = when.value_and_span() else { return When::default() };
        if entries.is_empty() {
            self.report(at, "`when` is empty; add an attribute and its value, or remove `when`");
        }
        let conditions = entries.iter().filter_map(|(name, condition)| {
            let (name, at) = name.value_and_span()?;
            self.report_invalid_attribute_name(name, at);
            Some((name.as_str().into(), self.compile_condition(name, condition, false)?))
        });
        When(conditions.collect())
    }

    fn compile_condition(
        &mut self,
        attribute: &str,
        condition: &Field<ConditionSpec>,
        negated: bool,
    ) -> Option<Condition> {
        let (spec, at) = condition.value_and_span()?;
        let patterns = match spec {
            ConditionSpec::Map(map) => {
                return self.compile_condition_map(attribute, map, at, negated);
            }
            ConditionSpec::One(text) => {
                self.parse_condition_pattern(attribute, text, at).into_iter().collect()
            }
            ConditionSpec::Any(list) => {
                let values = self.condition_values_from_list(list, at);
                values
                    .filter_map(|(text, at)| self.parse_condition_pattern(attribute, text, at))
                    .collect()
            }
        };
        Some(Condition::new(negated, patterns))
    }

    /// Compiles a condition that is written as `{ not: … }` or `{ literal: […] }`. Returns `None` after an error.
    fn compile_condition_map(
        &mut self,
        attribute: &str,
        map: &ConditionMap,
        at: SourceSpan,
        negated: bool,
    ) -> Option<Condition> {
        match (map.not.is_absent(), map.literal.is_absent()) {
            (false, true) if !negated => self.compile_condition(attribute, &map.not, true),
            (true, false) => {
                let (list, at) = map.literal.value_and_span()?;
                let steps = self.normalizations.steps(&self.domain, attribute).to_vec();
                let literal = |(text, _): (&String, _)| {
                    let text = normalize(&steps, text);
                    if is_host_attribute(attribute) {
                        Pattern::Literal(normalize_host(&text).into())
                    } else {
                        Pattern::Literal(text.into())
                    }
                };
                let values = self.condition_values_from_list(list, at);
                let patterns = values.map(|value| (value.0.as_str(), literal(value)));
                Some(Condition::new(negated, patterns.collect()))
            }
            _ => {
                let message = if negated && map.literal.is_absent() {
                    "`not` inside of `not` is not supported; write the values, for example { not: [a, b] }"
                } else {
                    "a condition has either `not` or `literal`; write for example { not: [a, b] }"
                };
                self.report(at, message);
                None
            }
        }
    }

    /// Returns the valid values of a list in a condition, each with its position. Reports an error if the list is
    /// empty.
    fn condition_values_from_list<'l>(
        &mut self,
        list: &'l [Field<String>],
        at: SourceSpan,
    ) -> impl Iterator<Item = (&'l String, SourceSpan)> + use<'l> {
        if list.is_empty() {
            self.report(at, "the list is empty and matches nothing; add at least one value");
        }
        list.iter().filter_map(Field::value_and_span)
    }

    /// Parses a value of a condition as a pattern. Reports a value that the attribute can never have.
    fn parse_condition_pattern<'t>(
        &mut self,
        attribute: &str,
        text: &'t str,
        at: SourceSpan,
    ) -> Option<(&'t str, Pattern)> {
        let steps = self.normalizations.steps(&self.domain, attribute);
        let pattern = if is_host_attribute(attribute) {
            Pattern::parse_host(text)
        } else {
            Pattern::parse_normalized(text, steps)
        };
        let pattern = self.ok_or_report(at, pattern)?;
        match attribute {
            // A rule with `descriptor` is for Envoy descriptors, in which attributes such as `method` and `path` may
            // have any value.
            _ if self.has_descriptor => {}
            "method" if text.bytes().any(|byte| byte.is_ascii_lowercase()) => {
                let closest_match = text.to_ascii_uppercase();
                let message =
                    format_args!("methods are upper-case; did you mean `{closest_match}`?");
                self.report(at, message);
            }
            "path" if !text.starts_with(['/', '*']) => {
                self.report(at, format_args!("a path begins with `/`; did you mean `/{text}`?"));
            }
            "ip" if matches!(pattern, Pattern::Literal(_)) => {
                let message = format_args!(
                    "`{text}` is not an address or a network; write for example 192.0.2.7 or 10.0.0.0/8"
                );
                self.report(at, message);
            }
            "host" | "header.host"
                if text.contains('/') && !matches!(pattern, Pattern::Network(_)) =>
            {
                self.report(at, PatternError::Host(text.to_owned()));
            }
            "route" => self.report_unlisted_route(text, &pattern, at),
            _ => {}
        }
        Some((text, pattern))
    }
}
