//! Calls of the store for the rules that apply to a request.
//!
//! A request with descriptors that refund units takes two calls to the store. The first call applies the refunds, even
//! if the request is denied afterwards; the second call charges the other hits. The outcomes are merged in the order of
//! the policy. A refund is never the binding limit of the decision.

use smallvec::SmallVec;

use crate::decision::{Decision, DecisionLimits, PolicyLimits};
use crate::hit::Hit;
use crate::outcome::Outcome;
use crate::policy::{HitList, MatchedRules};
use crate::store::{
    Charge, ChargeResult, Edit, Outcomes, Receipt, Store, StoreError, block_on_sync_store,
};

use crate::fallback::LocalCounts;

/// The hits of a request, split into hits that refund units and hits that charge units.
struct RefundsAndCharges<'h> {
    all: HitList<'h>,
    /// For each hit in `all`, whether the hit is a refund.
    is_refund: SmallVec<[bool; 8]>,
    refunds: HitList<'h>,
    charges: HitList<'h>,
}

impl<'h> RefundsAndCharges<'h> {
    fn new(matched: &'h MatchedRules<'_>) -> Self {
        let all: HitList<'_> = matched.hits().collect();
        let is_refund: SmallVec<_> = matched.refund_flag_per_hit().collect();
        let select = |refunds: bool| {
            let pairs = all.iter().zip(&is_refund);
            pairs.filter(|(_, is_refund)| **is_refund == refunds).map(|(hit, _)| *hit).collect()
        };
        Self { refunds: select(true), charges: select(false), is_refund, all }
    }

    /// Merges the outcomes of the refunds and of the charges, in the order of the hits, into one decision.
    fn merge_into_decision(
        &self,
        matched: &MatchedRules<'_>,
        refunded: Outcomes,
        charged: ChargeResult,
    ) -> Decision<'static> {
        let mut refunds = refunded.iter().copied();
        let mut charges = charged.outcomes.iter().copied();
        let merge_next = |is_refund: &bool| {
            if *is_refund {
                // A refund denies nothing, so its outcome counts as fitting, even if its counter is above max.
                refunds.next().map(Outcome::charged)
            } else {
                charges.next()
            }
        };
        let outcomes = self.is_refund.iter().filter_map(merge_next).collect();
        let charged_hits: SmallVec<[u32; 8]> = (0..)
            .zip(&self.is_refund)
            .filter(|(_, is_refund)| !**is_refund)
            .map(|(at, _)| at)
            .collect();
        let receipt = charged.receipt.into_iter().map(|charge| Charge {
            hit_index: charged_hits.get(charge.hit_index as usize).copied().unwrap_or(u32::MAX),
            ..charge
        });
        let result =
            ChargeResult { allowed: charged.allowed, outcomes, receipt: receipt.collect() };
        Decision::from_charge(&self.all, result, decision_limits(matched))
    }
}

/// Decides a request, and charges its hits if it is allowed. Calls `on_refunded` with the hits that have refunded units.
pub(super) async fn charge<S: Store>(
    store: &S,
    matched: &MatchedRules<'_>,
    on_refunded: impl FnOnce(&[Hit<'_>]),
) -> Result<Decision<'static>, StoreError> {
    if matched.is_refund() {
        // Boxed, because few requests refund, and the others should not pay for a larger future.
        return Box::pin(refund_and_charge(store, matched, on_refunded)).await;
    }
    let hits: HitList<'_> = matched.hits().collect();
    let result = store.charge_async(&hits).await?;
    Ok(Decision::from_charge(&hits, result, decision_limits(matched)))
}

/// Decides a request as [`charge`] does, with the counts in memory. Refunds of these counts wake no waiting call,
/// because calls wait only for counters of the store.
pub(super) fn charge_local(counts: &LocalCounts, matched: &MatchedRules<'_>) -> Decision<'static> {
    block_on_sync_store(charge(counts, matched, |_| {}))
}

/// Returns the decision that [`charge`] would make. Charges nothing.
pub(super) async fn peek<S: Store>(
    store: &S,
    matched: &MatchedRules<'_>,
) -> Result<Decision<'static>, StoreError> {
    let hits = hits_for_peek(matched);
    let mut outcomes = store.peek_async(&hits).await?;
    let pairs = outcomes.iter_mut().zip(matched.refund_flag_per_hit());
    let refunds = pairs.filter(|(_, is_refund)| *is_refund);
    refunds.for_each(|(outcome, _)| *outcome = outcome.charged());
    Ok(Decision::from_peek(&hits, outcomes, decision_limits(matched)))
}

/// Returns the decision that [`charge_local`] would make with the counts in memory. Charges nothing.
pub(super) fn peek_local(counts: &LocalCounts, matched: &MatchedRules<'_>) -> Decision<'static> {
    block_on_sync_store(peek(counts, matched))
}

/// Returns the limits for the decision on a request.
pub(super) fn decision_limits(matched: &MatchedRules<'_>) -> DecisionLimits<'static> {
    DecisionLimits::Policy(PolicyLimits::new(matched))
}

/// Applies the refunds of a request, then decides and charges its other hits.
async fn refund_and_charge<S: Store>(
    store: &S,
    matched: &MatchedRules<'_>,
    on_refunded: impl FnOnce(&[Hit<'_>]),
) -> Result<Decision<'static>, StoreError> {
    let hits = RefundsAndCharges::new(matched);
    let refunded = store.edit_async(&hits.refunds, Edit::Refund).await?;
    on_refunded(&hits.refunds);
    let charged = if hits.charges.is_empty() {
        ChargeResult { allowed: true, outcomes: Outcomes::new(), receipt: Receipt::default() }
    } else {
        store.charge_async(&hits.charges).await?
    };
    Ok(hits.merge_into_decision(matched, refunded, charged))
}

/// Returns the hits with which a peek of a request calls the store. Each refund is replaced by a hit that requires one
/// unit and costs nothing, so that the peek returns the present status of the refund's counter.
fn hits_for_peek<'h>(matched: &'h MatchedRules<'_>) -> HitList<'h> {
    let mut hits: HitList<'_> = matched.hits().collect();
    let pairs = hits.iter_mut().zip(matched.refund_flag_per_hit());
    for (hit, _) in pairs.filter(|(_, is_refund)| *is_refund) {
        (hit.cost, hit.required) = (0, 1);
    }
    hits
}
