//! Milliseconds, as answers have them.

use std::time::Duration;

/// Whole milliseconds, rounded up: whoever waits so long never comes too early.
pub fn ceil_millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_millisecond_counts_as_a_whole_one() {
        let millis =
            [0, 1, 999_999, 1_000_000, 1_000_001].map(Duration::from_nanos).map(ceil_millis);
        assert_eq!(millis, [0, 1, 1, 1, 2]);
    }
}
