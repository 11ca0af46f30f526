//! The reason why a call fails.

use std::fmt;

use slidegate::{Decision, Reason};
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

/// Returns an error if a call was not decided, because its idempotency key cannot be used.
pub fn reject_unusable_idempotency_key(decision: &Decision<'_>) -> Result<(), CallError> {
    let (kind, detail) = match decision.reason() {
        Some(Reason::IdempotencyKeyReused) => (
            CallErrorKind::Unprocessable,
            "the idempotency key was used for another request; use a new key for each request",
        ),
        Some(Reason::CallInProgress) => (
            CallErrorKind::Conflict,
            "the first call with this idempotency key is still being decided; repeat the call",
        ),
        Some(Reason::RefundWithIdempotencyKey) => (
            CallErrorKind::Unprocessable,
            "a request that refunds units cannot have an idempotency key; send it without the key",
        ),
        _ => return Ok(()),
    };
    Err(CallError::new(kind, detail))
}
