//! The maximum difference between the clocks of two nodes.

use std::time::Duration;

use slidegate::Timestamp;

/// Maximum delay of a message, in microseconds. Because of the delay, the clock of the sender seems to be behind, so a
/// clock may seem this much further behind than the limit.
const MAX_MESSAGE_DELAY_US: i64 = 1_000_000;

/// The maximum difference between the clocks of two nodes. The clock of another node is known from the times in its
/// messages. Because a message takes time, the clock may seem to be behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSkewLimit {
    max_skew_us: i64,
}

impl ClockSkewLimit {
    /// Creates a limit from the maximum difference.
    pub fn new(max_skew: Duration) -> Self {
        Self { max_skew_us: i64::try_from(max_skew.as_micros()).unwrap_or(i64::MAX) }
    }

    /// Returns `true` if a clock with this offset is within the limit.
    pub(crate) fn allows_offset(self, offset_us: i64) -> bool {
        (-self.max_skew_us.saturating_add(MAX_MESSAGE_DELAY_US)..=self.max_skew_us)
            .contains(&offset_us)
    }

    /// Returns `true` if `sent_at`, the time in a message, differs from the clock of this node by at most the permitted
    /// skew and the delay of a message.
    pub(crate) fn allows_send_time(self, sent_at: Timestamp, now: Timestamp) -> bool {
        self.allows_offset(clock_offset_us(sent_at, now))
    }

    /// Returns the maximum difference between the clocks of two nodes that are within the limit for each other, in
    /// microseconds.
    pub(crate) fn max_clock_difference_us(self) -> u64 {
        self.max_skew_us.saturating_add(MAX_MESSAGE_DELAY_US).unsigned_abs()
    }
}

/// Returns the microseconds by which the clock of a sender is ahead, as measured from a message that has just arrived.
pub(crate) fn clock_offset_us(sent_at: Timestamp, now: Timestamp) -> i64 {
    let offset = i128::from(sent_at.as_micros()) - i128::from(now.as_micros());
    i64::try_from(offset).unwrap_or(if offset < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_message_may_make_clock_seem_behind() {
        let limit = ClockSkewLimit::new(Duration::from_secs(2));
        let now = Timestamp::from_secs(1_000);
        let is_within = |seconds| limit.allows_send_time(Timestamp::from_secs(seconds), now);
        assert!(is_within(1_002) && !is_within(1_003), "ahead");
        assert!(is_within(997) && !is_within(996), "behind, or late");
        assert!(!limit.allows_send_time(Timestamp::from_micros(u64::MAX), now));
        assert_eq!(limit.max_clock_difference_us(), 3_000_000);
    }
}
