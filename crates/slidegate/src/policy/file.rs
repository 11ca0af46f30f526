//! Reads policy files (YAML) and reports their errors with source positions.
//!
//! Reading has three steps. Module `node` parses the text into a tree of values with source positions, `deserialize`
//! converts the tree into the types of `spec`, and `compile` creates rules from these types. The last two steps report
//! all errors of a file, not only the first one.

mod charge;
mod compile;
mod condition;
mod descriptor;
mod deserialize;
mod error;
mod limits;
pub(crate) mod node;
mod overrides;
mod rule_context;
mod spec;
mod store_options;
mod suggest;
mod warnings;

use std::convert::Infallible;
use std::fmt;

use super::Policy;
use crate::limit::Limit;
use compile::Compiler;
use error::{Diagnostics, SourceSpan};
use node::{Node, NodeKind, YamlError};
use spec::PolicySpec;

pub use error::{PolicyError, PolicyErrors, PolicyWarning};
pub use warnings::CLIENT_CHOSEN;

/// The maximum size of a policy, in bytes.
pub const MAX_POLICY_BYTES: usize = 8 << 20;

/// The maximum number of rules in a policy.
pub const MAX_RULES: usize = 10_000;

/// The maximum number of route templates in a policy.
pub const MAX_ROUTES: usize = 10_000;

/// The maximum number of limits that a rule or an override can list.
pub const MAX_LIMITS: usize = 16;

/// The maximum number of overrides in a rule.
pub const MAX_OVERRIDES: usize = 1_000;

/// The maximum number of entries in the `per` of a rule.
pub const MAX_PER_ENTRIES: usize = 16;

/// The maximum number of attribute names in the `descriptor` of a rule.
pub const MAX_DESCRIPTOR_NAMES: usize = 32;

/// The maximum number of rules that one rule can list in `replaces`.
pub const MAX_REPLACED_RULES: usize = 1_000;

/// The maximum number of attributes in `redis.split.by` of a rule.
pub const MAX_SPLIT_ATTRIBUTES: usize = 16;

/// The maximum number of combinations of attribute names in the `per` of a rule. A combination takes one name from each
/// entry: `[a|b, c|d]` has four.
pub const MAX_COMBINATIONS: usize = 64;

/// The maximum number of key scopes in a policy. Each limit of a rule or override has one scope for each combination of
/// attribute names in `per`.
pub const MAX_SCOPES: usize = 500_000;

/// The maximum number of limits in a domain, because a request can match all rules of its domain. Each rule contributes
/// the number of its limits, or of the limits of an override if that is larger. The reason for the maximum is Redis: a
/// call has 16 bits for the number of limits of a request.
pub const MAX_DOMAIN_LIMITS: usize = 65_535;

/// A function that checks whether the store supports a limit. The error contains the reason why the store does not
/// support it.
type LimitSupportCheck<'b> = dyn Fn(&Limit) -> Result<(), String> + 'b;

impl Policy {
    /// Reads a policy from YAML text. `docs/POLICY.md` documents the format.
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
    ///     Algorithm::SlidingLog => Err("`sliding_log` is not counted here: take `sliding_buckets`"),
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
        let message = format_args!("a policy has at most {MAX_POLICY_BYTES} bytes");
        diagnostics.push(SourceSpan::default(), message);
        return None;
    }
    let node = Node::parse(text).map_err(|error| report_yaml_error(&error, diagnostics)).ok()?;
    if matches!(node.kind, NodeKind::Null) {
        let message = "the policy is empty: it needs `rules:`, a list of rules";
        diagnostics.push(SourceSpan::default(), message);
        return None;
    }
    let spec = deserialize::deserialize_tree::<PolicySpec>(&node, diagnostics)?;
    let (rules, routes) = Compiler::new(diagnostics, supports).compile_policy(&spec, node.span);
    let mut policy = Policy::new(rules, routes);
    if diagnostics.is_empty() {
        policy.warnings = warnings::find_warnings(text, &spec, &policy);
    }
    Some(policy)
}

fn report_yaml_error(YamlError { span, message }: &YamlError, diagnostics: &Diagnostics<'_>) {
    diagnostics.push(
        *span,
        format_args!(
            "invalid YAML: {message}; look for an unclosed bracket or quote, or for wrong indentation, here or above"
        ),
    );
}

/// Returns the JSON Schema (draft 2020-12) of policy files, for completion and validation in editors.
#[cfg(feature = "schema")]
pub fn schema() -> schemars::Schema {
    schemars::schema_for!(PolicySpec)
}
