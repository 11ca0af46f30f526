//! A backend that decides requests with a limiter. The limiter receives one key of the request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::request::Parts;
use slidegate::policy::WhenMissing;
use slidegate::store::StoreKind;
use slidegate::{Check, Decision, Limiter, Reason, Store};

use super::{Backend, BackendDecision, BoxFuture, PendingCharge, log_missing_extension};
use crate::extract::{Extract, RequestHead};
use crate::request_options::RequestOptions;
use crate::settlement::Settlement;

/// A limiter and the extractor of its key.
pub struct LimiterBackend<S, K> {
    limiter: Arc<Limiter<S>>,
    key: K,
    when_missing: WhenMissing,
    /// Whether a warning has been logged about an extension that the key needs.
    has_warned_about_extension: AtomicBool,
    /// Whether a warning has been logged about a settlement of a named cost.
    has_warned_about_named_cost: AtomicBool,
}

impl<S: Store, K: Extract> LimiterBackend<S, K> {
    pub fn new(limiter: Arc<Limiter<S>>, key: K, when_missing: WhenMissing) -> Self {
        Self {
            limiter,
            key,
            when_missing,
            has_warned_about_extension: AtomicBool::new(false),
            has_warned_about_named_cost: AtomicBool::new(false),
        }
    }

    fn decide_request_without_key(&self, head: RequestHead<'_>) -> BackendDecision<'static> {
        if let Some(extension) = self.key.missing_extension(head.extensions)
            && !self.has_warned_about_extension.swap(true, Ordering::Relaxed)
        {
            log_missing_extension("key", extension);
        }
        match self.when_missing {
            WhenMissing::Skip => BackendDecision::Uncounted,
            WhenMissing::Deny => BackendDecision::Counted(self.limiter.decide_without_key(), None),
        }
    }

    async fn check(&self, options: &RequestOptions, head: RequestHead<'_>) -> BackendDecision<'_> {
        let cost = match options.cost.read_cost(head) {
            Ok(cost) => cost,
            Err(malformed) => return BackendDecision::Malformed(malformed),
        };
        let Some(key) = self.key.extract(head) else {
            return self.decide_request_without_key(head);
        };
        let key = key.limiter_key();
        let decision = self.limiter.check_async(Check::new(&*key).cost(cost)).await;
        BackendDecision::Counted(decision, options.settle_context([("key", &*key, None)]))
    }

    async fn settle_charge(&self, charge: &PendingCharge, settlement: Settlement) {
        if let Settlement::NamedCost { cost, .. } = settlement
            && !self.has_warned_about_named_cost.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                cost,
                "a settlement of a named cost has no effect on a limiter; settle the cost without a name, or use a gate"
            );
        }
        // Errors are ignored: after a failure of the store, the charge stays.
        let _ = match (settlement, &charge.context) {
            (Settlement::Revert, _) => self.limiter.revert_async(&charge.decision).await,
            (Settlement::Cost(cost), _) => self.limiter.settle_async(&charge.decision, cost).await,
            (Settlement::Report { units, .. }, Some(context)) => {
                let _ = self.limiter.report_async(context.key(), units).await;
                Ok(())
            }
            (Settlement::Report { .. }, None)
            | (Settlement::Keep | Settlement::NamedCost { .. }, _) => Ok(()),
        };
    }
}

impl<S: Store, K: Extract> Backend for LimiterBackend<S, K> {
    fn decide(
        &self,
        options: &RequestOptions,
        head: RequestHead<'_>,
    ) -> Option<BackendDecision<'_>> {
        S::Kind::poll_if_synchronous(self.check(options, head)).ok()
    }

    fn decide_async(
        self: Arc<Self>,
        options: Arc<RequestOptions>,
        parts: Parts,
    ) -> BoxFuture<(Parts, BackendDecision<'static>)> {
        Box::pin(async move {
            let decision = self.check(&options, RequestHead::from(&parts)).await.into_owned();
            (parts, decision)
        })
    }

    fn settle(
        self: Arc<Self>,
        charge: PendingCharge,
        settlement: Settlement,
    ) -> Option<BoxFuture<()>> {
        if S::Kind::poll_if_synchronous(self.settle_charge(&charge, settlement)).is_ok() {
            return None;
        }
        Some(Box::pin(async move { self.settle_charge(&charge, settlement).await }))
    }

    fn missing_extension(
        &self,
        decision: &Decision<'_>,
        head: RequestHead<'_>,
    ) -> Option<&'static str> {
        let lacks_key = decision.reason() == Some(Reason::MissingAttribute);
        lacks_key.then(|| self.key.missing_extension(head.extensions)).flatten()
    }
}
