//! A wrapper around a store that records metrics and traces of its calls.

use std::future::Future;

use quanta::Instant;
use slidegate::store::{CounterId, OnceResult, Outcomes, SettleResult, Settlement};
use slidegate::{
    Adjustment, CallIdentity, ChargeResult, Edit, Hit, PermitChange, Receipt, Store, StoreError,
};

use super::metrics::StoreMetrics;
use super::redact::Redactor;
use super::store_failure_log::StoreFailureLog;
use super::traces::StoreTracer;

/// A store whose calls are timed and traced, and whose errors are counted and logged.
pub struct InstrumentedStore<S> {
    store: S,
    metrics: Option<StoreMetrics>,
    tracer: Option<StoreTracer>,
    failure_log: StoreFailureLog,
}

impl<S> InstrumentedStore<S> {
    /// Wraps a store. Records no metrics if `metrics` is `None`, and no traces if `tracer` is `None`. `redactor` decides
    /// which values of keys are hashed in the log.
    pub fn new(
        store: S,
        metrics: Option<StoreMetrics>,
        tracer: Option<StoreTracer>,
        redactor: Redactor,
    ) -> Self {
        Self { store, metrics, tracer, failure_log: StoreFailureLog::new(redactor) }
    }

    /// Returns the wrapped store, whose calls are not recorded.
    pub fn inner(&self) -> &S {
        &self.store
    }

    async fn measure_store_call<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let span = self.tracer.as_ref().map(StoreTracer::begin);
        let timed = self.metrics.as_ref().map(|metrics| (metrics, Instant::now()));
        let result = call.await;
        let error = result.as_ref().err();
        if let Some(error) = error {
            self.failure_log.log(error);
        }
        if let Some((metrics, started)) = timed {
            metrics.record_call(started.elapsed(), error);
        }
        if let Some(span) = span {
            span.finish(error);
        }
        result
    }
}

impl<S: Store> Store for InstrumentedStore<S> {
    type Kind = slidegate::Asynchronous;

    async fn charge_async(&self, call: &[Hit<'_>]) -> Result<ChargeResult, StoreError> {
        self.measure_store_call(self.store.charge_async(call)).await
    }

    async fn charge_many_async(
        &self,
        calls: &[&[Hit<'_>]],
    ) -> Result<Vec<ChargeResult>, StoreError> {
        self.measure_store_call(self.store.charge_many_async(calls)).await
    }

    async fn charge_once_async(
        &self,
        call: &[Hit<'_>],
        identity: &CallIdentity,
    ) -> Result<OnceResult, StoreError> {
        self.measure_store_call(self.store.charge_once_async(call, identity)).await
    }

    async fn settle_async(&self, settlement: &Settlement) -> Result<SettleResult, StoreError> {
        self.measure_store_call(self.store.settle_async(settlement)).await
    }

    async fn peek_async(&self, call: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        self.measure_store_call(self.store.peek_async(call)).await
    }

    fn revert_later(&self, receipt: Receipt) {
        self.store.revert_later(receipt);
    }

    async fn adjust_async(
        &self,
        receipt: &Receipt,
        adjustment: Adjustment,
    ) -> Result<(), StoreError> {
        self.measure_store_call(self.store.adjust_async(receipt, adjustment)).await
    }

    async fn change_permit_async(
        &self,
        permit: &Receipt,
        change: PermitChange,
    ) -> Result<bool, StoreError> {
        self.measure_store_call(self.store.change_permit_async(permit, change)).await
    }

    fn counter_id(&self, hit: &Hit<'_>) -> Option<CounterId> {
        self.store.counter_id(hit)
    }

    async fn edit_async(&self, hits: &[Hit<'_>], edit: Edit) -> Result<Outcomes, StoreError> {
        self.measure_store_call(self.store.edit_async(hits, edit)).await
    }
}
