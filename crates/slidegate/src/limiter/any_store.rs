//! A limiter over a store that may have to be waited for.

use smallvec::SmallVec;

use super::Limiter;
use crate::decision::{Decision, Verdict};
use crate::gate::Ruling;
use crate::hit::Hit;
use crate::key::{Key, Value};
use crate::settle::{Settlement, settled};
use crate::store::{Receipt, Store, StoreError};

/// Over any store. A denial is a value; what is an error is that the store did not answer. Keys are texts, as
/// every process writes them alike. Over a store that answers without waiting these are the other methods.
impl<S: Store> Limiter<S> {
    fn written_hits<'a>(&'a self, value: &'a [Value<'a>; 1], cost: u64) -> SmallVec<[Hit<'a>; 4]> {
        let key = Key::new(&self.scope, value);
        let hit = |limit| self.hit(key, limit, cost);
        self.limits.iter().map(hit).collect()
    }

    /// Takes `cost` units of `key` if every limit has room for them. A cost of 0 asks whether one unit
    /// would fit, and takes nothing.
    ///
    /// # Errors
    /// If the store did not answer.
    pub async fn try_check(&self, key: &str, cost: u64) -> Result<Verdict, StoreError> {
        if let Some(store) = self.store.as_sync() {
            return Ok(self.check_in(store, key, cost));
        }
        let value = [Value::from(key)];
        let hits = self.written_hits(&value, cost);
        let taken = self.store.take(&hits).await?;
        Ok(Decision::of_taken(&hits, taken).into())
    }

    /// [`try_check`](Self::try_check) without a future, told as [`ruling`](Self::ruling) tells it; none if the
    /// store has to be waited for.
    #[inline]
    pub fn try_check_now(&self, key: &str, cost: u64) -> Option<Ruling> {
        let store = self.store.as_sync()?;
        Some(self.ruling(self.decide_in(store, key, cost)))
    }

    /// What [`try_check`](Self::try_check) would say. Takes nothing.
    ///
    /// # Errors
    /// If the store did not answer.
    pub async fn try_peek(&self, key: &str, cost: u64) -> Result<Verdict, StoreError> {
        if let Some(store) = self.store.as_sync() {
            let hits = self.hits(key, cost);
            return Ok(Decision::of_peeked(&hits, store.peek_now(&hits)).into());
        }
        let value = [Value::from(key)];
        let hits = self.written_hits(&value, cost);
        let outcomes = self.store.peek(&hits).await?;
        Ok(Decision::of_peeked(&hits, outcomes).into())
    }

    /// Gives back what a decision's receipt says was charged. Once only.
    ///
    /// # Errors
    /// If the store did not answer.
    pub async fn try_revert(&self, receipt: &Receipt) -> Result<(), StoreError> {
        self.store.revert(receipt).await
    }

    /// Makes `cost` what an allowed request of `key` was charged: see [`settle`](Limiter::settle).
    ///
    /// # Errors
    /// If the store did not answer.
    pub async fn try_settle(
        &self,
        key: &str,
        decision: &Decision,
        cost: u64,
    ) -> Result<(), StoreError> {
        if let Some(store) = self.store.as_sync() {
            self.settle_in(store, key, decision, cost);
            return Ok(());
        }
        match Settlement::of(decision, decision.receipt().first_cost(), cost) {
            Settlement::Nothing => Ok(()),
            Settlement::Revert { units, of } => {
                self.store.revert(&decision.receipt().fraction(units, of)).await
            }
            Settlement::Charge(extra) => {
                let value = [Value::from(key)];
                let hits = settled(self.written_hits(&value, extra), decision);
                self.store.take(&hits).await.map(drop)
            }
        }
    }

    /// Records units of `key` that have been consumed, also above max: see [`report`](Limiter::report).
    ///
    /// # Errors
    /// If the store did not answer.
    pub async fn try_report(&self, key: &str, cost: u64) -> Result<Decision, StoreError> {
        if let Some(store) = self.store.as_sync() {
            let hits = self.reported_hits(key, cost);
            return Ok(Decision::of_taken(&hits, store.take_now(&hits)));
        }
        let value = [Value::from(key)];
        let hits = self.written_hits(&value, cost).into_iter().map(Hit::reported);
        let hits: SmallVec<[Hit<'_>; 4]> = hits.collect();
        let taken = self.store.take(&hits).await?;
        Ok(Decision::of_taken(&hits, taken))
    }

    /// Takes `cost` units off the counts of `key` without a receipt: of the units that still count the oldest, or
    /// all if there are fewer.
    ///
    /// # Errors
    /// If the store did not answer.
    pub async fn try_refund(&self, key: &str, cost: u64) -> Result<(), StoreError> {
        if let Some(store) = self.store.as_sync() {
            store.refund_now(&self.hits(key, cost));
            return Ok(());
        }
        let value = [Value::from(key)];
        self.store.refund(&self.written_hits(&value, cost)).await.map(drop)
    }

    /// Forgets the counts of a key.
    ///
    /// # Errors
    /// If the store did not answer.
    pub async fn try_reset(&self, key: &str) -> Result<(), StoreError> {
        if let Some(store) = self.store.as_sync() {
            store.reset_now(&self.hits(key, 1));
            return Ok(());
        }
        let value = [Value::from(key)];
        self.store.reset(&self.written_hits(&value, 1)).await
    }
}
