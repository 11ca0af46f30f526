//! A store, and how long it takes to answer.

use std::future::Future;

use slidegate::store::Outcomes;
use slidegate::{Hit, Receipt, Store, StoreError, Taken};
use tokio::time::Instant;

use super::metrics::StoreMetrics;

/// A store whose calls are timed, and whose errors are counted.
pub struct Watched<S> {
    store: S,
    metrics: Option<StoreMetrics>,
}

impl<S> Watched<S> {
    /// Without metrics nothing is watched.
    pub fn new(store: S, metrics: Option<StoreMetrics>) -> Self {
        Self { store, metrics }
    }

    /// The store itself.
    pub fn inner(&self) -> &S {
        &self.store
    }

    async fn watch<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let Some(metrics) = &self.metrics else { return call.await };
        let begun = Instant::now();
        let answer = call.await;
        metrics.answered(begun.elapsed(), answer.as_ref().err());
        answer
    }
}

impl<S: Store> Store for Watched<S> {
    async fn take(&self, hits: &[Hit<'_>]) -> Result<Taken, StoreError> {
        self.watch(self.store.take(hits)).await
    }

    async fn take_many(&self, asks: &[&[Hit<'_>]]) -> Result<Vec<Taken>, StoreError> {
        self.watch(self.store.take_many(asks)).await
    }

    async fn peek(&self, hits: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        self.watch(self.store.peek(hits)).await
    }

    async fn give_back(&self, receipt: &Receipt) -> Result<(), StoreError> {
        self.watch(self.store.give_back(receipt)).await
    }

    async fn reset(&self, hits: &[Hit<'_>]) -> Result<(), StoreError> {
        self.watch(self.store.reset(hits)).await
    }
}
