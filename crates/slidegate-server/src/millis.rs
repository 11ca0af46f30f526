//! Milliseconds, as answers have them.

use std::time::Duration;

/// Whole milliseconds, rounded up: whoever waits so long never comes too early.
pub fn millis_up(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
