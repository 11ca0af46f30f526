//! Calls of a limiter that wait until they fit, in the order of their arrival.

use std::hash::Hash;
use std::time::Duration;

use super::decide::{Operation, StoreAndMemoryKey};
use super::{Check, Limiter};
use crate::decision::{Decision, Denied};
#[cfg(feature = "tokio")]
use crate::key::Value;
use crate::store::{Store, SyncStore, poll_once};
#[cfg(feature = "tokio")]
use crate::store_key::StoreKey;
use crate::wait::{Timer, WaitingCall, counters_that_can_deny, denying_counters, run_wait};

impl<S> Limiter<S> {
    /// Charges a call as soon as it fits. Blocks the current thread until then, plus a random time if the
    /// [options of waits](crate::wait::WaitOptions) have a jitter. Waits without a bound if the
    /// call has no [maximum wait](Check::max_wait).
    ///
    /// Waiting calls for the same key are admitted in the order of their arrival: a call waits for the calls before it
    /// even if its own cost would fit now. This order includes asynchronous calls, but not calls that do not wait: they
    /// are admitted whenever their cost fits. Calls in other processes that share the store have their own order. If
    /// this limiter settles, reverts or refunds units of the key, the first waiting call decides again immediately.
    ///
    /// # Errors
    /// If the cost exceeds the capacity of a limit, and so never fits, if the maximum wait has ended, or if too many
    /// calls are waiting; see [`WaitOptions`](crate::wait::WaitOptions).
    pub fn wait<'k, K: Hash + ?Sized + 'k>(
        &self,
        call: impl Into<Check<'k, K>>,
    ) -> Result<Decision<'_>, Denied>
    where
        S: SyncStore,
    {
        let call = call.into();
        self.wait_on_thread(&call, self.max_wait_if_bounded(&call)).into_result()
    }

    /// Decides a call that waits for at most its maximum wait.
    pub(super) fn check_after_wait<K: Hash + ?Sized>(&self, call: Check<'_, K>) -> Decision<'_>
    where
        S: SyncStore,
    {
        self.wait_on_thread(&call, Some(self.clamp_max_wait(call.max_wait)))
    }

    fn wait_on_thread<K: Hash + ?Sized>(
        &self,
        call: &Check<'_, K>,
        max_wait: Option<Duration>,
    ) -> Decision<'_>
    where
        S: SyncStore,
    {
        poll_once(self.wait_for_key(Timer::Thread, self.sync_store_key(call.key), call, max_wait))
    }

    /// Returns the longest wait of a call that waits until it fits; `None` if it waits without a bound.
    fn max_wait_if_bounded<K: ?Sized>(&self, call: &Check<'_, K>) -> Option<Duration> {
        (!call.max_wait.is_zero()).then(|| self.clamp_max_wait(call.max_wait))
    }

    /// Returns the smaller of `max_wait` and the longest wait of this limiter.
    pub(super) fn clamp_max_wait(&self, max_wait: Duration) -> Duration {
        max_wait.min(self.wait_queues.options().max_wait)
    }
}

#[cfg(feature = "tokio")]
impl<S: Store> Limiter<S> {
    /// Charges a call as soon as it fits. Waits until then on the timer of tokio. See [`wait`](Self::wait).
    ///
    /// A call whose future is dropped leaves the queue, and charges nothing while it waits. A future that is kept but
    /// not polled delays the calls behind it.
    ///
    /// # Errors
    /// If the cost exceeds the capacity of a limit, and so never fits, if the maximum wait has ended, or if too many
    /// calls are waiting; see [`WaitOptions`](crate::wait::WaitOptions). Also if the store is unavailable, and
    /// [`on_store_error`](Self::on_store_error) denies calls then.
    pub async fn wait_async<'k, K: StoreKey + ?Sized + 'k>(
        &self,
        call: impl Into<Check<'k, K>>,
    ) -> Result<Decision<'_>, Denied> {
        let call: Check<'k, K> = call.into();
        let text = self.text_for_store(call.key);
        let value = [Value::from(&*text)];
        let key = self.store_and_memory_key(call.key, &value);
        let max_wait = self.max_wait_if_bounded(&call);
        self.wait_for_key(Timer::Tokio, key, &call, max_wait).await.into_result()
    }
}

impl<S: Store> Limiter<S> {
    /// Charges a call as soon as it fits. While the call waits, the size of its key counts as waiting bytes.
    pub(super) async fn wait_for_key<K: ?Sized>(
        &self,
        timer: Timer,
        key: StoreAndMemoryKey<'_>,
        call: &Check<'_, K>,
        max_wait: Option<Duration>,
    ) -> Decision<'_> {
        let queues = &self.wait_queues;
        let hits = self.hits(&self.limits, key.in_store, call.cost);
        let mut wait = WaitingCall::new(queues, max_wait, size_of_val(call.key), timer.now());
        run_wait!(
            wait,
            timer,
            counters: counters_that_can_deny(queues, &self.store, hits.iter().copied()),
            check: {
                let decision = self.decide(Operation::Check, key, call.cost).await;
                let denying = denying_counters(queues, &self.store, &hits, &decision);
                (decision, denying)
            },
            peek: self.decide(Operation::Peek, key, call.cost).await,
        )
    }
}
