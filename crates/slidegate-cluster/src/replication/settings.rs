//! Settings of the replication engine.

use std::time::Duration;

use slidegate::Timestamp;

use crate::clock_limit::ClockSkewLimit;
use crate::pn_counter::CounterUpdate;

/// Settings of the replication engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Interval at which changed counters are sent to the other nodes.
    pub interval: Duration,
    /// Maximum difference between the clocks of two nodes.
    pub clock_limit: ClockSkewLimit,
    /// Maximum time that a node with known seeds waits for a member of a cluster before it starts a new cluster.
    pub join_timeout: Duration,
    /// Time after which a majority forgets a silent member, if no window is longer. The charges of the member have then
    /// expired from all windows. A node that is not part of a majority forgets no member.
    pub min_silent_timeout: Duration,
    /// Maximum number of bytes sent to each member per interval. Half of them are for changed counters.
    pub interval_bytes: usize,
}

/// Returns the default settings: an interval of 250 ms, a clock skew of 2 s, a join timeout of 5 s, a minimum silent
/// timeout of one day and 2 MiB per interval.
impl Default for Settings {
    fn default() -> Self {
        Self {
            interval: Duration::from_millis(250),
            clock_limit: ClockSkewLimit::new(Duration::from_secs(2)),
            join_timeout: Duration::from_secs(5),
            min_silent_timeout: Duration::from_secs(24 * 60 * 60),
            interval_bytes: 2 << 20,
        }
    }
}

impl Settings {
    /// Returns `true` if the bucket of an update begins more than the maximum clock skew plus one window in the future.
    /// No correct clock of the cluster can have produced such an update.
    pub(super) fn is_timestamp_too_far_in_future(
        &self,
        update: &CounterUpdate,
        now: Timestamp,
    ) -> bool {
        let latest_us = now.as_micros().saturating_add(self.clock_limit.max_clock_difference_us());
        update.layout.earliest_start_us(update.bucket) > latest_us
    }
}

pub(super) fn to_micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the microseconds between the times `from` and `to`, or 0 if `to` is earlier.
pub(super) fn elapsed_us(from: Timestamp, to: Timestamp) -> u64 {
    to.as_micros().saturating_sub(from.as_micros())
}
