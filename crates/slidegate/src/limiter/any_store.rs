//! Methods of a limiter for all kinds of stores, including stores that respond later or fail.

use smallvec::SmallVec;

use super::Limiter;
use crate::decision::{Decision, Verdict};
use crate::gate::Ruling;
use crate::hit::Hit;
use crate::key::{Key, Value};
use crate::settle::{ChargeCorrection, extra_charge_hits};
use crate::store::{Receipt, Store, StoreError};

/// Methods for any store. A denial is a value; an error means that the store did not respond. Keys are texts, which
/// have the same form in every process. With a store that responds without waiting, each method does the same as the
/// method of the same name without `try_`.
impl<S: Store> Limiter<S> {
    /// Returns one hit of `cost` units for each limit. `value` is the caller's key, converted into the value of a
    /// [`Key`].
    fn hits_with_text_key<'a>(
        &'a self,
        value: &'a [Value<'a>; 1],
        cost: u64,
    ) -> SmallVec<[Hit<'a>; 4]> {
        let key = Key::new(&self.scope, value);
        let hit = |limit| self.new_hit(key, limit, cost);
        self.limits.iter().map(hit).collect()
    }

    /// Decides a request for `key`, and charges `cost` units if every limit has capacity for them. A cost of 0 checks
    /// whether one unit would fit, and charges nothing.
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn try_check(&self, key: &str, cost: u64) -> Result<Verdict, StoreError> {
        if let Some(store) = self.store.as_sync() {
            return Ok(self.check_in_store(store, key, cost));
        }
        let value = [Value::from(key)];
        let hits = self.hits_with_text_key(&value, cost);
        let result = self.store.take(&hits).await?;
        Ok(Decision::from_charge(&hits, result).into())
    }

    /// Decides a request like [`try_check`](Self::try_check), but synchronously, and returns a
    /// [`ruling`](Self::ruling). Returns `None` if the store is asynchronous.
    #[inline]
    pub fn try_check_now(&self, key: &str, cost: u64) -> Option<Ruling> {
        let store = self.store.as_sync()?;
        Some(self.ruling(self.decide_in_store(store, key, cost)))
    }

    /// Returns the decision that [`try_check`](Self::try_check) would make. Charges nothing.
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn try_peek(&self, key: &str, cost: u64) -> Result<Verdict, StoreError> {
        if let Some(store) = self.store.as_sync() {
            let hits = self.hits_for_cost(key, cost);
            return Ok(Decision::from_peek(&hits, store.peek_now(&hits)).into());
        }
        let value = [Value::from(key)];
        let hits = self.hits_with_text_key(&value, cost);
        let outcomes = self.store.peek(&hits).await?;
        Ok(Decision::from_peek(&hits, outcomes).into())
    }

    /// Reverts the charges of a decision's receipt. Call this method at most once per receipt.
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn try_revert(&self, receipt: &Receipt) -> Result<(), StoreError> {
        self.store.revert(receipt).await
    }

    /// Corrects the charge of an allowed request for `key` to `cost`; see [`settle`](Limiter::settle).
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn try_settle(
        &self,
        key: &str,
        decision: &Decision,
        cost: u64,
    ) -> Result<(), StoreError> {
        if let Some(store) = self.store.as_sync() {
            self.settle_in_store(store, key, decision, cost);
            return Ok(());
        }
        match ChargeCorrection::new(decision, decision.receipt().cost_of_first_charge(), cost) {
            ChargeCorrection::Unchanged => Ok(()),
            ChargeCorrection::Revert { units, charged } => {
                self.store.revert(&decision.receipt().fraction(units, charged)).await
            }
            ChargeCorrection::Charge(extra) => {
                let value = [Value::from(key)];
                let hits = extra_charge_hits(self.hits_with_text_key(&value, extra), decision);
                self.store.take(&hits).await.map(drop)
            }
        }
    }

    /// Records units of `key` that have been consumed, also above max; see [`report`](Limiter::report).
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn try_report(&self, key: &str, cost: u64) -> Result<Decision, StoreError> {
        if let Some(store) = self.store.as_sync() {
            let hits = self.hits_for_reported_usage(key, cost);
            return Ok(Decision::from_charge(&hits, store.take_now(&hits)));
        }
        let value = [Value::from(key)];
        let hits = self.hits_with_text_key(&value, cost).into_iter().map(Hit::reported);
        let hits: SmallVec<[Hit<'_>; 4]> = hits.collect();
        let result = self.store.take(&hits).await?;
        Ok(Decision::from_charge(&hits, result))
    }

    /// Subtracts `cost` units from each counter of `key`, oldest units first, or all units if the counter has fewer. No
    /// receipt is needed.
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn try_refund(&self, key: &str, cost: u64) -> Result<(), StoreError> {
        if let Some(store) = self.store.as_sync() {
            store.refund_now(&self.hits_for_cost(key, cost));
            return Ok(());
        }
        let value = [Value::from(key)];
        self.store.refund(&self.hits_with_text_key(&value, cost)).await.map(drop)
    }

    /// Resets all counters of a key to zero.
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn try_reset(&self, key: &str) -> Result<(), StoreError> {
        if let Some(store) = self.store.as_sync() {
            store.reset_now(&self.hits_for_cost(key, 1));
            return Ok(());
        }
        let value = [Value::from(key)];
        self.store.reset(&self.hits_with_text_key(&value, 1)).await
    }
}
