//! Conversions of durations to whole milliseconds and microseconds.

use std::time::Duration;

/// Returns the duration in milliseconds, rounded up. A client that waits for the rounded time never retries too early.
pub fn ceil_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Returns the duration in whole microseconds, at most `u64::MAX`.
pub fn saturating_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_millisecond_rounds_up() {
        let millis =
            [0, 1, 999_999, 1_000_000, 1_000_001].map(Duration::from_nanos).map(ceil_millis);
        assert_eq!(millis, [0, 1, 1, 1, 2]);
    }
}
