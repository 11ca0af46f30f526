//! A condition on the values of one attribute.

use crate::policy::ratelimit_config::ConvertedCondition;

/// A condition on an attribute: literals and patterns with one `*`. One of them must match, or none of them may match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueCondition {
    pub values: Vec<String>,
    /// Whether none of the values may match.
    pub is_negated: bool,
}

impl ValueCondition {
    /// Creates a condition that one of the values matches.
    pub fn any_of(values: Vec<String>) -> Self {
        Self { values, is_negated: false }
    }

    /// Creates a condition that none of the values matches.
    pub fn none_of(values: Vec<String>) -> Self {
        Self { values, is_negated: true }
    }

    /// Returns whether the value of an attribute satisfies the condition.
    pub fn matches(&self, value: &str) -> bool {
        self.values.iter().any(|pattern| matches_pattern(pattern, value)) != self.is_negated
    }

    /// Returns the condition as it is printed.
    pub fn into_converted(mut self) -> ConvertedCondition {
        let condition = match self.values.len() {
            1 => ConvertedCondition::Value(self.values.remove(0)),
            _ => ConvertedCondition::Values(self.values),
        };
        if self.is_negated {
            ConvertedCondition::Not { not: Box::new(condition) }
        } else {
            condition
        }
    }
}

/// Returns whether a literal, or a pattern with one `*`, matches a value.
pub fn matches_pattern(pattern: &str, value: &str) -> bool {
    match pattern.split_once('*') {
        Some((start, end)) => {
            value.len() >= start.len() + end.len()
                && value.starts_with(start)
                && value.ends_with(end)
        }
        None => pattern == value,
    }
}
