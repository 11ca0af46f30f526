//! A backend that decides requests with a limiter. The limiter receives one key of the request.

use std::sync::Arc;

use slidegate::policy::{OnStoreError, WhenMissing};
use slidegate::{Decision, Limiter, Ruling, Store};

use super::{AsyncBackend, BackendDecision, PendingCharge};
use crate::extract::{Extract, RequestHead};
use crate::request_options::{RequestCosts, RequestOptions};
use crate::settlement::Settlement;

/// A limiter and the extractor of its key.
pub struct LimiterBackend<S, K> {
    limiter: Arc<Limiter<S>>,
    /// The limiter that replaces `limiter` while the store is unavailable. Its counters are in memory, and its limits
    /// are the [share](Limiter::local_share) of one instance. The counters are kept after an outage until their window
    /// has passed, so that all outages within one window use the same counts.
    local_share: Limiter,
    key: K,
    when_missing: WhenMissing,
}

impl<S, K> LimiterBackend<S, K> {
    pub fn new(limiter: Arc<Limiter<S>>, key: K, when_missing: WhenMissing) -> Self {
        let local_share = limiter.local_share();
        Self { limiter, local_share, key, when_missing }
    }

    fn decide_request_without_key(&self) -> BackendDecision {
        match self.when_missing {
            WhenMissing::Skip => BackendDecision::Uncounted,
            WhenMissing::Deny => BackendDecision::Ruling(self.limiter.ruling_without_key(), None),
        }
    }

    /// Decides a request while the store is unavailable. Returns `None` if the request is allowed without a charge.
    fn decide_during_outage(
        &self,
        options: &RequestOptions,
        key: &str,
        cost: u64,
    ) -> Option<Ruling> {
        match options.on_store_error {
            OnStoreError::Allow => None,
            OnStoreError::Deny => Some(self.limiter.ruling(Decision::store_unavailable())),
            OnStoreError::Local => {
                let decision = Decision::from(self.local_share.check_cost(key, cost));
                Some(self.local_share.ruling(decision.into_degraded()))
            }
        }
    }
}

impl<S: Store, K: Extract> AsyncBackend for LimiterBackend<S, K> {
    type Kind = S::Kind;

    /// Decides one request without a future, because the values of the request would have to be moved into the future.
    /// Returns `None` if the store is asynchronous.
    #[inline]
    fn decide_now(
        &self,
        options: &RequestOptions,
        head: RequestHead<'_>,
    ) -> Option<BackendDecision> {
        self.limiter.store().as_sync()?;
        let cost = match options.read_cost(head) {
            Ok(cost) => cost,
            Err(malformed) => return Some(BackendDecision::Malformed(malformed)),
        };
        let Some(key) = self.key.extract(head) else {
            return Some(self.decide_request_without_key());
        };
        let key = key.limiter_key();
        let costs = RequestCosts { unnamed: cost, named: Vec::new() };
        let context = options.settle_context(&costs, [("key", &*key, None)]);
        self.limiter
            .try_check_now(&key, cost)
            .map(|ruling| BackendDecision::Ruling(ruling, context))
    }

    async fn decide(&self, options: &RequestOptions, head: RequestHead<'_>) -> BackendDecision {
        let cost = match options.read_cost(head) {
            Ok(cost) => cost,
            Err(malformed) => return BackendDecision::Malformed(malformed),
        };
        let Some(key) = self.key.extract(head) else {
            return self.decide_request_without_key();
        };
        let key = key.limiter_key();
        let ruling = match self.limiter.try_check(&key, cost).await {
            Ok(verdict) => Some(self.limiter.ruling(verdict.into())),
            Err(_) => self.decide_during_outage(options, &key, cost),
        };
        let costs = RequestCosts { unnamed: cost, named: Vec::new() };
        let context = options.settle_context(&costs, [("key", &*key, None)]);
        ruling.map_or(BackendDecision::Uncounted, |ruling| BackendDecision::Ruling(ruling, context))
    }

    async fn settle(&self, _: &RequestOptions, charge: &PendingCharge, settlement: Settlement) {
        match charge.ruling.decision().is_degraded() {
            true => settle_charge_in_limiter(&self.local_share, charge, settlement).await,
            false => settle_charge_in_limiter(&self.limiter, charge, settlement).await,
        }
    }
}

async fn settle_charge_in_limiter<S: Store>(
    limiter: &Limiter<S>,
    charge: &PendingCharge,
    settlement: Settlement,
) {
    let decision = charge.ruling.decision();
    let _ = match (settlement, &charge.context) {
        (Settlement::Revert, _) => limiter.try_revert(decision.receipt()).await,
        (Settlement::Cost(cost), Some(context)) => {
            limiter.try_settle(context.key(), decision, cost).await
        }
        (Settlement::Report { units, .. }, Some(context)) => {
            limiter.try_report(context.key(), units).await.map(drop)
        }
        (Settlement::Cost(_) | Settlement::Report { .. }, None) | (Settlement::Keep, _) => Ok(()),
    };
}
