//! The client layer that retries requests, with one method for each setting.

use std::sync::Arc;
use std::time::Duration;

use slidegate::Jitter;
use tower_layer::Layer;

use super::repeat_policy::RepeatPolicy;
use super::retry_schedule::RetrySchedule;
use super::service::Retry;
use crate::extract::RequestHead;

/// A layer for clients that waits and retries if a request is denied: see the [module](super).
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
    config: RetryConfig,
}

/// The configuration of a [`RetryLayer`].
#[derive(Clone, Debug, Default)]
pub(super) struct RetryConfig {
    pub schedule: RetrySchedule,
    pub repeat_policy: RepeatPolicy,
}

impl RetryLayer {
    /// Creates a layer with at most 4 attempts within 30 s, waits that are up to 10 % longer than the response states,
    /// and a backoff from 500 ms to 10 s.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the maximum number of attempts, the first one included. The default is 4; 0 counts as 1, which disables
    /// retries.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.config.schedule.max_attempts = attempts.max(1);
        self
    }

    /// Sets the time, from the start of the first attempt, within which each wait must end. The default is 30 s; zero
    /// disables retries. This time bounds the waits but not the attempts: to bound attempts, add a timeout below this
    /// layer.
    pub fn total_time(mut self, total_time: Duration) -> Self {
        self.config.schedule.total_time = total_time;
        self
    }

    /// Sets the backoff for responses that state no wait: after attempt n, the client waits a random time of up to
    /// `initial * 2^(n-1)`, and never more than `max`. The defaults are 500 ms and 10 s.
    ///
    /// Values below 1 ms count as 1 ms, so that an overloaded server is not called without a pause. A `max` below
    /// `initial` also bounds the first wait.
    pub fn backoff(mut self, initial: Duration, max: Duration) -> Self {
        self.config.schedule.set_backoff(initial, max);
        self
    }

    /// Sets the jitter that is added to the wait that a response states. Jitter never shortens a wait. The default is
    /// up to 10 %. More jitter spreads the load on the server: with 100 %, clients that were denied at the same time
    /// are spread over a period as long as the wait.
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.config.schedule.jitter = jitter;
        self
    }

    /// Also repeats requests for which this predicate returns `true`, even if their method is not idempotent. Select
    /// only requests that may be carried out twice: a 503 does not mean that the request had no effect.
    pub fn also_repeat(
        mut self,
        predicate: impl Fn(RequestHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.config.repeat_policy = RepeatPolicy::with_predicate(predicate);
        self
    }
}

impl<S> Layer<S> for RetryLayer {
    type Service = Retry<S>;

    fn layer(&self, inner: S) -> Retry<S> {
        Retry::new(inner, Arc::new(self.config.clone()))
    }
}
