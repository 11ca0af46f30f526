//! Reads policy files (YAML) and reports their errors with source positions.
//!
//! Reading has three steps. Module `node` parses the text into a tree of values with source positions, `deserialize`
//! converts the tree into the types of `spec`, and `compile` creates rules from these types. The last two steps report
//! all errors of a file, not only the first one.

mod attributes;
mod block;
mod bounds;
mod charge;
mod compile;
mod compiler;
mod concurrent;
mod condition;
mod descriptor;
pub(crate) mod deserialize;
mod fields;
mod limits;
mod node;
mod normalize;
mod overrides;
mod rule_context;
mod spec;
mod store_options;
pub(crate) mod suggest;
mod synonyms;
mod warnings;

use std::convert::Infallible;
use std::fmt;

use serde::de::DeserializeOwned;

use super::Policy;
use super::error::Diagnostics;
use crate::limit::Limit;
use compiler::{Compiler, LimitSupportCheck};
use node::{Node, NodeKind, YamlError};
use spec::PolicySpec;

pub use super::error::{PolicyError, PolicyErrors, PolicyWarning, SourceSpan};
pub use bounds::{
    MAX_DECLARED_ATTRIBUTES, MAX_DESCRIPTOR_ATTRIBUTES, MAX_DOMAIN_LIMITS,
    MAX_KEY_ATTRIBUTE_COMBINATIONS, MAX_KEY_SCOPES, MAX_LIMITS_PER_RULE, MAX_OVERRIDES,
    MAX_PER_ENTRIES, MAX_POLICY_BYTES, MAX_REPLACED_RULES, MAX_ROUTES, MAX_RULES,
    MAX_SPLIT_ATTRIBUTES,
};
pub use deserialize::Field;
pub use warnings::CLIENT_CHOSEN_ATTRIBUTES;

impl Policy {
    /// Reads a policy from YAML text. `docs/reference/policy.md` documents the format.
    ///
    /// ```
    /// use slidegate::Policy;
    ///
    /// let errors = Policy::from_yaml("rules:\n  - { name: a, limits: [10/fortnight] }\n").unwrap_err();
    /// assert_eq!((errors.0[0].line, errors.0[0].column), (2, 25));
    /// assert!(errors.to_string().contains("`fortnight` is not a window"));
    /// ```
    ///
    /// # Errors
    /// Returns all errors if the text is not valid YAML or not a valid policy.
    pub fn from_yaml(text: &str) -> Result<Self, PolicyErrors> {
        Self::from_yaml_for(text, |_| Ok::<(), Infallible>(()))
    }

    /// Reads a policy as [`from_yaml`](Self::from_yaml) does, for a store that supports only some limits. For a limit
    /// that the store cannot enforce, `supports` returns an error that names the supported alternatives. The error is
    /// reported as an error of the policy, at the position of the limit.
    ///
    /// ```
    /// use slidegate::{Algorithm, Limit, Policy};
    ///
    /// let supports = |limit: &Limit| match limit.algorithm() {
    ///     Algorithm::SlidingLog => Err("this store does not support `sliding_log`; use `sliding_buckets`"),
    ///     _ => Ok(()),
    /// };
    /// let text = "rules: [{ name: a, limits: [10/min, 5/s], algorithm: sliding_log }]";
    /// let errors = Policy::from_yaml_for(text, supports).unwrap_err();
    /// assert_eq!(errors.0.iter().map(|error| error.column).collect::<Vec<_>>(), [29, 37]);
    /// ```
    ///
    /// Limits that descriptors contain are not known in advance. For rules with `limits: requested`, only the algorithm
    /// is checked. If the store does not support the limit of a descriptor, it fails the request with
    /// [`StoreError::Unsupported`](crate::StoreError::Unsupported).
    ///
    /// # Errors
    /// Returns all errors if the text is not valid YAML or not a valid policy.
    pub fn from_yaml_for<E: fmt::Display>(
        text: &str,
        supports: impl Fn(&Limit) -> Result<(), E>,
    ) -> Result<Self, PolicyErrors> {
        let diagnostics = Diagnostics::new(text);
        let supports = |limit: &Limit| supports(limit).map_err(|error| error.to_string());
        let policy = parse_and_compile_policy(text, &diagnostics, &supports);
        diagnostics
            .into_errors()
            .map_or_else(|| policy.ok_or_else(PolicyErrors::unexplained_failure), Err)
    }
}

/// Reads a policy from YAML text, with its warnings. Adds all errors to `diagnostics`. Returns `None` or an incomplete
/// policy only if there are errors.
fn parse_and_compile_policy(
    text: &str,
    diagnostics: &Diagnostics<'_>,
    supports: &LimitSupportCheck,
) -> Option<Policy> {
    if text.len() > MAX_POLICY_BYTES {
        let message =
            format_args!("the policy has {} bytes; the maximum is {MAX_POLICY_BYTES}", text.len());
        diagnostics.push(SourceSpan::default(), message);
        return None;
    }
    let mut node =
        Node::parse(text).map_err(|error| report_yaml_error(&error, diagnostics)).ok()?;
    node.remove_extensions();
    if matches!(node.kind, NodeKind::Null) {
        let message = "the policy is empty; add `rules:` with a list of rules";
        diagnostics.push(SourceSpan::default(), message);
        return None;
    }
    let spec = deserialize::deserialize_tree::<PolicySpec>(&node, diagnostics)?;
    let (rules, routes, declared, normalizations) =
        Compiler::new(diagnostics, supports).compile_policy(&spec, node.span);
    let mut policy = Policy::new(rules, routes, declared, normalizations);
    if diagnostics.is_empty() {
        policy.warnings = warnings::find_warnings(text, &spec, &policy);
    }
    Some(policy)
}

/// Deserializes YAML text, and reports every error with its source position. The value is `None` if the text is not
/// YAML, or if its root is invalid.
pub fn deserialize_yaml<T: DeserializeOwned>(text: &str) -> (Option<T>, Vec<PolicyError>) {
    let diagnostics = Diagnostics::new(text);
    let node = Node::parse(text).map_err(|error| report_yaml_error(&error, &diagnostics));
    let value = node.ok().and_then(|node| deserialize::deserialize_tree(&node, &diagnostics));
    (value, diagnostics.into_errors().map_or_else(Vec::new, |errors| errors.0))
}

fn report_yaml_error(YamlError { span, message }: &YamlError, diagnostics: &Diagnostics<'_>) {
    diagnostics.push(*span, message);
}

/// Returns the JSON Schema (draft 2020-12) of policy files, for completion and validation in editors.
#[cfg(feature = "schema")]
pub fn schema() -> schemars::Schema {
    schemars::schema_for!(PolicySpec)
}
