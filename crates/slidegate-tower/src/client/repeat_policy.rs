//! The policy for repeating requests, which determines the requests that may be sent more than once.

use std::fmt;
use std::sync::Arc;

use http::Method;

use crate::extract::RequestHead;

type RepeatPredicate = dyn Fn(RequestHead<'_>) -> bool + Send + Sync;

/// The choice of requests that may be repeated: requests with an idempotent method or an idempotency key, and requests
/// selected by an optional predicate.
#[derive(Clone, Default)]
pub(super) struct RepeatPolicy {
    predicate: Option<Arc<RepeatPredicate>>,
}

impl RepeatPolicy {
    /// Creates a policy that additionally repeats the requests for which the predicate returns `true`.
    pub fn with_predicate(
        predicate: impl Fn(RequestHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { predicate: Some(Arc::new(predicate)) }
    }

    pub fn allows_repeat(&self, head: RequestHead<'_>) -> bool {
        is_idempotent(head.method)
            || has_idempotency_key(head)
            || self.predicate.as_ref().is_some_and(|predicate| predicate(head))
    }
}

impl fmt::Debug for RepeatPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RepeatPolicy").field("predicate", &self.predicate.is_some()).finish()
    }
}

/// Returns `true` if RFC 9110, section 9.2.2, defines the method as idempotent. Unknown methods are not treated as
/// idempotent.
fn is_idempotent(method: &Method) -> bool {
    matches!(
        *method,
        Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE | Method::PUT | Method::DELETE
    )
}

/// Returns `true` if the request has a non-empty idempotency key. A server that supports idempotency keys carries out a
/// repeated request only once.
fn has_idempotency_key(head: RequestHead<'_>) -> bool {
    head.headers.get("idempotency-key").is_some_and(|key| !key.as_bytes().trim_ascii().is_empty())
}
