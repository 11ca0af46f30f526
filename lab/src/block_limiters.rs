//! Limiters that decide about blocks of keys: the limiters of slidegate and the limiters with which they are compared.

use std::error::Error;
use std::hash::{BuildHasher, Hash};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use governor::clock::DefaultClock;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter};
use slidegate::{Hit, Key, Limit, Limiter, Scope, Store, SyncStore, Value};

use crate::logs::QueueLog;

/// A compared limiter with keys of the type `K`. The methods are called through a `dyn` reference, so the compiler
/// cannot join the decisions about a block with the code that writes the keys.
pub trait BlockLimiter<K>: Sync {
    /// Charges `units` to a key. Returns `true` if the charge is allowed.
    fn charge_units(&self, key: &K, units: u32) -> bool;

    /// Charges one unit to each key. Returns the number of denied charges.
    fn count_denied(&self, keys: &[K]) -> usize;
}

/// Limiters that are compared with each other.
pub type BoxedLimiters<K> = Vec<Box<dyn BlockLimiter<K>>>;

/// Counts the keys for which `decide` returns `false`. The compiler must compute every result, as for a caller that
/// uses it.
#[inline(always)]
fn count_denied_keys<K>(keys: &[K], decide: impl Fn(&K) -> bool) -> usize {
    keys.iter().map(|key| usize::from(!black_box(decide(key)))).sum()
}

impl<K: Hash, S: SyncStore> BlockLimiter<K> for Limiter<S> {
    fn charge_units(&self, key: &K, units: u32) -> bool {
        self.check_cost(key, u64::from(units)).is_allowed()
    }

    fn count_denied(&self, keys: &[K]) -> usize {
        count_denied_keys(keys, |key| self.check(key).is_allowed())
    }
}

/// The keyed limiter of the crate governor, with its state in a `DashMap` that hashes with foldhash.
pub type GovernorWithFoldhash<K> =
    RateLimiter<K, DashMapStateStore<K, foldhash::fast::RandomState>, DefaultClock>;

/// Creates a governor limiter that allows `max` units at once, and regains them evenly over `window`.
///
/// # Errors
/// If `max` is zero, or the window is shorter than `max` nanoseconds.
pub fn new_governor<K: Hash + Eq + Clone>(
    max: u32,
    window: Duration,
) -> Result<GovernorWithFoldhash<K>, Box<dyn Error>> {
    let max = NonZeroU32::new(max).ok_or("the burst is zero")?;
    let quota = Quota::with_period(window / max.get()).ok_or("the period is zero")?;
    Ok(RateLimiter::dashmap_with_hasher(quota.allow_burst(max), Default::default()))
}

impl<K, S> BlockLimiter<K> for RateLimiter<K, DashMapStateStore<K, S>, DefaultClock>
where
    K: Hash + Eq + Clone + Send + Sync,
    S: BuildHasher + Clone + Send + Sync,
{
    fn charge_units(&self, key: &K, units: u32) -> bool {
        NonZeroU32::new(units)
            .is_some_and(|units| matches!(self.check_key_n(key, units), Ok(Ok(()))))
    }

    fn count_denied(&self, keys: &[K]) -> usize {
        count_denied_keys(keys, |key| self.check_key(key).is_ok())
    }
}

/// A [`QueueLog`] with a clock, which is read in the same way as slidegate's `SystemClock` reads it.
pub struct QueueLimiter {
    log: QueueLog,
    clock: quanta::Clock,
    start_raw: u64,
    window_us: u64,
}

impl QueueLimiter {
    /// Creates a limiter without charges, for windows of this length.
    pub fn new(window: Duration) -> Self {
        let clock = quanta::Clock::new();
        let window_us = window.as_micros() as u64;
        let log = QueueLog::with_window(window_us);
        Self { log, start_raw: clock.raw(), clock, window_us }
    }

    /// Returns the time in microseconds, which is at least one window.
    #[inline]
    fn now_us(&self) -> u64 {
        self.window_us + self.clock.delta_as_nanos(self.start_raw, self.clock.raw()) / 1_000
    }
}

impl BlockLimiter<u64> for QueueLimiter {
    fn charge_units(&self, key: &u64, units: u32) -> bool {
        (0..units).all(|_| self.log.try_charge_at(*key, self.now_us()))
    }

    fn count_denied(&self, keys: &[u64]) -> usize {
        count_denied_keys(keys, |key| self.log.try_charge_at(*key, self.now_us()))
    }
}

/// A limit whose keys are counted in a store, through the trait that all stores implement.
pub struct StoreLimiter<S> {
    store: S,
    limit: Limit,
    scope: Scope,
}

impl<S: Store> StoreLimiter<S> {
    /// Creates a limiter that counts in `store`.
    pub fn new(store: S, limit: Limit) -> Self {
        Self { store, limit, scope: new_tenant_scope() }
    }

    #[inline(always)]
    fn try_charge(&self, key: &str, units: u64) -> bool {
        let value: [Value<'_>; 1] = [key.into()];
        charge_in_store(&self.store, &[Hit::new(Key::new(&self.scope, &value), &self.limit, units)])
    }
}

impl<S: Store> BlockLimiter<String> for StoreLimiter<S> {
    fn charge_units(&self, key: &String, units: u32) -> bool {
        self.try_charge(key, u64::from(units))
    }

    fn count_denied(&self, keys: &[String]) -> usize {
        count_denied_keys(keys, |key| self.try_charge(key, 1))
    }
}

/// Returns the scope of the keys in benchmarks of stores: one attribute, the tenant.
pub fn new_tenant_scope() -> Scope {
    Scope::new("api", "per-tenant", "1d", &["tenant"])
}

/// Charges hits in a store. Returns `true` if the charge is allowed; `false` if it is denied, or if the store would
/// have to wait.
#[inline(always)]
pub fn charge_in_store(store: &impl Store, hits: &[Hit<'_>]) -> bool {
    match pin!(store.charge_async(hits)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(charge)) => charge.allowed,
        _ => false,
    }
}
