//! The settings of a circuit breaker, the reasons for which they open it, and the synchronization types that it uses.

use std::time::Duration;

/// The settings of a breaker: conditions for opening, and backoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerSettings {
    /// Number of consecutive failed calls that opens the breaker.
    pub consecutive_failures: u32,
    /// Minimum number of calls within one second before the failure rate is checked. From this number of calls on, the
    /// breaker opens if at least half of them have failed.
    pub min_calls: u32,
    /// Upper bound of the first backoff, which is the time between the opening of the breaker and the first probe. The
    /// bound doubles after each failed probe, up to `max_backoff`.
    pub initial_backoff: Duration,
    /// Upper bound of all backoffs.
    pub max_backoff: Duration,
    /// Time after which a probe without a result is considered lost, and another one is allowed. Must be longer than
    /// the maximum duration of a call.
    pub probe_timeout: Duration,
}

/// The default settings. The breaker opens after 5 consecutive failures. The breaker also opens if there are at least
/// 20 calls within a second and at least half of them fail. The first probe follows after at most half a second, and
/// the backoff doubles up to 5 seconds.
impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            consecutive_failures: 5,
            min_calls: 20,
            initial_backoff: Duration::from_millis(500),
            max_backoff: Duration::from_secs(5),
            probe_timeout: Duration::from_secs(1),
        }
    }
}

/// The reason why a breaker opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenReason {
    /// Too many consecutive calls failed. The value is the number of these calls.
    ConsecutiveFailures(u32),
    /// Too many of the calls within about a second failed.
    FailureRate {
        /// Number of failed calls in that time.
        failed: u32,
        /// Number of all calls in that time, including the failed ones.
        calls: u32,
    },
}

/// The lock and atomic types that the breaker uses. They are from std, or from shuttle, a test library that explores
/// thread schedules.
pub(super) mod sync {
    #[cfg(shuttle)]
    pub(in crate::breaker) use shuttle::sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU32, AtomicU64, Ordering},
    };
    #[cfg(not(shuttle))]
    pub(in crate::breaker) use std::sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU32, AtomicU64, Ordering},
    };
}
