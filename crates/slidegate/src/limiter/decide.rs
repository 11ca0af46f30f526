//! The bodies of all operations of a limiter: they call the store, or decide in memory while the store is unavailable.
//! With a synchronous store, their futures are ready when they are first polled.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Limiter;
use crate::decision::{Decision, DecisionLimits};
use crate::hit::Hit;
use crate::key::{Key, Value};
use crate::limit::Limit;
use crate::on_store_error::OnStoreError;
use crate::rule_limit::NamedLimits;
use crate::store::{Adjustment, Edit, Receipt, Store, StoreError, StoreKind, block_on_sync_store};
use crate::store_key::StoreKey;

/// The hits of one call, one for each limit of the limiter.
pub(super) type HitList<'l> = SmallVec<[Hit<'l>; 4]>;

/// The effect of a call on the counters of its key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    /// Charges the cost if every limit has capacity for it.
    Check,
    /// Returns the decision of a check. Charges nothing.
    Peek,
    /// Records units that have been consumed. Never denies.
    Report,
}

/// The key of a call in two forms: for the store, and for the counts in this process while the store is unavailable.
#[derive(Clone, Copy)]
pub(super) struct StoreAndMemoryKey<'a> {
    pub(super) in_store: Key<'a>,
    pub(super) in_memory: Key<'static>,
}

impl<S> Limiter<S> {
    /// Returns the decision on a request that has no key although a key is required: a denial without a retry time, or,
    /// in [observe mode](Limiter::observing), an admission.
    pub fn decide_without_key(&self) -> Decision<'static> {
        let limits = Cow::Owned(self.named_limits.clone());
        let limits = DecisionLimits::Limiter { limits, is_key_missing: true };
        Decision::for_missing_key(self.named_limits.veto(), limits)
    }

    /// Returns the limits for a decision.
    #[inline]
    pub(super) fn decision_limits(&self) -> DecisionLimits<'_> {
        to_decision_limits(&self.named_limits)
    }

    /// Returns one hit of `cost` units for each limit.
    #[inline]
    pub(super) fn hits<'l>(&self, limits: &'l [Limit], key: Key<'l>, cost: u64) -> HitList<'l> {
        let mut hits = HitList::new();
        for limit in limits {
            hits.push(self.new_hit(key, limit, cost));
        }
        hits
    }

    #[inline]
    pub(super) fn new_hit<'l>(&self, key: Key<'l>, limit: &'l Limit, cost: u64) -> Hit<'l> {
        let hit = Hit::new(key, limit, cost);
        if self.named_limits.is_observing() { hit.in_observe_mode() } else { hit }
    }

    /// Decides a call after a failed call of the store, as the [`OnStoreError`] of the limiter says.
    fn decide_without_store(
        &self,
        operation: Operation,
        key: Key<'static>,
        cost: u64,
        error: StoreError,
    ) -> Decision<'_> {
        let limits = to_decision_limits(&self.share.named_limits);
        match self.on_store_error {
            OnStoreError::Allow => Decision::new_allowed(limits).into_degraded(error),
            OnStoreError::Deny => Decision::denial_from_store_error(limits, error),
            OnStoreError::Local => {
                let hits = self.hits(&self.share.limits, key, cost);
                let decision = self.fallback.decide_with_local_counts(
                    |counts| block_on_sync_store(decide(counts, operation, hits, limits)),
                    Decision::outcomes,
                );
                decision.into_degraded(error)
            }
        }
    }
}

impl<S: Store> Limiter<S> {
    pub(super) async fn decide(
        &self,
        operation: Operation,
        key: StoreAndMemoryKey<'_>,
        cost: u64,
    ) -> Decision<'_> {
        let hits = self.hits(&self.limits, key.in_store, cost);
        match decide(&self.store, operation, hits, self.decision_limits()).await {
            Ok(decision) => {
                self.fallback.on_store_success();
                decision
            }
            Err(error) => self.decide_without_store(operation, key.in_memory, cost, error),
        }
    }

    pub(super) async fn decide_many(&self, keys: &[StoreAndMemoryKey<'_>]) -> Vec<Decision<'_>> {
        let hits = keys.iter().map(|key| self.hits(&self.limits, key.in_store, 1));
        let hits: Vec<HitList<'_>> = hits.collect();
        let calls: Vec<&[Hit<'_>]> = hits.iter().map(|hits| &**hits).collect();
        match self.store.charge_many_async(&calls).await {
            Ok(results) => {
                self.fallback.on_store_success();
                let decided = calls.iter().zip(results);
                decided
                    .map(|(hits, result)| {
                        Decision::from_charge(hits, result, self.decision_limits())
                    })
                    .collect()
            }
            Err(error) => {
                let decide = |key: &StoreAndMemoryKey<'_>| {
                    self.decide_without_store(Operation::Check, key.in_memory, 1, error.clone())
                };
                keys.iter().map(decide).collect()
            }
        }
    }

    pub(super) async fn edit(&self, key: Key<'_>, cost: u64, edit: Edit) -> Result<(), StoreError> {
        let hits = self.hits(&self.limits, key, cost);
        self.store.edit_async(&hits, edit).await?;
        self.wait_queues.wake_for_hits(&self.store, hits);
        Ok(())
    }

    /// Changes the charges of a decision, in the memory of this process if they were made there.
    pub(super) async fn adjust_charges(
        &self,
        decision: &Decision<'_>,
        adjustment: Adjustment,
    ) -> Result<(), StoreError> {
        let receipt: &Receipt = decision.receipt();
        if decision.is_degraded() {
            self.fallback.adjust_local_charges(receipt, adjustment);
            return Ok(());
        }
        self.store.adjust_async(receipt, adjustment).await?;
        self.wait_queues.wake_for_charges(receipt.charges_to_revert(adjustment));
        Ok(())
    }

    /// Returns the text of a key for a store outside of this process; an empty text for a synchronous store, which
    /// counts by hashes.
    pub(super) fn text_for_store<'k, K: StoreKey + ?Sized>(&self, key: &'k K) -> Cow<'k, str> {
        if S::Kind::IS_SYNCHRONOUS { Cow::Borrowed("") } else { key.text() }
    }

    /// Returns the key of a call. A synchronous store counts by the hash of `key`, an asynchronous one by `value`,
    /// which has the text of the key.
    pub(super) fn store_and_memory_key<'a, K: StoreKey + ?Sized>(
        &'a self,
        key: &K,
        value: &'a [Value<'a>; 1],
    ) -> StoreAndMemoryKey<'a> {
        let in_memory = self.hash_key(key);
        let in_store =
            if S::Kind::IS_SYNCHRONOUS { in_memory } else { Key::new(&self.scope, value) };
        StoreAndMemoryKey { in_store, in_memory }
    }
}

/// Decides the hits of a call with the counts of a store.
async fn decide<'l, S: Store>(
    store: &S,
    operation: Operation,
    mut hits: HitList<'_>,
    limits: DecisionLimits<'l>,
) -> Result<Decision<'l>, StoreError> {
    match operation {
        Operation::Peek => {
            let outcomes = store.peek_async(&hits).await?;
            return Ok(Decision::from_peek(&hits, outcomes, limits));
        }
        Operation::Report => hits.iter_mut().for_each(|hit| *hit = hit.reported()),
        Operation::Check => {}
    }
    let result = store.charge_async(&hits).await?;
    Ok(Decision::from_charge(&hits, result, limits))
}

#[inline]
fn to_decision_limits(limits: &Arc<NamedLimits>) -> DecisionLimits<'_> {
    DecisionLimits::Limiter { limits: Cow::Borrowed(limits), is_key_missing: false }
}
