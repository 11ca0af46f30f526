//! Logs that a key has a value that slidegate did not write, at a limited rate. The circuit breaker does not count such
//! failures, so they would change decisions without a line in the log.

use std::time::Duration;

use parking_lot::Mutex;
use slidegate::StoreError;
use tokio::time::Instant;

/// Minimum time between two lines of one class.
const MIN_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// A log of failures that the value of a key caused, with at most one line per minute and class. A line has the domain and
/// the rule of the key, and no values of clients.
#[derive(Debug, Default)]
pub struct ForeignValueLog {
    /// The last line of each class.
    last_lines: Mutex<Vec<(&'static str, Instant)>>,
}

impl ForeignValueLog {
    /// Logs the error of a call, if the value of a key caused it, and no such line has been logged within a minute.
    pub fn log(&self, error: &StoreError) {
        if let Some(key) = error.foreign_keys()
            && self.begin_line(error.class())
        {
            tracing::warn!(
                class = error.class(),
                keys = key.split('{').next(),
                remedy = error.remedy(),
                "a key has a value that slidegate did not write, so calls for it fail"
            );
        }
    }

    fn begin_line(&self, class: &'static str) -> bool {
        let (mut last_lines, now) = (self.last_lines.lock(), Instant::now());
        match last_lines.iter_mut().find(|(other, _)| *other == class) {
            Some((_, last)) if now.duration_since(*last) < MIN_LOG_INTERVAL => false,
            Some((_, last)) => {
                *last = now;
                true
            }
            None => {
                last_lines.push((class, now));
                true
            }
        }
    }
}
