//! The options of waiting calls, and their statistics.

use std::time::Duration;

use crate::jitter::Jitter;

/// The default of [`WaitOptions::max_waiting`] and [`WaitOptions::max_waiting_per_key`].
const DEFAULT_MAX_WAITING_CALLS: usize = 10_000;

/// The default of [`WaitOptions::max_waiting_bytes`]: 64 MiB.
const DEFAULT_MAX_WAITING_BYTES: usize = 64 << 20;

/// The bounds on the calls that wait at the same time, and the jitter of their waits. Calls beyond the bounds are
/// denied with the reason [`WaitQueueFull`](crate::Reason::WaitQueueFull).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitOptions {
    /// Maximum number of waiting calls, 10,000 by default. With 0, no call waits.
    pub max_waiting: usize,
    /// Maximum number of calls that wait for the same limit and key, 10,000 by default. With 0, no call waits.
    pub max_waiting_per_key: usize,
    /// Maximum number of bytes that waiting calls take in queues and with the names and values of their requests, 64
    /// MiB by default.
    pub max_waiting_bytes: usize,
    /// The longest time for which a call waits, also if its own maximum wait is longer; without a bound by default.
    pub max_wait: Duration,
    /// The random extension of each wait, none by default, so that processes that share a store do not decide at the
    /// same time.
    pub jitter: Jitter,
}

impl Default for WaitOptions {
    fn default() -> Self {
        Self {
            max_waiting: DEFAULT_MAX_WAITING_CALLS,
            max_waiting_per_key: DEFAULT_MAX_WAITING_CALLS,
            max_waiting_bytes: DEFAULT_MAX_WAITING_BYTES,
            max_wait: Duration::MAX,
            jitter: Jitter::NONE,
        }
    }
}

/// The number of calls that wait now, and the results of the calls that have waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitStats {
    /// Number of calls that wait now.
    pub waiting: usize,
    /// Number of bytes that waiting calls take; see [`WaitOptions::max_waiting_bytes`].
    pub waiting_bytes: usize,
    /// Number of calls that were admitted after a wait.
    pub admitted: u64,
    /// Number of calls that were denied after a wait, because they did not fit within their wait.
    pub timed_out: u64,
    /// Number of calls that left the queue before they were decided, because their caller gave up.
    pub cancelled: u64,
    /// Number of calls that were denied because too many calls were waiting.
    pub queue_full: u64,
}
