//! Operations of the store that change counters without a decision: corrections, reverts, refunds and resets.

use std::sync::Arc;

use slidegate::StoreError;
use slidegate::store::{Adjustment, Charge, Hit, Outcome, Outcomes, Receipt};

use super::RedisStoreInner;
use crate::maintenance;
use crate::script_request::{KeyedHit, KeyedHits, parse_counter_id};

impl RedisStoreInner {
    /// Changes the charges of a receipt: reverts the excess, then charges the additional units.
    pub(super) async fn adjust(
        self: &Arc<Self>,
        receipt: &Receipt,
        adjustment: Adjustment,
    ) -> Result<(), StoreError> {
        let reverted: Vec<Charge> = receipt.charges_to_revert(adjustment).collect();
        if !reverted.is_empty() {
            self.revert(&reverted).await?;
        }
        let is_own = |charge: &Charge| parse_counter_id(&charge.counter).is_some();
        let additional = receipt.additional_charges(adjustment).filter(is_own);
        let hits: KeyedHits =
            additional.map(|charge| self.keyspace.keyed_hit(&charge.reported_hit())).collect();
        self.charge(hits).await.map(drop)
    }

    /// Reverts charges, and removes their counters from the denial cache.
    pub(super) async fn revert(&self, charges: &[Charge]) -> Result<(), StoreError> {
        let reverted =
            maintenance::revert(&self.topology, charges, self.new_request_deadline()).await;
        // Removes the cached denials also after an error, because the revert may have happened.
        for (key, tag) in charges.iter().filter_map(|charge| parse_counter_id(&charge.counter)) {
            self.deny_cache.invalidate(key, tag);
        }
        reverted
    }

    /// Subtracts the costs of hits from their counters. For a sampled rule with factor N, one refund in N is sent, with
    /// N times the cost, as for charges.
    pub(super) async fn refund(&self, hits: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        let hits = self.keyspace.keyed_hits(hits);
        let random = fastrand::u32(..);
        let is_sent = |hit: &KeyedHit| random.is_multiple_of(hit.sample) || hit.cost == 0;
        let sent: KeyedHits = hits.iter().filter(|hit| is_sent(hit)).cloned().collect();
        let refunded =
            maintenance::refund(&self.topology, &sent, self.new_request_deadline()).await;
        // Removes the cached denials also after an error, because the refund may have happened.
        for hit in &sent {
            self.deny_cache.invalidate(&hit.key, hit.tag);
        }
        let refunded = refunded?;
        let mut outcomes = refunded.iter().copied();
        let outcome = |hit: &KeyedHit| {
            if is_sent(hit) {
                outcomes.next().unwrap_or_else(Outcome::unknown)
            } else {
                Outcome::unknown()
            }
        };
        Ok(hits.iter().map(outcome).collect())
    }

    /// Deletes the counters of hits. If a counter is split over several keys, all its parts are deleted.
    pub(super) async fn reset(&self, hits: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        let keyed: KeyedHits =
            hits.iter().flat_map(|hit| self.keyspace.keyed_hits_in_all_parts(hit)).collect();
        let reset = maintenance::reset(&self.topology, &keyed, self.new_request_deadline()).await;
        for hit in &keyed {
            self.deny_cache.invalidate(&hit.key, hit.tag);
        }
        reset.map(|()| hits.iter().map(unused_counter_outcome).collect())
    }
}

/// Returns the outcome of a hit that requires one unit of a counter that has no units in use.
fn unused_counter_outcome(hit: &Hit<'_>) -> Outcome {
    hit.key.limit_share().unwrap_or(hit.limit).outcome_if_unused()
}
