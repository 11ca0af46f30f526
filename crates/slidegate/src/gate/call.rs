//! Calls with an idempotency key: the repetition of an admitted call is not charged again.

use super::wait::can_wait;
use super::{Gate, decide};
use crate::call::CallIdentity;
use crate::decision::{Decision, DecisionLimits, PolicyLimits};
use crate::hit::Hit;
use crate::outcome::Outcome;
use crate::policy::{HitList, MatchedRules, OnStoreError};
use crate::reason::Reason;
use crate::store::{
    CallSettlement, ChargeOnceResult, ChargeResult, Receipt, SettleResult, Store, StoreError,
    SyncStore, Veto,
};

impl<S: Store> Gate<S> {
    /// Decides a call with an idempotency key, unless an earlier call with the same identity was admitted: then returns
    /// the decision of the earlier call, and charges nothing.
    ///
    /// While the store is unavailable, calls are remembered in this process. If a call times out, the store may have
    /// charged it, and a repetition then returns the store's decision.
    pub(super) async fn decide_idempotent(
        &self,
        matched: &MatchedRules<'_>,
        identity: &CallIdentity,
    ) -> Decision<'static> {
        if matched.is_refund() {
            return new_denial(Reason::RefundWithIdempotencyKey, matched);
        }
        let hits: HitList<'_> = matched.hits().collect();
        let result = self.store.charge_once_async(&hits, identity).await;
        match self.notify_fallback_on_success(result) {
            Ok(result) => decision_from_result(&hits, result, matched),
            Err(error) => self.decide_idempotent_without_store(matched, identity, error),
        }
    }

    /// Decides a call with an idempotency key if the store remembers its key. Otherwise charges nothing, and returns
    /// `None`. The call [can wait](can_wait), so it charges nothing if it is denied.
    pub(super) async fn decide_remembered_call(
        &self,
        matched: &MatchedRules<'_>,
    ) -> Option<Decision<'static>> {
        let identity = matched.options()?.identity.as_ref()?;
        let mut hits: HitList<'_> = matched.hits().collect();
        // No hit fits, so that a call that is not remembered is denied, if one of its hits can deny.
        hits.iter_mut().for_each(|hit| hit.required = hit.limit.capacity().saturating_add(1));
        if !can_wait(matched) || hits.iter().all(|hit| hit.veto == Veto::Never) {
            return None;
        }
        match self.store.charge_once_async(&hits, identity).await {
            Ok(ChargeOnceResult::Repeated { .. } | ChargeOnceResult::OtherRequest) => {
                // Decided again with its own hits, which the store compares with the hits of the earlier call.
                Some(self.decide_idempotent(matched, identity).await)
            }
            Ok(ChargeOnceResult::Decided(_) | ChargeOnceResult::InProgress) | Err(_) => None,
        }
    }

    /// Applies a settlement, unless a settlement of the same call has been applied before. `is_degraded` is `true` if
    /// this gate made the charges in memory, while the store was unavailable; they are corrected in memory.
    ///
    /// # Errors
    /// If the store did not respond. The caller can repeat the settlement: it is applied once.
    pub(super) async fn apply_settlement(
        &self,
        settlement: &CallSettlement,
        is_degraded: bool,
    ) -> Result<SettleResult, StoreError> {
        if is_degraded {
            return Ok(self.fallback.settle(settlement));
        }
        let result = self.store.settle_async(settlement).await;
        let result = self.notify_fallback_on_success(result)?;
        self.on_settled(settlement, result);
        Ok(result)
    }

    /// Wakes the first request of the queue of each counter from which a settlement has reverted units.
    pub(super) fn on_settled(&self, settlement: &CallSettlement, result: SettleResult) {
        if result == SettleResult::Settled {
            self.wait_queues.wake_for_charges(&settlement.reverted);
        }
    }

    /// Decides a call with an idempotency key after a failed store call, as
    /// [`decide_without_store`](Gate::decide_without_store) does for other requests.
    fn decide_idempotent_without_store(
        &self,
        matched: &MatchedRules<'_>,
        identity: &CallIdentity,
        error: StoreError,
    ) -> Decision<'static> {
        let local = matched.select_decidable_without_store();
        if matched.on_store_error() == OnStoreError::Deny || !local.has_hits() {
            return self.decide_without_store(matched, decide::charge_local, error);
        }
        let hits: HitList<'_> = local.hits().collect();
        let decision = self.fallback.decide_with_local_counts(
            |counts| decision_from_result(&hits, counts.charge_once(&hits, identity), &local),
            Decision::outcomes,
        );
        self.fallback.keep_counts_for(identity.ttl);
        decision.into_degraded(error)
    }
}

/// Converts the result of a store into the decision on a call.
fn decision_from_result(
    hits: &[Hit<'_>],
    result: ChargeOnceResult,
    matched: &MatchedRules<'_>,
) -> Decision<'static> {
    match result {
        ChargeOnceResult::Decided(result) => {
            Decision::from_charge(hits, result, decide::decision_limits(matched))
        }
        ChargeOnceResult::Repeated { result, age } => {
            let result = result.unwrap_or_else(|| admitted_with_unknown_outcomes(hits.len()));
            let decision = Decision::from_charge(hits, result, decide::decision_limits(matched));
            decision.with_time_since_first_call(age)
        }
        ChargeOnceResult::OtherRequest => new_denial(Reason::IdempotencyKeyReused, matched),
        ChargeOnceResult::InProgress => new_denial(Reason::CallInProgress, matched),
    }
}

fn new_denial(reason: Reason, matched: &MatchedRules<'_>) -> Decision<'static> {
    Decision::new_denial(reason, DecisionLimits::Policy(PolicyLimits::none(matched)))
}

/// Returns the result of a repeated call if the store knows only that the first call was admitted, and not its
/// outcomes.
fn admitted_with_unknown_outcomes(hits: usize) -> ChargeResult {
    let outcomes = (0..hits).map(|_| Outcome::unknown()).collect();
    ChargeResult { allowed: true, outcomes, receipt: Receipt::default() }
}
