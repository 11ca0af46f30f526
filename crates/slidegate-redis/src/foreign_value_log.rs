//! Logs that a key has a value that slidegate did not write, at a limited rate. The circuit breaker does not count such
//! failures, so without this log nothing would show that they change decisions.

use slidegate::StoreError;

use crate::log_throttle::LogThrottle;

/// A log of failures that the value of a key caused, with at most one line per minute and class. A line has the domain
/// and the rule of the key, and no values of clients.
#[derive(Debug, Default)]
pub struct ForeignValueLog {
    throttle: LogThrottle,
}

impl ForeignValueLog {
    /// Logs the error of a call, if the value of a key caused it, and no such line has been logged within a minute.
    pub fn log(&self, error: &StoreError) {
        if let Some(key) = error.keys_with_foreign_values()
            && self.throttle.should_log(error.class())
        {
            tracing::warn!(
                class = error.class(),
                keys = key.split('{').next(),
                remedy = error.remedy(),
                "a key has a value that slidegate did not write, so calls for it fail"
            );
        }
    }
}
