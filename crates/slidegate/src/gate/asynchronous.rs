//! Methods of a gate for all kinds of stores, including stores that respond later or fail.

use std::time::Duration;

use super::ineffective_costs::is_permit_charge;
use super::wait::can_wait;
use super::{Gate, decide};
use crate::decision::{Decision, DecisionLimits, PolicyLimits};
use crate::hit::Hit;
use crate::policy::{ChargeOrPeek, MatchedRules, OnStoreError};
use crate::request::Request;
use crate::reserved_call::ActualCosts;
use crate::store::{Adjustment, Edit, Receipt, Store, StoreError};
use crate::wait::{Timer, WaitCounters};

use crate::fallback::LocalCounts;

/// Asynchronous methods, for any store. Each method does the same as the method of the same name without `_async`.
///
/// While the store is unavailable, decisions are degraded, that is, made without the store. If a rule that can deny the
/// request has [`OnStoreError::Deny`], the request is denied. Otherwise each rule that applies follows its own
/// [`OnStoreError`]. The bound on the units that are then admitted is described at
/// [`LocalCountsOptions::instances`](crate::store::LocalCountsOptions::instances).
impl<S: Store> Gate<S> {
    /// Decides a request, and charges its cost if every limit has capacity for it. Waits until then, if the request has
    /// a [maximum wait](Request::with_max_wait).
    ///
    /// [Refunds](crate::Descriptor::as_refund) are applied first, in a separate call to the store, also if the request
    /// is then denied.
    pub async fn check_async(&self, request: &Request<'_>) -> Decision<'static> {
        self.check_with_timer(Timer::for_async_call, request).await
    }

    /// Decides a request by the rules of a policy that apply to it. Waits as [`check_async`](Self::check_async) does.
    /// See [`decide`](Self::decide).
    pub async fn decide_async(&self, matched: &MatchedRules<'_>) -> Decision<'static> {
        if let Some((max_wait, request_bytes)) = self.max_wait_and_bytes(matched)
            && let Some(timer) = Timer::for_async_call()
        {
            // Boxed, because few requests wait, and the others should not pay for a larger future.
            let wait = self.wait_for_rules(timer, matched, Some(max_wait), request_bytes);
            return Box::pin(wait).await;
        }
        self.decide_once(matched).await
    }

    /// Returns the decision that [`check_async`](Self::check_async) would make now. Charges nothing.
    pub async fn peek_async(&self, request: &Request<'_>) -> Decision<'static> {
        let policy = self.policy.load();
        self.decide_once(&policy.apply(request).into_peek()).await
    }

    /// Records units that have been consumed already. A report is never denied, and does not wait.
    pub async fn report_async(&self, request: &Request<'_>) -> Decision<'static> {
        let policy = self.policy.load();
        self.warn_about_unknown_costs(&policy, request);
        self.decide_once(&policy.apply(request).into_report()).await
    }

    /// Corrects the charges of an allowed request to its actual costs. Call this method at most once per decision.
    /// Charges that were made in memory, while the store was unavailable, are corrected in memory.
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn settle_async<'c>(
        &self,
        decision: &Decision<'_>,
        actual: impl Into<ActualCosts<'c>>,
    ) -> Result<(), StoreError> {
        if !decision.is_allowed() {
            return Ok(());
        }
        let actual = actual.into().for_decision(decision);
        let corrections = actual.corrections(decision);
        if corrections.iter().any(|(receipt, _)| receipt.charges().iter().all(is_permit_charge)) {
            self.warn_about_uncharged_costs(decision, &actual);
        }
        for (receipt, adjustment) in corrections.iter().filter(|(receipt, _)| !receipt.is_empty()) {
            self.adjust_charges(decision, receipt, *adjustment).await?;
        }
        Ok(())
    }

    /// Reverts the charges of a decision. Call this method at most once per decision. Charges that were made in memory,
    /// while the store was unavailable, are reverted in memory.
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn revert_async(&self, decision: &Decision<'_>) -> Result<(), StoreError> {
        self.adjust_charges(decision, decision.receipt(), Adjustment::Revert).await
    }

    /// Subtracts the cost of a request from the counters of all rules that apply to it, oldest units first. Unlike
    /// [`revert_async`](Self::revert_async), this needs no decision.
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn refund_async(&self, request: &Request<'_>) -> Result<(), StoreError> {
        self.edit_counters_async(request, Edit::Refund).await
    }

    /// Resets the counters of all rules that apply to a request to zero.
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn reset_async(&self, request: &Request<'_>) -> Result<(), StoreError> {
        self.edit_counters_async(request, Edit::Reset).await
    }

    /// Decides a request, after a wait on the timer if the request has a maximum wait and there is a timer.
    pub(super) async fn check_with_timer(
        &self,
        timer: fn() -> Option<Timer>,
        request: &Request<'_>,
    ) -> Decision<'static> {
        let policy = self.policy.load();
        self.warn_about_unknown_costs(&policy, request);
        let matched = policy.apply(request);
        if let Some((max_wait, _)) = self.max_wait_and_bytes(&matched)
            && let Some(timer) = timer()
        {
            return Box::pin(self.wait_for_request(timer, request, Some(max_wait))).await;
        }
        self.decide_once(&matched).await
    }

    /// Returns the maximum wait of a request, and the bytes that the waiting request takes; `None` if it does not wait.
    pub(super) fn max_wait_and_bytes(
        &self,
        matched: &MatchedRules<'_>,
    ) -> Option<(Duration, usize)> {
        let options = matched.options()?;
        let max_wait = options.max_wait.min(self.wait_queues.options().max_wait);
        let waits = !max_wait.is_zero()
            && matched.charge_or_peek() == ChargeOrPeek::Charge
            && can_wait(matched);
        waits.then_some((max_wait, options.request_bytes))
    }

    /// Decides a request without a wait.
    pub(super) async fn decide_once(&self, matched: &MatchedRules<'_>) -> Decision<'static> {
        if !matched.has_hits() {
            return decide_without_limits(matched);
        }
        if matched.charge_or_peek() == ChargeOrPeek::Peek {
            let decision = decide::peek(&self.store, matched).await;
            return match self.notify_fallback_on_success(decision) {
                Ok(decision) => decision,
                Err(error) => self.decide_without_store(matched, decide::peek_local, error),
            };
        }
        if let Some(identity) = matched.options().and_then(|options| options.identity.as_ref()) {
            return Box::pin(self.decide_idempotent(matched, identity)).await;
        }
        let on_refunded = |refunds: &[Hit<'_>]| self.on_refunded(refunds);
        let decision = decide::charge(&self.store, matched, on_refunded).await;
        match self.notify_fallback_on_success(decision) {
            Ok(decision) => decision,
            Err(error) => self.decide_without_store(matched, decide::charge_local, error),
        }
    }

    /// Wakes the first waiting request of each counter to which refunds have returned units.
    pub(super) fn on_refunded(&self, refunds: &[Hit<'_>]) {
        self.wait_queues.wake_for_hits(&self.store, refunds.iter().copied());
    }

    /// Changes the charges of `receipt`, which is all or a part of the receipt of `decision`.
    async fn adjust_charges(
        &self,
        decision: &Decision<'_>,
        receipt: &Receipt,
        adjustment: Adjustment,
    ) -> Result<(), StoreError> {
        if decision.is_degraded() {
            self.fallback.adjust_local_charges(receipt, adjustment);
            return Ok(());
        }
        self.notify_fallback_on_success(self.store.adjust_async(receipt, adjustment).await)?;
        self.wait_queues.wake_for_charges(receipt.charges_to_revert(adjustment));
        Ok(())
    }

    /// Reverts the charges of a receipt without waiting for the result. An asynchronous store reverts them in the
    /// background: a waiting request that is woken now may be denied once more, and decides again later.
    pub(super) fn revert_later(&self, receipt: Receipt) {
        let counters = receipt.charges().iter().map(|charge| &charge.counter);
        let counters: WaitCounters =
            counters.map(|id| self.wait_queues.queue_id_for_counter_id(id)).collect();
        self.store.revert_later(receipt);
        self.wait_queues.wake_first(counters);
    }

    async fn edit_counters_async(
        &self,
        request: &Request<'_>,
        edit: Edit,
    ) -> Result<(), StoreError> {
        let policy = self.policy.load();
        self.warn_about_unknown_costs(&policy, request);
        let matched = policy.apply(request);
        // Only a reset ends a block.
        let is_edited = |hit: &Hit<'_>| edit == Edit::Reset || hit.charge.block().is_none();
        let hits: Vec<Hit<'_>> = matched.hits().filter(is_edited).collect();
        self.notify_fallback_on_success(self.store.edit_async(&hits, edit).await)?;
        self.wait_queues.wake_for_hits(&self.store, hits);
        Ok(())
    }

    /// Decides a request after a failed store call. Denies the request if one of the rules that apply has
    /// [`OnStoreError::Deny`]; otherwise calls `decide` with the counts in memory.
    pub(super) fn decide_without_store(
        &self,
        matched: &MatchedRules<'_>,
        decide: impl FnOnce(&LocalCounts, &MatchedRules<'_>) -> Decision<'static>,
        error: StoreError,
    ) -> Decision<'static> {
        let is_denied = matched.on_store_error() == OnStoreError::Deny;
        let mut local = matched.select_decidable_without_store();
        if is_denied {
            // Refunds are applied also if the request is denied: their units have not been consumed.
            local = local.with_refunds_only();
        }
        let decision = if local.has_hits() {
            self.fallback
                .decide_with_local_counts(|counts| decide(counts, &local), Decision::outcomes)
        } else {
            decide_without_limits(&local)
        };
        if is_denied {
            Decision::denial_from_store_error(
                DecisionLimits::Policy(PolicyLimits::none(&local)),
                error,
            )
        } else {
            decision.into_degraded(error)
        }
    }

    /// Returns `result` unchanged. If the store call succeeded, notifies the in-memory fallback, which drops its counts
    /// if their windows have passed.
    pub(super) fn notify_fallback_on_success<T>(
        &self,
        result: Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if result.is_ok() {
            self.fallback.on_store_success();
        }
        result
    }
}

/// Returns the decision on a request to which no limit applies: it is allowed.
fn decide_without_limits(matched: &MatchedRules<'_>) -> Decision<'static> {
    Decision::new_allowed(decide::decision_limits(matched))
}
