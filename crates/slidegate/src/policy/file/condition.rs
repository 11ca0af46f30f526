//! Makes conditions of what a policy file says, and finds those that can never be met.

use super::Place;
use super::entries::{ConditionEntry, WhenEntry};
use super::reader::Reader;
use super::reading::Field;
use crate::policy::pattern::{Condition, Pattern};
use crate::policy::rule::When;

impl Reader<'_> {
    pub(super) fn when(&mut self, when: &Field<WhenEntry>) -> When {
        let Some((WhenEntry(entries), at)) = when.given() else { return When::default() };
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
        condition: &Field<ConditionEntry>,
        negated: bool,
    ) -> Option<Condition> {
        let (entry, at) = condition.given()?;
        let patterns = match entry {
            ConditionEntry::Not(map) if !negated && !map.not.is_absent() => {
                return self.condition(attribute, &map.not, true);
            }
            ConditionEntry::Not(_) => {
                let message = "`not` takes a value or a list of values, such as { not: [a, b] }";
                self.wrong(at, message);
                return None;
            }
            ConditionEntry::One(text) => self.pattern(attribute, text, at).into_iter().collect(),
            ConditionEntry::Any(list) => {
                if list.is_empty() {
                    self.wrong(at, "an empty list matches nothing: write the values that may be");
                }
                let values = list.iter().filter_map(|value| value.given());
                values.filter_map(|(text, at)| self.pattern(attribute, text, at)).collect()
            }
        };
        Some(Condition::new(negated, patterns))
    }

    fn pattern<'t>(
        &mut self,
        attribute: &str,
        text: &'t str,
        at: Place,
    ) -> Option<(&'t str, Pattern)> {
        let pattern = self.or_wrong(at, text.parse())?;
        match attribute {
            "method" if text.bytes().any(|byte| byte.is_ascii_lowercase()) => {
                let meant = text.to_ascii_uppercase();
                let message = format_args!("methods are upper-case: did you mean `{meant}`?");
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
            "route" => self.route(text, &pattern, at),
            _ => {}
        }
        Some((text, pattern))
    }
}
