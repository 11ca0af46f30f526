//! The reason why a call fails.

use std::fmt;

use thiserror::Error;

/// The reason why a call fails, with the cause and the remedy as its text.
#[derive(Debug, Error)]
#[error("{detail}")]
pub struct CallError {
    pub kind: CallErrorKind,
    detail: String,
}

/// The kind of an error. Each protocol has a status for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallErrorKind {
    /// The call is malformed, or has a name that no rule uses.
    Invalid,
    /// The call contradicts an earlier one.
    Conflict,
    /// The reservation or the permit has ended.
    Ended,
    /// Only the instance that created the reservation or the permit can carry out the call.
    OtherInstance,
    /// The call is well-formed, but cannot be carried out.
    Unprocessable,
    /// The store is unavailable, and the call can be repeated.
    StoreUnavailable,
}

impl CallError {
    /// Creates an error whose text is `detail`.
    pub fn new(kind: CallErrorKind, detail: impl fmt::Display) -> Self {
        Self { kind, detail: detail.to_string() }
    }
}
