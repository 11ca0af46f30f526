//! Whether a request may be sent twice.

use std::fmt;
use std::sync::Arc;

use http::Method;

use crate::extract::Head;

type Predicate = dyn Fn(Head<'_>) -> bool + Send + Sync;

/// Knows which requests may be repeated.
#[derive(Clone, Default)]
pub(super) struct Repeatable {
    also: Option<Arc<Predicate>>,
}

impl Repeatable {
    /// What may be repeated anyway, and what this is true for.
    pub fn also(repeatable: impl Fn(Head<'_>) -> bool + Send + Sync + 'static) -> Self {
        Self { also: Some(Arc::new(repeatable)) }
    }

    pub fn allows(&self, head: Head<'_>) -> bool {
        is_idempotent(head.method)
            || has_key(head)
            || self.also.as_ref().is_some_and(|also| also(head))
    }
}

impl fmt::Debug for Repeatable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repeatable").field("also", &self.also.is_some()).finish()
    }
}

/// RFC 9110, section 9.2.2. A method that is not known there may be anything.
fn is_idempotent(method: &Method) -> bool {
    matches!(
        *method,
        Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE | Method::PUT | Method::DELETE
    )
}

/// A server that knows the key carries the request out once. An empty one is no key.
fn has_key(head: Head<'_>) -> bool {
    head.headers.get("idempotency-key").is_some_and(|key| !key.as_bytes().trim_ascii().is_empty())
}
