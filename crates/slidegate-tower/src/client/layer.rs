//! The settings, one method for each.

use std::sync::Arc;
use std::time::Duration;

use slidegate::Jitter;
use tower_layer::Layer;

use super::repeatable::Repeatable;
use super::service::Retry;
use super::wait::Waits;
use crate::extract::Head;

/// Lets a client wait and ask again when it is denied: [what it does](super).
///
/// ```
/// use std::time::Duration;
///
/// use slidegate::Jitter;
/// use slidegate_tower::client::RetryLayer;
///
/// let layer = RetryLayer::new()
///     .attempts(5)
///     .total_time(Duration::from_secs(120))
///     .backoff(Duration::from_millis(100), Duration::from_secs(5))
///     .jitter(Jitter::up_to_percent(25))
///     .also_repeat(|head| head.uri.path() == "/v1/search");
/// # drop(layer);
/// ```
#[derive(Clone, Debug, Default)]
pub struct RetryLayer {
    terms: Terms,
}

/// What was set.
#[derive(Clone, Debug, Default)]
pub(super) struct Terms {
    pub waits: Waits,
    pub repeatable: Repeatable,
}

impl RetryLayer {
    /// At most 4 attempts within 30 s; told waits up to 10 % longer; backoff from 500 ms, at most 10 s.
    pub fn new() -> Self {
        Self::default()
    }

    /// How often to ask in all, the first time included. 4 unless set; 0 counts as 1, which never waits.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.terms.waits.attempts = attempts.max(1);
        self
    }

    /// How long after the first attempt began a wait may end at the latest. 30 s unless set; with zero
    /// nothing is waited for. It bounds the waits and not the attempts: for these, add a timeout below.
    pub fn total_time(mut self, total_time: Duration) -> Self {
        self.terms.waits.total_time = total_time;
        self
    }

    /// How long to wait if no answer tells: after the n-th attempt anything up to `first * 2^(n-1)`, and
    /// never more than `most`. 500 ms and 10 s unless set. What is under 1 ms counts as 1 ms, so that a
    /// server in need is not asked without a pause; a `most` under `first` holds for the first wait, too.
    pub fn backoff(mut self, first: Duration, most: Duration) -> Self {
        self.terms.waits.set_backoff(first, most);
        self
    }

    /// What told waits are lengthened by; never shortened. Up to 10 % unless set. More is better for the
    /// server: with 100 % the clients that were denied together are spread over as long as they waited.
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.terms.waits.jitter = jitter;
        self
    }

    /// Also repeats requests for which this is true, whatever their method. Say so only of requests that
    /// may be carried out twice: a 503 does not tell that nothing was done.
    pub fn also_repeat(
        mut self,
        repeatable: impl Fn(Head<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.terms.repeatable = Repeatable::also(repeatable);
        self
    }
}

impl<S> Layer<S> for RetryLayer {
    type Service = Retry<S>;

    fn layer(&self, inner: S) -> Retry<S> {
        Retry::new(inner, Arc::new(self.terms.clone()))
    }
}
