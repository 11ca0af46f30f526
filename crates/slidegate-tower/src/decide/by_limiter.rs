//! A limiter decides, by one key.

use std::sync::Arc;

use slidegate::policy::{OnStoreError, WhenMissing};
use slidegate::{Decision, Limiter, Ruling, Store};

use super::{Charge, Decided, Judge};
use crate::extract::{Extract, Head};
use crate::question::{Costs, Question};
use crate::settle::Settle;

pub struct ByLimiter<S, K> {
    limiter: Arc<Limiter<S>>,
    /// Enforces this instance's share while the store is unavailable. Its counts stay until their window has passed, so all
    /// outages in a window share them.
    meanwhile: Limiter,
    key: K,
    when_missing: WhenMissing,
}

impl<S, K> ByLimiter<S, K> {
    pub fn new(limiter: Arc<Limiter<S>>, key: K, when_missing: WhenMissing) -> Self {
        let meanwhile = limiter.local_share();
        Self { limiter, meanwhile, key, when_missing }
    }

    fn without_key(&self) -> Decided {
        match self.when_missing {
            WhenMissing::Skip => Decided::Uncounted,
            WhenMissing::Deny => Decided::Ruled(self.limiter.ruling_without_key(), None),
        }
    }

    /// None: it passes uncounted.
    fn without_store(&self, question: &Question, key: &str, cost: u64) -> Option<Ruling> {
        match question.on_store_error {
            OnStoreError::Allow => None,
            OnStoreError::Deny => Some(self.limiter.ruling(Decision::store_unavailable())),
            OnStoreError::Local => {
                let decision = Decision::from(self.meanwhile.check_cost(key, cost));
                Some(self.meanwhile.ruling(decision.into_degraded()))
            }
        }
    }
}

impl<S: Store, K: Extract> Judge for ByLimiter<S, K> {
    type Kind = S::Kind;

    /// Without a future, whose values would be moved about.
    #[inline]
    fn judge_now(&self, question: &Question, head: Head<'_>) -> Option<Decided> {
        self.limiter.store().as_sync()?;
        let cost = match question.cost_of(head) {
            Ok(cost) => cost,
            Err(malformed) => return Some(Decided::Malformed(malformed)),
        };
        let Some(key) = self.key.extract(head) else {
            return Some(self.without_key());
        };
        let key = key.key();
        let costs = Costs { plain: cost, named: Vec::new() };
        let kept = question.keep(&costs, [("key", &*key, None)]);
        self.limiter.try_check_now(&key, cost).map(|ruling| Decided::Ruled(ruling, kept))
    }

    async fn judge(&self, question: &Question, head: Head<'_>) -> Decided {
        let cost = match question.cost_of(head) {
            Ok(cost) => cost,
            Err(malformed) => return Decided::Malformed(malformed),
        };
        let Some(key) = self.key.extract(head) else {
            return self.without_key();
        };
        let key = key.key();
        let ruling = match self.limiter.try_check(&key, cost).await {
            Ok(verdict) => Some(self.limiter.ruling(verdict.into())),
            Err(_) => self.without_store(question, &key, cost),
        };
        let costs = Costs { plain: cost, named: Vec::new() };
        let kept = question.keep(&costs, [("key", &*key, None)]);
        ruling.map_or(Decided::Uncounted, |ruling| Decided::Ruled(ruling, kept))
    }

    async fn settle(&self, _: &Question, charge: &Charge, settle: Settle) {
        match charge.ruling.decision().is_degraded() {
            true => settle_in(&self.meanwhile, charge, settle).await,
            false => settle_in(&self.limiter, charge, settle).await,
        }
    }
}

async fn settle_in<S: Store>(limiter: &Limiter<S>, charge: &Charge, settle: Settle) {
    let decision = charge.ruling.decision();
    let _ = match (settle, &charge.kept) {
        (Settle::Revert, _) => limiter.try_revert(decision.receipt()).await,
        (Settle::Cost(cost), Some(kept)) => limiter.try_settle(kept.key(), decision, cost).await,
        (Settle::Report { units, .. }, Some(kept)) => {
            limiter.try_report(kept.key(), units).await.map(drop)
        }
        (Settle::Cost(_) | Settle::Report { .. }, None) | (Settle::Keep, _) => Ok(()),
    };
}
