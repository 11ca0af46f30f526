//! Requests that take more than one script call: several requests in order, and a request with keys in several slots.

use std::sync::Arc;

use futures_util::future::{join_all, poll_immediate};
use slidegate::StoreError;
use slidegate::store::ChargeResult;

use super::RedisStoreInner;
use crate::multi_slot::{self, split_by_slot};
use crate::script_request::{KeyedHits, ScriptMode};

impl RedisStoreInner {
    /// Charges several requests. Requests whose keys are in the same slot are decided in the given order.
    pub(super) async fn decide_requests_in_order_per_slot(
        self: &Arc<Self>,
        requests: impl Iterator<Item = KeyedHits>,
    ) -> Vec<Result<ChargeResult, StoreError>> {
        let (mut results, mut pending) = (Vec::new(), Vec::new());
        let mut leader = None;
        for (index, hits) in requests.enumerate() {
            if !hits.is_empty() && self.common_slot_of_hits(&hits).is_none() {
                // A request with keys in several slots calls each slot twice. No other request may charge these slots
                // in between, so the requests before it are completed first.
                drop(leader.take());
                results.extend(join_all(pending.drain(..)).await);
                results.push((index, self.charge_result(hits).await));
                continue;
            }
            leader = leader.or_else(|| self.topology.try_pause_queue());
            let mut future = Box::pin(async move { (index, self.charge_result(hits).await) });
            // Polls the request once, so that it is enqueued before the next request.
            match poll_immediate(&mut future).await {
                Some(result) => results.push(result),
                None => pending.push(future),
            }
        }
        drop(leader);
        results.extend(join_all(pending).await);
        results.sort_unstable_by_key(|(index, _)| *index);
        results.into_iter().map(|(_, result)| result).collect()
    }

    async fn charge_result(self: &Arc<Self>, hits: KeyedHits) -> Result<ChargeResult, StoreError> {
        self.charge(hits).await.map(|(result, _)| result)
    }

    /// Decides and charges a request whose keys are in several slots.
    pub(super) async fn charge_in_several_slots(
        self: Arc<Self>,
        hits: KeyedHits,
    ) -> Result<ChargeResult, StoreError> {
        let sampled_hits = self.sampled_hits_with_versions(&hits);
        let pending_charges = self.deny_cache.register_unconfirmed_charges(&hits);
        let parts = split_by_slot(&self.topology, ScriptMode::Take, hits);
        let deadline = self.new_request_deadline();
        let result = multi_slot::charge_slot_parts(&self.topology, &parts, deadline, || {
            self.new_request_deadline()
        })
        .await;
        // Without a result, the cache assumes that all hits were charged, also after a denial: hits may have been
        // charged and reverted.
        drop(pending_charges);
        let result = result?;
        self.record_sampled_outcomes(&sampled_hits, &result);
        Ok(result)
    }
}
