//! Methods of a limiter for all kinds of stores, including stores that respond later or fail.

use super::Limiter;
use crate::decision::Decision;
use crate::key::Value;
use crate::store::{Adjustment, Edit, Store, StoreError};
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
        let text = self.text_for_store(key);
        let value = [Value::from(&*text)];
        self.charge_key(self.key_for_store(key, &value), cost).await
    }

    /// Decides one request for each key, in order and independently of each other, in one call to the store.
    ///
    /// # Errors
    /// If the store did not respond. Some of the requests may have been charged.
    pub async fn check_many_async<K: StoreKey>(
        &self,
        keys: &[K],
    ) -> Result<Vec<Decision<'_>>, StoreError> {
        let texts: Vec<_> = keys.iter().map(|key| self.text_for_store(key)).collect();
        let values: Vec<_> = texts.iter().map(|text| [Value::from(&**text)]).collect();
        let pairs = keys.iter().zip(&values);
        self.charge_keys(pairs.map(|(key, value)| self.key_for_store(key, value))).await
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
        let text = self.text_for_store(key);
        let value = [Value::from(&*text)];
        self.peek_key(self.key_for_store(key, &value), cost).await
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
        let text = self.text_for_store(key);
        let value = [Value::from(&*text)];
        self.report_key(self.key_for_store(key, &value), cost).await
    }

    /// Corrects the charge of an allowed request to `cost`, the actual cost. Call this method at most once per
    /// decision.
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn settle_async(&self, decision: &Decision<'_>, cost: u64) -> Result<(), StoreError> {
        if decision.is_allowed() {
            self.adjust(decision.receipt(), Adjustment::SetCost(cost)).await
        } else {
            Ok(())
        }
    }

    /// Reverts the charges of a decision. Call this method at most once per decision.
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn revert_async(&self, decision: &Decision<'_>) -> Result<(), StoreError> {
        self.adjust(decision.receipt(), Adjustment::Revert).await
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
        let text = self.text_for_store(key);
        let value = [Value::from(&*text)];
        self.edit_key(self.key_for_store(key, &value), cost, Edit::Refund).await
    }

    /// Resets all counters of a key to zero.
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn reset_async<K: StoreKey + ?Sized>(&self, key: &K) -> Result<(), StoreError> {
        let text = self.text_for_store(key);
        let value = [Value::from(&*text)];
        self.edit_key(self.key_for_store(key, &value), 1, Edit::Reset).await
    }
}
