//! Calls of a limiter that wait until they fit, in the order of their arrival.

use std::hash::Hash;
use std::time::Duration;

use super::Limiter;
#[cfg(feature = "tokio")]
use super::WaitError;
use crate::decision::{Decision, Denied};
use crate::jitter::Jitter;
use crate::key::Key;
#[cfg(feature = "tokio")]
use crate::key::Value;
use crate::store::{Store, StoreError, SyncStore, decide_now};
#[cfg(feature = "tokio")]
use crate::store_key::StoreKey;
use crate::wait::queues::WaitQueues;
use crate::wait::{
    Timer, Wait, WaitBounds, WaitOptions, WaitStats, denying_counters, run_wait, vetoing_counters,
};

impl<S> Limiter<S> {
    /// Sets the bounds on the calls that wait at the same time; see [`WaitBounds`].
    #[must_use]
    pub fn with_wait_bounds(self, bounds: WaitBounds) -> Self {
        Self { wait_queues: WaitQueues::new(bounds), ..self }
    }

    /// Returns the number of calls that wait now, and the results of the calls that have waited.
    pub fn wait_stats(&self) -> WaitStats {
        self.wait_queues.stats()
    }

    /// Charges `cost` units to `key` as soon as they fit, and blocks the current thread until then, but at most for
    /// `max_wait`. Denies the request as soon as it is known that it does not fit within `max_wait`.
    ///
    /// Waiting calls for the same key are admitted in the order of their arrival; see [`wait`](Self::wait).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let limiter = slidegate::Limiter::new(["1/50ms", "100/h"])?;
    /// let max_wait = Duration::from_secs(1);
    /// assert!(limiter.check("acme").is_allowed());
    /// assert!(limiter.check_within("acme", 1, max_wait).is_allowed());     // after 50 ms
    /// assert!(!limiter.check_within("acme", 99, max_wait).is_allowed());   // immediately: it needs an hour
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    pub fn check_within<K: Hash + ?Sized>(
        &self,
        key: &K,
        cost: u64,
        max_wait: Duration,
    ) -> Decision<'_>
    where
        S: SyncStore,
    {
        if max_wait.is_zero() {
            return self.check_cost(key, cost);
        }
        let options = WaitOptions { max_wait: Some(max_wait), jitter: Jitter::NONE };
        let key = (self.hash_key(key), size_of_val(key));
        decide_now(self.wait_for_key(Timer::Thread, key, cost, options))
    }

    /// Charges `cost` units to `key` as soon as they fit. Blocks the current thread until then, plus a random time of
    /// up to `jitter`.
    ///
    /// Waiting calls for the same key are admitted in the order of their arrival: a call waits for the calls before it
    /// even if its own cost would fit now. This order includes the calls of `wait_async`, but not calls that do not
    /// wait, such as [`check`](Self::check): they are admitted whenever their cost fits. Calls in other processes that
    /// share the store have their own order. If this limiter settles, reverts or refunds units of the key, the first
    /// waiting call decides again immediately.
    ///
    /// # Errors
    /// If the cost exceeds the capacity of a limit, and so never fits, or if too many calls are waiting; see
    /// [`WaitBounds`].
    pub fn wait<K: Hash + ?Sized>(
        &self,
        key: &K,
        cost: u64,
        jitter: Jitter,
    ) -> Result<Decision<'_>, Denied>
    where
        S: SyncStore,
    {
        let options = WaitOptions { max_wait: None, jitter };
        let key = (self.hash_key(key), size_of_val(key));
        decide_now(self.wait_for_key(Timer::Thread, key, cost, options)).into_result()
    }
}

/// Asynchronous calls that wait on the timer of tokio, for any store.
#[cfg(feature = "tokio")]
impl<S: Store> Limiter<S> {
    /// Charges `cost` units to `key` as soon as they fit, but waits at most for `max_wait`, on the timer of tokio. Denies
    /// the request as soon as it is known that it does not fit within `max_wait`.
    ///
    /// Waiting calls for the same key are admitted in the order of their arrival; see [`wait_async`](Self::wait_async).
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn check_within_async<K: StoreKey + ?Sized>(
        &self,
        key: &K,
        cost: u64,
        max_wait: Duration,
    ) -> Result<Decision<'_>, StoreError> {
        if max_wait.is_zero() {
            return self.check_cost_async(key, cost).await;
        }
        let options = WaitOptions { max_wait: Some(max_wait), jitter: Jitter::NONE };
        self.wait_on_tokio(key, cost, options).await
    }

    /// Charges `cost` units to `key` as soon as they fit. Waits until then on the timer of tokio, plus a random time of
    /// up to `jitter`.
    ///
    /// Waiting calls for the same key are admitted in the order of their arrival: a call waits for the calls before it
    /// even if its own cost would fit now. This order includes the calls of `wait`, but not calls that do not wait, such
    /// as [`check_async`](Self::check_async): they are admitted whenever their cost fits. Calls in other processes that
    /// share the store have their own order.
    ///
    /// A call whose future is dropped leaves the queue, and charges nothing while it waits. A future that is kept but
    /// not polled delays the calls behind it.
    ///
    /// # Errors
    /// If the cost exceeds the capacity of a limit, and so never fits, if too many calls are waiting (see
    /// [`WaitBounds`]), or if the store did not respond.
    pub async fn wait_async<K: StoreKey + ?Sized>(
        &self,
        key: &K,
        cost: u64,
        jitter: Jitter,
    ) -> Result<Decision<'_>, WaitError> {
        let options = WaitOptions { max_wait: None, jitter };
        Ok(self.wait_on_tokio(key, cost, options).await?.into_result()?)
    }

    async fn wait_on_tokio<K: StoreKey + ?Sized>(
        &self,
        key: &K,
        cost: u64,
        options: WaitOptions,
    ) -> Result<Decision<'_>, StoreError> {
        let text = self.text_for_store(key);
        let value = [Value::from(&*text)];
        let key = (self.key_for_store(key, &value), size_of_val(key));
        self.wait_for_key(Timer::Tokio, key, cost, options).await
    }
}

impl<S: Store> Limiter<S> {
    /// Charges a key as soon as `cost` units fit. While the call waits, it keeps a key of `key_bytes` bytes.
    async fn wait_for_key(
        &self,
        timer: Timer,
        (key, key_bytes): (Key<'_>, usize),
        cost: u64,
        options: WaitOptions,
    ) -> Result<Decision<'_>, StoreError> {
        let queues = &self.wait_queues;
        let hits = self.hits_for_key(key, cost);
        let mut wait = Wait::new(queues, options, key_bytes, timer.now());
        let waited = run_wait!(
            wait,
            timer,
            counters: vetoing_counters(queues, &self.store, hits.iter().copied()),
            check: {
                let decision = self.charge_key(key, cost).await?;
                let denying = denying_counters(queues, &self.store, &hits, &decision);
                (decision, denying)
            },
            peek: self.peek_key(key, cost).await?,
        );
        Ok(waited.decision)
    }
}
