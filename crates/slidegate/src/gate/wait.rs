//! Requests to a gate that wait until they fit, in the order of their arrival.

use std::time::Duration;

use super::Gate;
#[cfg(feature = "tokio")]
use super::once::{OnceDecision, OnceError};
#[cfg(feature = "tokio")]
use crate::call::CallIdentity;
use crate::decision::{Decision, Denied};
use crate::jitter::Jitter;
use crate::policy::{HitList, MatchedRules};
use crate::request::Request;
use crate::store::{Store, SyncStore, poll_once};
#[cfg(feature = "tokio")]
use crate::wait::Waited;
use crate::wait::queues::WaitQueues;
use crate::wait::{
    Timer, Wait, WaitBounds, WaitCounters, WaitOptions, WaitStats, denying_counters,
    is_decided_once, run_wait, vetoing_counters,
};

impl<S> Gate<S> {
    /// Sets the bounds on the requests that wait at the same time; see [`WaitBounds`].
    #[must_use]
    pub fn with_wait_bounds(self, bounds: WaitBounds) -> Self {
        Self { wait_queues: WaitQueues::new(bounds), ..self }
    }

    /// Returns the number of requests that wait now, and the results of the requests that have waited.
    pub fn wait_stats(&self) -> WaitStats {
        self.wait_queues.stats()
    }

    /// Charges a request as soon as it fits, and blocks the current thread until then, but at most for `max_wait`.
    /// Denies the request as soon as it is known that it does not fit within `max_wait`.
    ///
    /// Waiting requests for the same limit and key are admitted in the order of their arrival; see
    /// [`wait`](Self::wait).
    ///
    /// ```
    /// use std::time::Duration;
    /// use slidegate::{Descriptor, Gate, MemoryStore, Policy, Request};
    ///
    /// let policy = Policy::from_yaml("rules: [{ name: all, limits: [1/50ms] }]")?;
    /// let gate = Gate::new(policy, MemoryStore::new());
    /// let request = Request::new("default", Descriptor::new([]));
    /// assert!(gate.check(&request).is_allowed());
    /// assert!(!gate.check_within(&request, Duration::from_millis(5)).is_allowed()); // immediately
    /// assert!(gate.check_within(&request, Duration::from_secs(1)).is_allowed());    // after 50 ms
    /// # Ok::<(), slidegate::PolicyErrors>(())
    /// ```
    pub fn check_within(&self, request: &Request<'_>, max_wait: Duration) -> Decision<'static>
    where
        S: SyncStore,
    {
        if max_wait.is_zero() {
            return self.check(request);
        }
        let options = WaitOptions { max_wait: Some(max_wait), jitter: Jitter::NONE };
        poll_once(self.wait_for_request(Timer::Thread, request, options))
    }

    /// Charges a request as soon as it fits. Blocks the current thread until then, plus a random time of up to
    /// `jitter`.
    ///
    /// Waiting requests for the same limit and key are admitted in the order of their arrival: a request waits for the
    /// requests before it even if its own cost would fit now. This order includes the requests of `wait_async`, but not
    /// requests that do not wait, such as the requests of [`check`](Self::check): they are admitted whenever they fit.
    /// Requests in other processes that share the store have their own order.
    ///
    /// If this gate settles, refunds or reverts units, or releases a [permit](crate::Permit), the first request that waits
    /// for them decides again immediately. A request that waits only for a permit also decides again at intervals of up
    /// to 1.2 seconds, because other processes may release permits.
    ///
    /// A request is decided once, and does not wait, if it also changes counters if it is denied: if it contains
    /// [refunds](crate::Descriptor::as_refund), or if a rule has `charge: always`.
    ///
    /// # Errors
    /// If the request never fits, for example because its cost exceeds the capacity of a limit, if it cannot wait, or if
    /// too many requests are waiting; see [`WaitBounds`].
    pub fn wait(&self, request: &Request<'_>, jitter: Jitter) -> Result<Decision<'static>, Denied>
    where
        S: SyncStore,
    {
        let options = WaitOptions { max_wait: None, jitter };
        poll_once(self.wait_for_request(Timer::Thread, request, options)).into_result()
    }
}

/// Asynchronous calls that wait on the timer of tokio, for any store.
#[cfg(feature = "tokio")]
impl<S: Store> Gate<S> {
    /// Charges a request as soon as it fits, but waits at most for `max_wait`, on the timer of tokio. Denies the request
    /// as soon as it is known that it does not fit within `max_wait`.
    ///
    /// Waiting requests for the same limit and key are admitted in the order of their arrival; see
    /// [`wait_async`](Self::wait_async).
    pub async fn check_within_async(
        &self,
        request: &Request<'_>,
        max_wait: Duration,
    ) -> Decision<'static> {
        if max_wait.is_zero() {
            return self.check_async(request).await;
        }
        let options = WaitOptions { max_wait: Some(max_wait), jitter: Jitter::NONE };
        self.wait_for_request(Timer::Tokio, request, options).await
    }

    /// Decides a request like [`check_within_async`](Self::check_within_async). `matched` are the rules of a policy that
    /// apply to the request. Returns the decision, and the time for which the request waited.
    pub async fn check_matched_within_async(
        &self,
        request: &Request<'_>,
        matched: &MatchedRules<'_>,
        max_wait: Duration,
    ) -> (Decision<'static>, Duration) {
        if !can_wait(matched) {
            return (self.check_matched_async(matched).await, Duration::ZERO);
        }
        let options = WaitOptions { max_wait: Some(max_wait), jitter: Jitter::NONE };
        let (queues, timer) = (&self.wait_queues, Timer::Tokio);
        let mut wait = Wait::new(queues, options, request.bytes(), timer.now());
        let Waited { decision, time } = run_wait!(
            wait,
            timer,
            counters: vetoing_counters(queues, &self.store, matched.hits()),
            check: {
                let decision = self.check_matched_async(matched).await;
                let denying = self.denying_counters(matched, &decision);
                (decision, denying)
            },
            peek: self.peek_matched_async(matched).await,
        );
        (decision, time)
    }

    /// Decides a request like [`check_matched_once_async`](Self::check_matched_once_async), but waits for up to `max_wait`
    /// until it fits, like [`check_matched_within_async`](Self::check_matched_within_async). Returns the decision, and the
    /// time for which the request waited.
    ///
    /// The store is called only when it is the turn of the request. So a repetition of an admitted call waits for earlier
    /// requests too, and is denied if its turn does not come within `max_wait`.
    ///
    /// # Errors
    /// If the id belongs to another request, or the first call with this id is still being decided.
    pub async fn check_matched_once_within_async(
        &self,
        request: &Request<'_>,
        matched: &MatchedRules<'_>,
        identity: &CallIdentity,
        max_wait: Duration,
    ) -> Result<(OnceDecision, Duration), OnceError> {
        if max_wait.is_zero() || !can_wait(matched) {
            let once = self.check_matched_once_async(matched, identity).await?;
            return Ok((once, Duration::ZERO));
        }
        let options = WaitOptions { max_wait: Some(max_wait), jitter: Jitter::NONE };
        let (queues, timer) = (&self.wait_queues, Timer::Tokio);
        let mut wait = Wait::new(queues, options, request.bytes(), timer.now());
        let mut repeated_after = None;
        let Waited { decision, time } = run_wait!(
            wait,
            timer,
            counters: vetoing_counters(queues, &self.store, matched.hits()),
            check: {
                let once = self.check_matched_once_async(matched, identity).await?;
                repeated_after = once.repeated_after;
                let denying = self.denying_counters(matched, &once.decision);
                (once.decision, denying)
            },
            peek: self.peek_matched_async(matched).await,
        );
        Ok((OnceDecision { decision, repeated_after }, time))
    }

    /// Charges a request as soon as it fits. Waits until then on the timer of tokio, plus a random time of up to
    /// `jitter`.
    ///
    /// Waiting requests for the same limit and key are admitted in the order of their arrival: a request waits for the
    /// requests before it even if its own cost would fit now. This order includes the requests of `wait`, but not
    /// requests that do not wait, such as the requests of [`check_async`](Self::check_async): they are admitted whenever
    /// they fit. Requests in other processes that share the store have their own order.
    ///
    /// A request is decided once, and does not wait, if it also changes counters if it is denied: if it contains
    /// [refunds](crate::Descriptor::as_refund), or if a rule has `charge: always`.
    ///
    /// A request whose future is dropped leaves the queue, and charges nothing while it waits. A future that is kept but
    /// not polled delays the requests behind it.
    ///
    /// # Errors
    /// If the request never fits, for example because its cost exceeds the capacity of a limit, or because the store is
    /// unavailable and a rule then denies requests. Also if the request cannot wait, or if too many requests are waiting;
    /// see [`WaitBounds`].
    pub async fn wait_async(
        &self,
        request: &Request<'_>,
        jitter: Jitter,
    ) -> Result<Decision<'static>, Denied> {
        let options = WaitOptions { max_wait: None, jitter };
        self.wait_for_request(Timer::Tokio, request, options).await.into_result()
    }
}

