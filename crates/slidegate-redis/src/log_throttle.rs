//! Limits the rate of a log message: one line a minute for each class of its cause.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Minimum time between two lines of one class.
const MIN_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// A message that is logged at most once a minute for each class.
#[derive(Debug, Default)]
pub struct LogThrottle {
    /// The last line of each class.
    last_lines: Mutex<Vec<(&'static str, Instant)>>,
}

impl LogThrottle {
    /// Returns `true` if no line of this class has been logged within a minute. The caller then logs one.
    pub fn should_log(&self, class: &'static str) -> bool {
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
