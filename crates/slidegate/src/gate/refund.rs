//! Requests with descriptors that refund units.
//!
//! Such a request takes two calls to the store. The first call applies the refunds, even if the request is denied
//! afterwards; the second call charges the other hits. The outcomes are merged in the order of the policy. A refund is
//! never the binding outcome of the decision.

use smallvec::SmallVec;

use crate::decision::Decision;
use crate::hit::Hit;
use crate::outcome::Outcome;
use crate::policy::MatchedRules;
use crate::store::{ChargeResult, Outcomes, Receipt, Store, StoreError, SyncStore};

type HitList<'h> = SmallVec<[Hit<'h>; 3]>;

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
        let all = matched.hits();
        let is_refund: SmallVec<_> = matched.refund_flag_per_hit().collect();
        let select = |refunds: bool| {
            let pairs = all.iter().zip(&is_refund);
            pairs.filter(|(_, is_refund)| **is_refund == refunds).map(|(hit, _)| *hit).collect()
        };
        Self { refunds: select(true), charges: select(false), is_refund, all }
    }

    /// Merges the outcomes of the refunds and of the charges, in the order of the hits, into one decision.
    fn merge_into_decision(&self, refunded: Outcomes, charged: ChargeResult) -> Decision {
        let (mut refunds, mut charges) = (refunded.into_iter(), charged.outcomes.into_iter());
        let outcomes = self.is_refund.iter().filter_map(|is_refund| match is_refund {
            // A refund denies nothing, whatever the state of its counter.
            true => refunds.next().map(Outcome::charged),
            false => charges.next(),
        });
        Decision::from_charge(&self.all, ChargeResult { outcomes: outcomes.collect(), ..charged })
    }
}

/// Applies the refunds of a request, then decides and charges its other hits.
pub(super) async fn refund_and_charge<S: Store>(
    store: &S,
    matched: &MatchedRules<'_>,
) -> Result<Decision, StoreError> {
    let hits = RefundsAndCharges::new(matched);
    let refunded = store.refund(&hits.refunds).await?;
    let charged = match hits.charges.is_empty() {
        true => {
            ChargeResult { allowed: true, outcomes: Outcomes::new(), receipt: Receipt::default() }
        }
        false => store.take(&hits.charges).await?,
    };
    Ok(hits.merge_into_decision(refunded, charged))
}

/// Applies refunds and charges as [`refund_and_charge`] does, with a store that responds without waiting.
#[cold]
pub(super) fn refund_and_charge_now<S: SyncStore + ?Sized>(
    store: &S,
    matched: &MatchedRules<'_>,
) -> Decision {
    let hits = RefundsAndCharges::new(matched);
    let refunded = store.refund_now(&hits.refunds);
    hits.merge_into_decision(refunded, store.take_now(&hits.charges))
}

/// Returns the hits with which a peek of a request calls the store. Each refund is replaced by a hit that requires one
/// unit and costs nothing, so that the peek returns the present status of the refund's counter.
pub(super) fn hits_for_peek<'h>(matched: &'h MatchedRules<'_>) -> HitList<'h> {
    let mut hits = matched.hits();
    let pairs = hits.iter_mut().zip(matched.refund_flag_per_hit());
    for (hit, _) in pairs.filter(|(_, is_refund)| *is_refund) {
        (hit.cost, hit.required) = (0, 1);
    }
    hits
}

/// Creates the decision of a peek. `outcomes` are the outcomes of `hits`, which [`hits_for_peek`] returned.
pub(super) fn decision_from_peek(
    matched: &MatchedRules<'_>,
    hits: &[Hit<'_>],
    mut outcomes: Outcomes,
) -> Decision {
    let pairs = outcomes.iter_mut().zip(matched.refund_flag_per_hit());
    let refunds = pairs.filter(|(_, is_refund)| *is_refund);
    refunds.for_each(|(outcome, _)| *outcome = outcome.charged());
    Decision::from_peek(hits, outcomes)
}
