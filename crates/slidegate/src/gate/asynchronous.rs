//! Methods of a gate for all kinds of stores, including stores that respond later or fail.

use super::{Gate, decide};
use crate::decision::{Decision, DecisionLimits, PolicyLimits};
use crate::hit::Hit;
use crate::policy::{MatchedRules, OnStoreError};
use crate::request::Request;
use crate::store::{Adjustment, Edit, Outcomes, Receipt, Store, StoreError};
use crate::wait::WaitCounters;

use super::fallback::LocalCounts;

/// Asynchronous methods, for any store. Each method does the same as the method of the same name without `_async`.
///
/// While the store is unavailable, decisions are degraded, that is, made without the store. If a rule that can deny the
/// request has [`OnStoreError::Deny`], the request is denied. Otherwise each rule that applies follows its own
/// [`OnStoreError`]. The bound on the units that are then admitted is described at
/// [`with_instances`](Gate::with_instances).
impl<S: Store> Gate<S> {
    /// Decides a request, and charges its cost if every limit has capacity for it.
    /// [Refunds](crate::Descriptor::as_refund) are applied first, in a separate call to the store, also if the request
    /// is then denied.
    pub async fn check_async(&self, request: &Request<'_>) -> Decision<'static> {
        let policy = self.policy.load();
        self.warn_about_unknown_costs(&policy, request);
        self.check_matched_async(&policy.apply(request)).await
    }

    /// Decides a request like [`check_async`](Self::check_async). `matched` are the rules of a policy that apply to the
    /// request.
    pub async fn check_matched_async(&self, matched: &MatchedRules<'_>) -> Decision<'static> {
        if !matched.has_hits() {
            return decide_without_limits(matched);
        }
        let on_refunded = |refunds: &[Hit<'_>]| self.on_refunded(refunds);
        let decision = decide::charge(&self.store, matched, on_refunded).await;
        match self.notify_fallback_on_success(decision) {
            Ok(decision) => decision,
            Err(_) => self.decide_without_store(matched, decide::charge_local),
        }
    }

    /// Decides requests one after the other, as [`check_async`](Self::check_async) does, all under the same policy.
    pub async fn check_many_async(&self, requests: &[Request<'_>]) -> Vec<Decision<'static>> {
        let policy = self.policy.load();
        let mut decisions = Vec::with_capacity(requests.len());
        for request in requests {
            self.warn_about_unknown_costs(&policy, request);
            decisions.push(self.check_matched_async(&policy.apply(request)).await);
        }
        decisions
    }

    /// Returns the decision that [`check_async`](Self::check_async) would make. Charges nothing.
    pub async fn peek_async(&self, request: &Request<'_>) -> Decision<'static> {
        let policy = self.policy.load();
        self.peek_matched_async(&policy.apply(request)).await
    }

    /// Returns the decision of [`peek_async`](Self::peek_async). `matched` are the rules of a policy that apply to the
    /// request.
    pub async fn peek_matched_async(&self, matched: &MatchedRules<'_>) -> Decision<'static> {
        if !matched.has_hits() {
            return decide_without_limits(matched);
        }
        match self.notify_fallback_on_success(decide::peek(&self.store, matched).await) {
            Ok(decision) => decision,
            Err(_) => self.decide_without_store(matched, decide::peek_local),
        }
    }

    /// Records units that have been consumed already. A report is never denied.
    pub async fn report_async(&self, request: &Request<'_>) -> Decision<'static> {
        let policy = self.policy.load();
        self.warn_about_unknown_costs(&policy, request);
        let matched = policy.apply(request).into_matches_for_reported_usage();
        self.check_matched_async(&matched).await
    }

    /// Corrects the charges of an allowed request to `cost`, its actual cost. Call this method at most once per
    /// decision. Charges that were made in memory, while the store was unavailable, are corrected in memory.
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn settle_async(&self, decision: &Decision<'_>, cost: u64) -> Result<(), StoreError> {
        if !decision.is_allowed() {
            return Ok(());
        }
        let receipt = decision.request_cost_receipt();
        self.warn_if_request_cost_is_unused(decision, &receipt);
        self.adjust_receipt(decision, &receipt, Adjustment::SetCost(cost)).await
    }

    /// Corrects the charges of the named cost `cost` of an allowed request to `units`; charges of other costs stay. See
    /// [`settle_named`](Self::settle_named). Call this method at most once per decision and cost.
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn settle_named_async(
        &self,
        decision: &Decision<'_>,
        cost: &str,
        units: u64,
    ) -> Result<(), StoreError> {
        if !decision.is_allowed() {
            return Ok(());
        }
        let receipt = decision.named_cost_receipt(cost);
        self.warn_if_named_cost_is_unused(decision, &receipt, cost);
        self.adjust_receipt(decision, &receipt, Adjustment::SetCost(units)).await
    }

    /// Reverts the charges of a decision. Call this method at most once per decision. Charges that were made in memory,
    /// while the store was unavailable, are reverted in memory.
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn revert_async(&self, decision: &Decision<'_>) -> Result<(), StoreError> {
        self.adjust_receipt(decision, decision.receipt(), Adjustment::Revert).await
    }

    /// Subtracts the cost of a request from the counters of all rules that apply to it, oldest units first. No decision
    /// is needed.
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

    /// Wakes the first waiting request of each counter to which refunds have returned units.
    pub(super) fn on_refunded(&self, refunds: &[Hit<'_>]) {
        self.wait_queues.wake_for_hits(&self.store, refunds.iter().copied());
    }

    /// Changes the charges of `receipt`, which is all or a part of the receipt of `decision`.
    async fn adjust_receipt(
        &self,
        decision: &Decision<'_>,
        receipt: &Receipt,
        adjustment: Adjustment,
    ) -> Result<(), StoreError> {
        if decision.is_degraded() {
            self.fallback.adjust(receipt, adjustment);
            return Ok(());
        }
        self.notify_fallback_on_success(self.store.adjust_async(receipt, adjustment).await)?;
        self.wait_queues.wake_for_charges(receipt.charges_to_revert(adjustment));
        Ok(())
    }

    /// Reverts the charges of a receipt without waiting for the result. An asynchronous store reverts them in the background:
    /// a waiting request that is woken now may be denied once more, and decides again later.
    pub(super) fn revert_later(&self, receipt: Receipt) {
        let counters = receipt.charges().iter().map(|charge| &charge.counter);
        let counters: WaitCounters =
            counters.map(|id| self.wait_queues.counter_of_id(id)).collect();
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
        let hits: Vec<Hit<'_>> = matched.hits().collect();
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
    ) -> Decision<'static> {
        let is_denied = matched.on_store_error() == OnStoreError::Deny;
        let mut local = matched.matches_decidable_without_store();
        if is_denied {
            // Refunds are applied also if the request is denied: their units have not been consumed.
            local = local.only_refunds();
        }
        let decision = if local.has_hits() {
            self.fallback
                .decide_with_local_counts(|counts| decide(counts, &local), Decision::outcomes)
        } else {
            decide_without_limits(&local)
        };
        if is_denied {
            Decision::store_unavailable(DecisionLimits::Policy(PolicyLimits::none(&local)))
        } else {
            decision.into_degraded()
        }
    }

    /// Returns `result` unchanged. If the store call succeeded, notifies the fallback, which can then drop its counts.
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
    Decision::from_peek(&[], Outcomes::new(), decide::limits_of(matched))
}
