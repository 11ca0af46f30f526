//! The policy file: YAML, read with places.
//!
//! Reading takes three steps: `node` makes a tree of the text, `deserialize` makes entries of the tree
//! (what the file *says*, in the types of `spec`), and `compile` makes rules of the entries (what it
//! *means*). The last two note every mistake, not the first only.

mod advice;
mod charge;
mod cluster;
mod compile;
mod condition;
mod descriptor;
mod deserialize;
mod error;
mod limits;
mod node;
mod overrides;
mod redis;
mod rule_context;
mod spec;
mod suggest;

use std::convert::Infallible;
use std::fmt;

use super::Policy;
use crate::limit::Limit;
use compile::Compiler;
use error::{Diagnostics, SourceSpan};
use node::{Kind, Node};
use spec::PolicySpec;

pub use advice::CLIENT_CHOSEN;
pub use error::{PolicyError, PolicyErrors, PolicyWarning};

/// Bytes that a policy may have.
pub const MAX_POLICY_BYTES: usize = 8 << 20;

/// Rules that a policy may have.
pub const MAX_RULES: usize = 10_000;

/// Route templates that a policy may have.
pub const MAX_ROUTES: usize = 10_000;

/// Limits that a rule may have.
pub const MAX_LIMITS: usize = 16;

/// Overrides that a rule may have.
pub const MAX_OVERRIDES: usize = 1_000;

/// Attributes that a rule may count per.
pub const MAX_PER: usize = 16;

/// Names that a rule's `descriptor` may have.
pub const MAX_DESCRIPTOR: usize = 32;

/// Rules that a rule may replace.
pub const MAX_REPLACES: usize = 1_000;

/// Attributes that a rule's counts may be split by.
pub const MAX_SPLIT_BY: usize = 16;

/// Combinations of the names of attributes that a rule may count per: `[a|b, c|d]` has four.
pub const MAX_COMBINATIONS: usize = 64;

/// Counts that a policy may tell apart before it knows any value: for each limit of each rule and of each
/// override, the combinations of names that the rule counts per.
pub const MAX_SCOPES: usize = 500_000;

/// Limits that the rules of one domain may have together. Each rule counts with its own limits, or with those of its
/// largest override. A call to Redis has 16 bits for the number of limits of a request.
pub const MAX_HITS: usize = 65_535;

/// Says whether a store can count by a limit, or else why not.
type LimitCheck<'b> = dyn Fn(&Limit) -> Result<(), String> + 'b;

impl Policy {
    /// Reads a policy; `docs/POLICY.md` tells what it may say.
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
    /// If it is not YAML, or has mistakes: all of them.
    pub fn from_yaml(text: &str) -> Result<Self, PolicyErrors> {
        Self::from_yaml_for(text, |_| Ok::<(), Infallible>(()))
    }

    /// [`from_yaml`](Self::from_yaml), for a store that cannot count by every limit: `supports` says whether it can by this
    /// one, or else why not and what it could. What it refuses is a mistake of the policy, at the place of the limit.
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
    /// Limits that descriptors bring along are not known here: of them only those for which a rule has `limits:
    /// requested` are asked for, by their algorithm. A store that cannot count by another says so when it is asked
    /// ([`StoreError::Unsupported`](crate::StoreError::Unsupported)).
    ///
    /// # Errors
    /// If it is not YAML, or has mistakes: all of them.
    pub fn from_yaml_for<E: fmt::Display>(
        text: &str,
        supports: impl Fn(&Limit) -> Result<(), E>,
    ) -> Result<Self, PolicyErrors> {
        let diagnostics = Diagnostics::new(text);
        let supports = |limit: &Limit| supports(limit).map_err(|error| error.to_string());
        let policy = read(text, &diagnostics, &supports);
        diagnostics.into_errors().map_or_else(|| policy.ok_or_else(PolicyErrors::unknown), Err)
    }
}

/// The policy that a text says, with its warnings; none, or an incomplete one, only if something is wrong.
fn read(text: &str, diagnostics: &Diagnostics<'_>, supports: &LimitCheck) -> Option<Policy> {
    if text.len() > MAX_POLICY_BYTES {
        let message = format_args!("a policy has at most {MAX_POLICY_BYTES} bytes");
        diagnostics.note(SourceSpan::default(), message);
        return None;
    }
    let node = Node::read(text, diagnostics)?;
    if matches!(node.kind, Kind::Null) {
        let message = "the policy is empty: it needs `rules:`, a list of rules";
        diagnostics.note(SourceSpan::default(), message);
        return None;
    }
    let entry = deserialize::read::<PolicySpec>(&node, diagnostics)?;
    let (rules, routes) = Compiler::new(diagnostics, supports).policy(&entry, node.place);
    let mut policy = Policy::new(rules, routes);
    if diagnostics.is_empty() {
        policy.warnings = advice::warnings(text, &entry, &policy);
    }
    Some(policy)
}

/// The JSON Schema (draft 2020-12) of policy files: editors complete and check with it.
#[cfg(feature = "schema")]
pub fn schema() -> schemars::Schema {
    schemars::schema_for!(PolicySpec)
}
