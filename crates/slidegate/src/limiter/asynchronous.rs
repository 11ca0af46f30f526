//! Methods of a limiter for all kinds of stores, including stores that respond later or fail.

use super::decide::Operation;
use super::{Check, Limiter};
use crate::decision::Decision;
use crate::key::Value;
use crate::store::{Adjustment, Edit, Store, StoreError};
use crate::store_key::StoreKey;
use crate::wait::Timer;

/// Asynchronous methods, for any store. While the store is unavailable, [`on_store_error`](Limiter::on_store_error)
/// determines how calls are decided. Each method does the same as the method of the same name without `_async`. A store
/// outside of this process counts by the [text](StoreKey::text) of a key, which is the same in every process.
impl<S: Store> Limiter<S> {
    /// Decides a call, and charges its cost if every limit has capacity for it. Waits until then on the timer of tokio,
    /// if the call has a [maximum wait](Check::max_wait). The call is a key, which costs one unit, or a [`Check`].
    pub async fn check_async<'k, K: StoreKey + ?Sized + 'k>(
        &self,
        call: impl Into<Check<'k, K>>,
    ) -> Decision<'_> {
        let call: Check<'k, K> = call.into();
        let text = self.text_for_store(call.key);
        let value = [Value::from(&*text)];
        let key = self.store_and_memory_key(call.key, &value);
        if !call.max_wait.is_zero()
            && let Some(timer) = Timer::for_async_call()
        {
            // Boxed, because few calls wait, and the others should not pay for a larger future.
            let max_wait = Some(self.clamp_max_wait(call.max_wait));
            return Box::pin(self.wait_for_key(timer, key, &call, max_wait)).await;
        }
        self.decide(Operation::Check, key, call.cost).await
    }

    /// Decides one call for each key, in order and independently of each other, in one call to the store.
    pub async fn check_many_async<K: StoreKey>(&self, keys: &[K]) -> Vec<Decision<'_>> {
        let texts: Vec<_> = keys.iter().map(|key| self.text_for_store(key)).collect();
        let values: Vec<_> = texts.iter().map(|text| [Value::from(&**text)]).collect();
        let pairs = keys.iter().zip(&values);
        let keys: Vec<_> =
            pairs.map(|(key, value)| self.store_and_memory_key(key, value)).collect();
        self.decide_many(&keys).await
    }

    /// Returns the decision that [`check_async`](Self::check_async) would make now. Charges nothing.
    pub async fn peek_async<'k, K: StoreKey + ?Sized + 'k>(
        &self,
        call: impl Into<Check<'k, K>>,
    ) -> Decision<'_> {
        let call: Check<'k, K> = call.into();
        let text = self.text_for_store(call.key);
        let value = [Value::from(&*text)];
        self.decide(Operation::Peek, self.store_and_memory_key(call.key, &value), call.cost).await
    }

    /// Records units of `key` that have been consumed already. A report is never denied.
    pub async fn report_async<K: StoreKey + ?Sized>(&self, key: &K, cost: u64) -> Decision<'_> {
        let text = self.text_for_store(key);
        let value = [Value::from(&*text)];
        self.decide(Operation::Report, self.store_and_memory_key(key, &value), cost).await
    }

    /// Corrects the charge of an allowed request to `cost`, the actual cost. Call this method at most once per
    /// decision.
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn settle_async(&self, decision: &Decision<'_>, cost: u64) -> Result<(), StoreError> {
        if decision.is_allowed() {
            self.adjust_charges(decision, Adjustment::SetCost(cost)).await
        } else {
            Ok(())
        }
    }

    /// Reverts the charges of a decision. Call this method at most once per decision.
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn revert_async(&self, decision: &Decision<'_>) -> Result<(), StoreError> {
        self.adjust_charges(decision, Adjustment::Revert).await
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
        self.edit(self.store_and_memory_key(key, &value).in_store, cost, Edit::Refund).await
    }

    /// Resets all counters of a key to zero.
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn reset_async<K: StoreKey + ?Sized>(&self, key: &K) -> Result<(), StoreError> {
        let text = self.text_for_store(key);
        let value = [Value::from(&*text)];
        self.edit(self.store_and_memory_key(key, &value).in_store, 1, Edit::Reset).await
    }
}