impl<S: Store> Gate<S> {
    /// Charges a request as soon as it fits. Each decision uses the policy of its time.
    async fn wait_for_request(
        &self,
        timer: Timer,
        request: &Request<'_>,
        options: WaitOptions,
    ) -> Decision<'static> {
        if !can_wait(&self.policy.load().apply(request)) {
            return self.check_async(request).await;
        }
        self.warn_about_unknown_costs(&self.policy.load(), request);
        let queues = &self.wait_queues;
        let mut wait = Wait::new(queues, options, request.bytes(), timer.now());
        let waited = run_wait!(
            wait,
            timer,
            counters: vetoing_counters(queues, &self.store, self.policy.load().apply(request).hits()),
            check: {
                let policy = self.policy.load_full();
                let matched = policy.apply(request);
                let decision = self.check_matched_async(&matched).await;
                let denying = self.denying_counters(&matched, &decision);
                (decision, denying)
            },
            peek: self.peek_async(request).await,
        );
        waited.decision
    }

    fn denying_counters(
        &self,
        matched: &MatchedRules<'_>,
        decision: &Decision<'_>,
    ) -> WaitCounters {
        let hits: HitList<'_> = matched.hits().collect();
        denying_counters(&self.wait_queues, &self.store, &hits, decision)
    }
}

/// Returns whether a request can wait. A request that also changes counters if it is denied may only be decided once.
fn can_wait(matched: &MatchedRules<'_>) -> bool {
    !matched.is_refund() && !is_decided_once(matched.hits())
}
