//! The policy file: YAML, read with places.
//!
//! Reading takes three steps: `node` makes a tree of the text, `reading` makes entries of the tree
//! (what the file *says*, in the types of `entries`), and `reader` makes rules of the entries (what it
//! *means*). The last two note every mistake, not the first only.

mod condition;
mod entries;
mod error;
mod hint;
mod limits;
mod node;
mod reader;
mod reading;

use super::Policy;
use entries::PolicyEntry;
use error::Place;
use node::{Kind, Node};
use reader::Reader;

pub use error::{PolicyError, PolicyErrors};

/// Bytes that a policy may have.
pub const MAX_POLICY_BYTES: usize = 8 << 20;

/// Rules that a policy may have.
pub const MAX_RULES: usize = 10_000;

/// Limits that a rule may have.
pub const MAX_LIMITS: usize = 16;

/// Overrides that a rule may have.
pub const MAX_OVERRIDES: usize = 1_000;

/// Attributes that a rule may count per.
pub const MAX_PER: usize = 16;

/// Combinations of the names of attributes that a rule may count per: `[a|b, c|d]` has four.
pub const MAX_COMBINATIONS: usize = 64;

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
        let one =
            |message: &str| PolicyErrors(vec![PolicyError::new(Place::default(), message, "")]);
        if text.len() > MAX_POLICY_BYTES {
            return Err(one(&format!("a policy has at most {MAX_POLICY_BYTES} bytes")));
        }
        let node = Node::read(text).map_err(|error| PolicyErrors(vec![error]))?;
        if matches!(node.kind, Kind::Null) {
            return Err(one("the policy is empty: it needs `rules:`, a list of rules"));
        }
        let (entry, errors) = reading::read::<PolicyEntry>(&node, text);
        let mut reader = Reader::new(text, errors);
        let read = entry.map(|entry| reader.policy(&entry, node.place));
        match (read, reader.errors()) {
            (Some((rules, routes)), None) => Ok(Self::new(rules, routes)),
            (_, errors) => Err(errors.unwrap_or_else(|| one("the policy cannot be read"))),
        }
    }
}

/// The JSON Schema (draft 2020-12) of policy files: editors complete and check with it.
#[cfg(feature = "schema")]
pub fn schema() -> schemars::Schema {
    schemars::schema_for!(PolicyEntry)
}
