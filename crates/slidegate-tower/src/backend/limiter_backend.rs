//! A backend that decides requests with a limiter. The limiter receives one key of the request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::request::Parts;
use slidegate::policy::{OnStoreError, WhenMissing};
use slidegate::store::StoreKind;
use slidegate::{Decision, Limiter, Reason, Store, internal};

use super::{Backend, BackendDecision, BoxFuture, PendingCharge, log_missing_extension};
use crate::extract::{Extract, RequestHead};
use crate::names::NamesError;
use crate::request_options::RequestOptions;
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
    /// Whether a warning has been logged about an extension that the key needs.
    has_warned_about_extension: AtomicBool,
    /// Whether a warning has been logged about a settlement of a named cost.
    has_warned_about_named_cost: AtomicBool,
}

impl<S: Store, K: Extract> LimiterBackend<S, K> {
    pub fn new(limiter: Arc<Limiter<S>>, key: K, when_missing: WhenMissing) -> Self {
        let local_share = limiter.local_share();
        Self {
            limiter,
            local_share,
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
            WhenMissing::Deny => {
                BackendDecision::Counted(internal::decide_without_key(&self.limiter), None)
            }
        }
    }

    /// Decides a request while the store is unavailable. Returns `None` if the request is allowed without a charge.
    fn decide_during_outage(
        &self,
        options: &RequestOptions,
        key: &str,
        cost: u64,
    ) -> Option<Decision<'static>> {
        match options.on_store_error {
            OnStoreError::Allow => None,
            OnStoreError::Deny => Some(internal::deny_without_store(&self.limiter)),
            OnStoreError::Local => {
                let decision = self.local_share.check_cost(key, cost).into_owned();
                Some(internal::into_degraded(decision))
            }
        }
    }

    async fn check(&self, options: &RequestOptions, head: RequestHead<'_>) -> BackendDecision<'_> {
        let cost = match options.cost.read(head) {
            Ok(cost) => cost,
            Err(malformed) => return BackendDecision::Malformed(malformed),
        };
        let Some(key) = self.key.extract(head) else {
            return self.decide_request_without_key(head);
        };
        let key = key.limiter_key();
        let decision = match self.limiter.check_cost_async(&*key, cost).await {
            Ok(decision) => Some(decision),
            Err(_) => self.decide_during_outage(options, &key, cost),
        };
        let context = options.settle_context([("key", &*key, None)]);
        match decision {
            Some(decision) => BackendDecision::Counted(decision, context),
            None => BackendDecision::Uncounted,
        }
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
        if charge.decision.is_degraded() {
            settle_charge_in_limiter(&self.local_share, charge, settlement).await
        } else {
            settle_charge_in_limiter(&self.limiter, charge, settlement).await
        }
    }
}

impl<S: Store, K: Extract> Backend for LimiterBackend<S, K> {
    fn decide(
        &self,
        options: &RequestOptions,
        head: RequestHead<'_>,
    ) -> Option<BackendDecision<'_>> {
        S::Kind::begin(self.check(options, head)).ok()
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
        _: Arc<RequestOptions>,
        charge: PendingCharge,
        settlement: Settlement,
    ) -> Option<BoxFuture<()>> {
        if S::Kind::begin(self.settle_charge(&charge, settlement)).is_ok() {
            return None;
        }
        Some(Box::pin(async move { self.settle_charge(&charge, settlement).await }))
    }

    fn check_names(&self, options: &RequestOptions) -> Result<(), NamesError> {
        let problems = options.named_costs.iter().map(|cost| {
            let name = &cost.name;
            format!("cost `{name}`: a limiter has no named costs, so it has no effect; use a gate")
        });
        NamesError::from_problems(problems.collect())
    }

    fn warn_about_names(&self, options: &RequestOptions) {
        // The limits of a limiter do not change.
        if options.names.begin(1)
            && let Err(error) = self.check_names(options)
        {
            error.log();
        }
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

async fn settle_charge_in_limiter<S: Store>(
    limiter: &Limiter<S>,
    charge: &PendingCharge,
    settlement: Settlement,
) {
    // After a failure of the store, the charge stays.
    let _ = match (settlement, &charge.context) {
        (Settlement::Revert, _) => limiter.revert_async(&charge.decision).await,
        (Settlement::Cost(cost), _) => limiter.settle_async(&charge.decision, cost).await,
        (Settlement::Report { units, .. }, Some(context)) => {
            limiter.report_async(context.key(), units).await.map(drop)
        }
        (Settlement::Report { .. }, None)
        | (Settlement::Keep | Settlement::NamedCost { .. }, _) => Ok(()),
    };
}
