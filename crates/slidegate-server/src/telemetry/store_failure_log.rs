//! Logs failed calls to the store, at a limited rate.
//!
//! The circuit breaker logs an outage. Without this log, calls that fail while most calls succeed, because they take longer
//! than the timeout, would change decisions without a line in the log.

use std::time::Duration;

use slidegate::{Clock, StoreError, SystemClock};
use tracing::warn;

use super::log_throttle::LogThrottle;

/// A log of failed calls to the store, with at most one message per minute and kind of failure.
pub struct StoreFailureLog {
    connection_lost: LogThrottle,
    timed_out: LogThrottle,
    unavailable: LogThrottle,
    clock: SystemClock,
}

impl StoreFailureLog {
    /// Creates a log that has not logged a message yet.
    pub fn new() -> Self {
        let throttle = || LogThrottle::new(1, Duration::from_secs(60));
        Self {
            connection_lost: throttle(),
            timed_out: throttle(),
            unavailable: throttle(),
            clock: SystemClock::new(),
        }
    }

    /// Logs a failed call, unless a failure of this kind has been logged in the current minute. The field `unlogged` is
    /// the number of such calls since the last message. The text of the error is not logged, because it can contain a
    /// key. Rejections by the open breaker are not logged, because the breaker logs its own state.
    pub fn log(&self, error: &StoreError) {
        let unlogged = |throttle: &LogThrottle| throttle.try_acquire(self.clock.now());
        match error {
            StoreError::ConnectionLost(_) => {
                if let Some(unlogged) = unlogged(&self.connection_lost) {
                    warn!(
                        unlogged,
                        "the connection to the store was lost during a call, so on_store_error decides its requests; \
                         check whether the store was restarted, and which proxy closes connections"
                    );
                }
            }
            StoreError::TimedOut(_) => {
                if let Some(unlogged) = unlogged(&self.timed_out) {
                    warn!(
                        unlogged,
                        "a call to the store timed out, so on_store_error decides its requests; check the latency of \
                         the store, or raise --redis-timeout"
                    );
                }
            }
            StoreError::Unavailable(_) => {
                if let Some(unlogged) = unlogged(&self.unavailable) {
                    warn!(
                        unlogged,
                        "a call to the store was rejected, or not sent in time, so on_store_error decides its \
                         requests; check the store, or raise --redis-timeout"
                    );
                }
            }
            _ => {}
        }
    }
}
