//! The numbers of calls of a store, of their failures, and the time that they took.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use slidegate::StoreError;
use tokio::time::Instant;

/// The numbers of a [`RedisStore`](crate::RedisStore) since it was opened. Clones of a store have the same numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisStats {
    /// Number of calls of Redis, including calls that an open circuit breaker rejected. Denials of the denial cache are
    /// not included, except in [`charge_many_async`].
    ///
    /// [`charge_many_async`]: slidegate::Store::charge_many_async
    pub calls: u64,
    /// The time that all calls together took. Divided by [`calls`](Self::calls), it is their mean latency.
    pub call_time: Duration,
    /// Number of failed calls for each class of failure, such as `timed_out`; see [`StoreError::class`].
    pub failures: BTreeMap<&'static str, u64>,
    /// Number of denials that the denial cache made, without a call of Redis.
    pub deny_cache_hits: u64,
    /// Number of dropped reservations whose charges stay, because too many others were waiting to be reverted.
    pub dropped_reverts: u64,
}

/// The counts of calls, which concurrent calls update.
#[derive(Debug, Default)]
pub(super) struct CallCounts {
    calls: AtomicU64,
    call_time_us: AtomicU64,
    failures: Mutex<BTreeMap<&'static str, u64>>,
}

impl CallCounts {
    /// Counts a call that began at `started`.
    pub(super) fn record<T>(&self, started: Instant, result: &Result<T, StoreError>) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.call_time_us.fetch_add(started.elapsed().as_micros() as u64, Ordering::Relaxed);
        if let Err(error) = result {
            *self.failures.lock().entry(error.class()).or_default() += 1;
        }
    }

    /// Returns the counts of calls; other numbers are 0.
    pub(super) fn stats(&self) -> RedisStats {
        RedisStats {
            calls: self.calls.load(Ordering::Relaxed),
            call_time: Duration::from_micros(self.call_time_us.load(Ordering::Relaxed)),
            failures: self.failures.lock().clone(),
            ..RedisStats::default()
        }
    }
}
