//! Makes conditions of what a policy file says, and finds those that can never be met.

use super::SourceSpan;
use super::compile::Compiler;
use super::deserialize::Field;
use super::spec::{ConditionMap, ConditionSpec, WhenSpec};
use crate::host::{is_host_attribute, normal_host};
use crate::policy::pattern::{Condition, Pattern, PatternError};
use crate::policy::rule::When;

impl Compiler<'_> {
    pub(super) fn when(&mut self, when: &Field<WhenSpec>) -> When {
        let Some((WhenSpec(entries), at)) = when.given() else { return When::default() };
        if entries.is_empty() {
            self.wrong(at, "`when` is empty: write an attribute and its value, or leave it out");
        }
        let conditions = entries.iter().filter_map(|(name, condition)| {
            let (name, at) = name.given()?;
            self.attribute_name(name, at);
            Some((name.as_str().into(), self.condition(name, condition, false)?))
        });
        When(conditions.collect())
    }

    fn condition(
        &mut self,
        attribute: &str,
        condition: &Field<ConditionSpec>,
        negated: bool,
    ) -> Option<Condition> {
        let (entry, at) = condition.given()?;
        let patterns = match entry {
            ConditionSpec::Map(map) => return self.special(attribute, map, at, negated),
            ConditionSpec::One(text) => self.pattern(attribute, text, at).into_iter().collect(),
            ConditionSpec::Any(list) => {
                let values = self.values(list, at);
                values.filter_map(|(text, at)| self.pattern(attribute, text, at)).collect()
            }
        };
        Some(Condition::new(negated, patterns))
    }

    /// What is none of some patterns, or is no pattern.
    fn special(
        &mut self,
        attribute: &str,
        map: &ConditionMap,
        at: SourceSpan,
        negated: bool,
    ) -> Option<Condition> {
        match (map.not.is_absent(), map.literal.is_absent()) {
            (false, true) if !negated => self.condition(attribute, &map.not, true),
            (true, false) => {
                let (list, at) = map.literal.given()?;
                let literal = |(text, _): (&String, _)| match is_host_attribute(attribute) {
                    true => Pattern::Literal(normal_host(text).into()),
                    false => Pattern::Literal(text.as_str().into()),
                };
                let values = self.values(list, at);
                let patterns = values.map(|value| (value.0.as_str(), literal(value)));
                Some(Condition::new(negated, patterns.collect()))
            }
            _ => {
                let message =
                    "write either `not` or `literal`, with values, such as { not: [a, b] }";
                self.wrong(at, message);
                None
            }
        }
    }

    /// Those of a list, which should not be empty.
    fn values<'l>(
        &mut self,
        list: &'l [Field<String>],
        at: SourceSpan,
    ) -> impl Iterator<Item = (&'l String, SourceSpan)> + use<'l> {
        if list.is_empty() {
            self.wrong(at, "an empty list matches nothing: write the values that may be");
        }
        list.iter().filter_map(Field::given)
    }

    fn pattern<'t>(
        &mut self,
        attribute: &str,
        text: &'t str,
        at: SourceSpan,
    ) -> Option<(&'t str, Pattern)> {
        let pattern = match is_host_attribute(attribute) {
            true => Pattern::of_host(text),
            false => text.parse(),
        };
        let pattern = self.or_wrong(at, pattern)?;
        match attribute {
            // What a descriptor calls so may be anything.
            _ if self.is_of_descriptors => {}
            "method" if text.bytes().any(|byte| byte.is_ascii_lowercase()) => {
                let closest_match = text.to_ascii_uppercase();
                let message =
                    format_args!("methods are upper-case: did you mean `{closest_match}`?");
                self.wrong(at, message);
            }
            "path" if !text.starts_with(['/', '*']) => {
                self.wrong(at, format_args!("a path begins with `/`: did you mean `/{text}`?"));
            }
            "ip" if matches!(pattern, Pattern::Literal(_)) => {
                let message = format_args!(
                    "`{text}` is not an address or a network: write for example 192.0.2.7 or 10.0.0.0/8"
                );
                self.wrong(at, message);
            }
            "host" | "header.host"
                if text.contains('/') && !matches!(pattern, Pattern::Network(_)) =>
            {
                self.wrong(at, PatternError::Host(text.to_owned()));
            }
            "route" => self.route(text, &pattern, at),
            _ => {}
        }
        Some((text, pattern))
    }
}
