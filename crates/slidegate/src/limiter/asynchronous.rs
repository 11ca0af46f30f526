//! Methods of a limiter for all kinds of stores, including stores that respond later or fail.

use super::{Limiter, reported};
use crate::decision::Decision;
use crate::hit::Hit;
use crate::key::{Key, Value};
use crate::store::{Adjustment, Edit, Receipt, Store, StoreError};
use crate::store_key::StoreKey;

/// Asynchronous methods, for any store. A denial is a value; an error means that the store did not respond. Each method
/// does the same as the method of the same name without `_async`. A store outside of this process counts by the
/// [text](StoreKey::text) of a key, which is the same in every process.
impl<S: Store> Limiter<S> {
    /// Decides a request for `key`, and charges one unit if every limit has capacity for it.
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn check_async<K: StoreKey + ?Sized>(
        &self,
        key: &K,
    ) -> Result<Decision<'_>, StoreError> {
        self.check_cost_async(key, 1).await
    }

    /// Decides a request for `key`, and charges `cost` units if every limit has capacity for them. A cost of 0 checks
    /// whether one unit would fit, and charges nothing.
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn check_cost_async<K: StoreKey + ?Sized>(
        &self,
        key: &K,
        cost: u64,
    ) -> Result<Decision<'_>, StoreError> {
        if let Some(store) = self.store.as_sync() {
            return Ok(self.check_in_store(store, key, cost));
        }
        let text = key.text();
        let value = [Value::from(&*text)];
        let hits = self.hits_for_key(Key::new(&self.scope, &value), cost);
        let result = self.store.charge_async(&hits).await?;
        Ok(Decision::from_charge(&hits, result, self.decision_limits()))
    }

    /// Decides a request like [`check_cost_async`](Self::check_cost_async), but without a future. Returns `None` if the
    /// store is asynchronous.
    #[inline]
    pub(crate) fn try_check_cost<K: StoreKey + ?Sized>(
        &self,
        key: &K,
        cost: u64,
    ) -> Option<Decision<'_>> {
        Some(self.check_in_store(self.store.as_sync()?, key, cost))
    }

    /// Decides one request for each key, in order and independently of each other, in one call to the store.
    ///
    /// # Errors
    /// If the store did not respond. Some of the requests may have been charged.
    pub async fn check_many_async<K: StoreKey>(
        &self,
        keys: &[K],
    ) -> Result<Vec<Decision<'_>>, StoreError> {
        if let Some(store) = self.store.as_sync() {
            return Ok(keys.iter().map(|key| self.check_in_store(store, key, 1)).collect());
        }
        let texts: Vec<_> = keys.iter().map(StoreKey::text).collect();
        let values: Vec<_> = texts.iter().map(|text| [Value::from(&**text)]).collect();
        let mut hits: Vec<Hit<'_>> = Vec::with_capacity(keys.len() * self.limits.len());
        for value in &values {
            hits.extend(self.hits_for_key(Key::new(&self.scope, value), 1));
        }
        let calls: Vec<&[Hit<'_>]> = hits.chunks(self.limits.len()).collect();
        let results = self.store.charge_many_async(&calls).await?;
        let pairs = calls.iter().zip(results);
        let decision = |(hits, result): (&&[Hit<'_>], _)| {
            Decision::from_charge(hits, result, self.decision_limits())
        };
        Ok(pairs.map(decision).collect())
    }

    /// Returns the decision that [`check_cost_async`](Self::check_cost_async) would make. Charges nothing.
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn peek_async<K: StoreKey + ?Sized>(
        &self,
        key: &K,
        cost: u64,
    ) -> Result<Decision<'_>, StoreError> {
        let text = key.text();
        let value = [Value::from(&*text)];
        let hits = self.hits_for_key(self.key_for_store(key, &value), cost);
        let outcomes = self.store.peek_async(&hits).await?;
        Ok(Decision::from_peek(&hits, outcomes, self.decision_limits()))
    }

    /// Records units of `key` that have been consumed already. A report is never denied.
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn report_async<K: StoreKey + ?Sized>(
        &self,
        key: &K,
        cost: u64,
    ) -> Result<Decision<'_>, StoreError> {
        let text = key.text();
        let value = [Value::from(&*text)];
        let hits = reported(self.hits_for_key(self.key_for_store(key, &value), cost));
        let result = self.store.charge_async(&hits).await?;
        Ok(Decision::from_charge(&hits, result, self.decision_limits()))
    }

    /// Corrects the charge of an allowed request to `cost`, the actual cost. Call this method at most once per
    /// decision.
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn settle_async(&self, decision: &Decision<'_>, cost: u64) -> Result<(), StoreError> {
        if decision.is_allowed() {
            self.adjust_async(&decision.receipt(), Adjustment::SetCost(cost)).await
        } else {
            Ok(())
        }
    }

    /// Reverts the charges of a decision. Call this method at most once per decision.
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn revert_async(&self, decision: &Decision<'_>) -> Result<(), StoreError> {
        self.adjust_async(&decision.receipt(), Adjustment::Revert).await
    }

    /// Subtracts `cost` units from each counter of `key`, oldest units first, or all units if the counter has fewer.
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn refund_async<K: StoreKey + ?Sized>(
        &self,
        key: &K,
        cost: u64,
    ) -> Result<(), StoreError> {
        self.edit_counters_async(key, cost, Edit::Refund).await
    }

    /// Resets all counters of a key to zero.
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn reset_async<K: StoreKey + ?Sized>(&self, key: &K) -> Result<(), StoreError> {
        self.edit_counters_async(key, 1, Edit::Reset).await
    }

    async fn adjust_async(
        &self,
        receipt: &Receipt,
        adjustment: Adjustment,
    ) -> Result<(), StoreError> {
        self.store.adjust_async(receipt, adjustment).await?;
        self.wait_queues.wake_for_charges(receipt.charges_to_revert(adjustment));
        Ok(())
    }

    async fn edit_counters_async<K: StoreKey + ?Sized>(
        &self,
        key: &K,
        cost: u64,
        edit: Edit,
    ) -> Result<(), StoreError> {
        let text = key.text();
        let value = [Value::from(&*text)];
        let hits = self.hits_for_key(self.key_for_store(key, &value), cost);
        self.store.edit_async(&hits, edit).await?;
        self.wait_queues.wake_for_hits(&self.store, hits);
        Ok(())
    }

    /// Returns the key for the store of the limiter: the hash of `key` for a synchronous store, otherwise the key with
    /// this value.
    pub(super) fn key_for_store<'a, K: StoreKey + ?Sized>(
        &'a self,
        key: &K,
        value: &'a [Value<'a>; 1],
    ) -> Key<'a> {
        match self.store.as_sync() {
            Some(_) => self.hash_key(key),
            None => Key::new(&self.scope, value),
        }
    }
}
