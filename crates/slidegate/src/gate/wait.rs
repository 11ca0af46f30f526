//! Requests to a gate that wait until they fit, in the order of their arrival.

use std::time::Duration;

use super::Gate;
use crate::decision::{Decision, Denied};
use crate::policy::{HitList, MatchedRules};
use crate::request::Request;
use crate::store::{Store, SyncStore, poll_once};
use crate::wait::{
    Timer, WaitCounters, WaitingCall, charges_even_if_denied, counters_that_can_deny,
    denying_counters, run_wait,
};

impl<S> Gate<S> {
    /// Charges a request as soon as it fits. Blocks the current thread until then, plus a random time if the
    /// [options of waits](crate::wait::WaitOptions) have a jitter. Waits without a bound if the
    /// request has no [maximum wait](Request::with_max_wait).
    ///
    /// Waiting requests for the same limit and key are admitted in the order of their arrival: a request waits for the
    /// requests before it even if its own cost would fit now. This order includes asynchronous requests, but not
    /// requests that do not wait: they are admitted whenever they fit. Requests in other processes that share the store
    /// have their own order.
    ///
    /// If this gate settles, refunds or reverts units, or releases a [permit](crate::Permit), the first request that
    /// waits for them decides again immediately. A request that waits only for a permit also decides again at intervals
    /// of up to 1.2 seconds, because other processes may release permits.
    ///
    /// A request that changes counters even if it is denied is decided once, and does not wait: a request with
    /// [refunds](crate::Descriptor::as_refund), or to which a rule with `charge: always` or with `block` applies.
    ///
    /// # Errors
    /// If the request never fits, for example because its cost exceeds the capacity of a limit, if it cannot wait, if
    /// the maximum wait has ended, or if too many requests are waiting; see [`WaitOptions`](crate::wait::WaitOptions).
    pub fn wait(&self, request: &Request<'_>) -> Result<Decision<'static>, Denied>
    where
        S: SyncStore,
    {
        poll_once(self.wait_with_timer(Timer::Thread, request)).into_result()
    }
}

#[cfg(feature = "tokio")]
impl<S: Store> Gate<S> {
    /// Charges a request as soon as it fits. Waits until then on the timer of tokio. See
    /// [`wait`](Self::wait).
    ///
    /// A request whose future is dropped leaves the queue, and charges nothing while it waits. A future that is kept
    /// but not polled delays the requests behind it.
    ///
    /// # Errors
    /// If the request never fits, for example because its cost exceeds the capacity of a limit, or because the store is
    /// unavailable and a rule then denies requests. Also if the request cannot wait, or if too many requests are
    /// waiting; see [`WaitOptions`](crate::wait::WaitOptions).
    pub async fn wait_async(&self, request: &Request<'_>) -> Result<Decision<'static>, Denied> {
        self.wait_with_timer(Timer::Tokio, request).await.into_result()
    }
}

impl<S: Store> Gate<S> {
    async fn wait_with_timer(&self, timer: Timer, request: &Request<'_>) -> Decision<'static> {
        let policy = self.policy.load_full();
        self.warn_about_unknown_costs(&policy, request);
        let matched = policy.apply(request);
        if !can_wait(&matched) {
            return self.decide_once(&matched).await;
        }
        let max_wait = self.max_wait_and_bytes(&matched).map(|(max_wait, _)| max_wait);
        self.wait_for_request(timer, request, max_wait).await
    }

    /// Charges a request as soon as it fits. Each attempt uses the current policy, so a new policy also applies to
    /// requests that already wait. If a request cannot wait by the new policy, its next attempt is the last.
    pub(super) async fn wait_for_request(
        &self,
        timer: Timer,
        request: &Request<'_>,
        max_wait: Option<Duration>,
    ) -> Decision<'static> {
        let queues = &self.wait_queues;
        let wait = WaitingCall::new(queues, max_wait, request.memory_bytes(), timer.now());
        let mut wait = wait.with_wait_for_settlements(request.waits_for_settlements());
        run_wait!(
            wait,
            timer,
            counters: counters_that_can_deny(queues, &self.store, self.policy.load().apply(request).hits()),
            check: {
                let policy = self.policy.load_full();
                let matched = policy.apply(request);
                if !can_wait(&matched) {
                    wait.end_at_next_check();
                }
                let decision = self.decide_once(&matched).await;
                let denying = self.denying_counters(&matched, &decision);
                (decision, denying)
            },
            peek: {
                let policy = self.policy.load_full();
                let matched = policy.apply(request);
                if let Some(decision) = Box::pin(self.decide_remembered_call(&matched)).await {
                    break wait.end_repetition(timer.now(), decision);
                }
                self.peek_async(request).await
            },
        )
    }

    /// Charges a request as soon as it fits. Each attempt uses the rules in `matched`, even if the policy has been
    /// replaced.
    pub(super) async fn wait_for_rules(
        &self,
        timer: Timer,
        matched: &MatchedRules<'_>,
        max_wait: Option<Duration>,
        request_bytes: usize,
    ) -> Decision<'static> {
        let queues = &self.wait_queues;
        let waits_for_settlements =
            matched.options().is_some_and(|options| options.waits_for_settlements);
        let wait = WaitingCall::new(queues, max_wait, request_bytes, timer.now());
        let mut wait = wait.with_wait_for_settlements(waits_for_settlements);
        run_wait!(
            wait,
            timer,
            counters: counters_that_can_deny(queues, &self.store, matched.hits()),
            check: {
                let decision = self.decide_once(matched).await;
                let denying = self.denying_counters(matched, &decision);
                (decision, denying)
            },
            peek: {
                if let Some(decision) = Box::pin(self.decide_remembered_call(matched)).await {
                    break wait.end_repetition(timer.now(), decision);
                }
                self.decide_once(&matched.clone().into_peek()).await
            },
        )
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

/// Returns whether a request can wait. Each attempt of a waiting request is a decision, so a request that changes
/// counters even if it is denied cannot wait.
pub(super) fn can_wait(matched: &MatchedRules<'_>) -> bool {
    !matched.is_refund() && !charges_even_if_denied(matched.hits())
}
