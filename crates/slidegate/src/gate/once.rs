//! Calls with an idempotency key: the repetition of an admitted call is not charged again.

use std::time::Duration;

use thiserror::Error;

use super::{Gate, decide};
use crate::call::CallIdentity;
use crate::decision::Decision;
use crate::hit::Hit;
use crate::idempotency_key::IdempotencyKey;
use crate::outcome::Outcome;
use crate::policy::{HitList, MatchedRules, OnStoreError};
use crate::request::Request;
use crate::store::{
    ChargeResult, OnceResult, Receipt, SettleResult, Settlement, Store, StoreError, SyncStore,
    poll_once,
};

/// The reason why a call with an idempotency key was not decided. Nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OnceError {
    /// The idempotency key belongs to an admitted call with another request.
    #[error("the idempotency key was used for another request; use a new key for each request")]
    OtherRequest,
    /// The first call with this idempotency key is still being decided.
    #[error("the first call with this idempotency key is still being decided; repeat the call")]
    InProgress,
    /// The request has a descriptor that refunds units. Refunds cannot be repeated safely.
    #[error("a request that refunds units cannot have an idempotency key; send it without the key")]
    Refund,
}

/// The decision of a call with an idempotency key.
#[derive(Clone, Debug)]
pub struct OnceDecision {
    /// The decision. If the call was repeated, it is the decision of the first call. It has no limits and no charges
    /// then if the policy has been replaced in the meantime.
    pub decision: Decision<'static>,
    /// The time since the first call if this call is a repetition; `None` if it was decided now.
    pub repeated_after: Option<Duration>,
}

/// Calls with an idempotency key.
impl<S> Gate<S> {
    /// Decides a request as [`check`](Self::check) does, unless an earlier call with the same key was admitted. Then
    /// returns the decision of the earlier call, and charges nothing. A denied call is decided again.
    ///
    /// ```
    /// use slidegate::{Descriptor, Gate, IdempotencyKey, MemoryStore, Policy, Request};
    /// use slidegate::gate::OnceError;
    ///
    /// let policy = Policy::from_yaml("rules: [{ name: a, per: [client], limits: [1/min] }]")?;
    /// let gate = Gate::new(policy, MemoryStore::new());
    /// let request = |client| Request::new("default", Descriptor::new([("client", client)]));
    /// let key = IdempotencyKey::new("order-17");
    /// assert!(gate.check_once(&request("ann"), &key)?.is_allowed());
    /// assert!(gate.check_once(&request("ann"), &key)?.is_allowed());
    /// assert!(!gate.check_once(&request("ann"), &IdempotencyKey::new("order-18"))?.is_allowed());
    /// assert_eq!(gate.check_once(&request("bob"), &key).err(), Some(OnceError::OtherRequest));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the key belongs to another request.
    pub fn check_once(
        &self,
        request: &Request<'_>,
        key: &IdempotencyKey<'_>,
    ) -> Result<Decision<'static>, OnceError>
    where
        S: SyncStore,
    {
        poll_once(self.check_once_async(request, key))
    }

    /// Records consumed units as [`report`](Self::report) does, unless an earlier call with the same key has recorded
    /// them.
    ///
    /// # Errors
    /// If the key belongs to another request.
    pub fn report_once(
        &self,
        request: &Request<'_>,
        key: &IdempotencyKey<'_>,
    ) -> Result<Decision<'static>, OnceError>
    where
        S: SyncStore,
    {
        poll_once(self.report_once_async(request, key))
    }
}

/// Calls with an idempotency key, for any store.
impl<S: Store> Gate<S> {
    /// Decides a request as [`check_async`](Self::check_async) does, unless an earlier call with the same key was
    /// admitted. See [`check_once`](Self::check_once).
    ///
    /// While the store is unavailable, calls are remembered in this process. If a call times out, the store may have
    /// charged it, and a repetition then returns the store's decision.
    ///
    /// # Errors
    /// If the key belongs to another request, or the first call with this key is still being decided.
    pub async fn check_once_async(
        &self,
        request: &Request<'_>,
        key: &IdempotencyKey<'_>,
    ) -> Result<Decision<'static>, OnceError> {
        let policy = self.policy.load();
        self.warn_about_unknown_costs(&policy, request);
        let identity = request.identify(key);
        Ok(self.check_matched_once_async(&policy.apply(request), &identity).await?.decision)
    }

    /// Records consumed units as [`report_async`](Self::report_async) does, unless an earlier call with the same key
    /// has recorded them.
    ///
    /// # Errors
    /// If the key belongs to another request, or the first call with this key is still being decided.
    pub async fn report_once_async(
        &self,
        request: &Request<'_>,
        key: &IdempotencyKey<'_>,
    ) -> Result<Decision<'static>, OnceError> {
        let policy = self.policy.load();
        self.warn_about_unknown_costs(&policy, request);
        let matched = policy.apply(request).into_matches_for_reported_usage();
        Ok(self.check_matched_once_async(&matched, &request.identify(key)).await?.decision)
    }

    /// Decides a request like [`check_once_async`](Self::check_once_async). `matched` are the rules of a policy that
    /// apply to the request.
    ///
    /// # Errors
    /// If the id belongs to another request, or the first call with this id is still being decided.
    pub async fn check_matched_once_async(
        &self,
        matched: &MatchedRules<'_>,
        identity: &CallIdentity,
    ) -> Result<OnceDecision, OnceError> {
        if matched.is_refund() {
            return Err(OnceError::Refund);
        }
        let hits: HitList<'_> = matched.hits().collect();
        if hits.is_empty() {
            let decision = self.check_matched_async(matched).await;
            return Ok(OnceDecision { decision, repeated_after: None });
        }
        let result = self.store.charge_once_async(&hits, identity).await;
        match self.notify_fallback_on_success(result) {
            Ok(result) => decision_from_result(&hits, result, matched),
            Err(_) => self.charge_once_without_store(matched, identity),
        }
    }

    /// Applies a settlement, unless a settlement of the same call has been applied before. `is_degraded` is `true` if
    /// this gate made the charges in memory, while the store was unavailable; they are corrected in memory.
    ///
    /// # Errors
    /// If the store did not respond. The caller can repeat the settlement: it is applied once.
    pub async fn settle_call_async(
        &self,
        settlement: &Settlement,
        is_degraded: bool,
    ) -> Result<SettleResult, StoreError> {
        if is_degraded {
            return Ok(self.fallback.settle(settlement));
        }
        let result = self.store.settle_async(settlement).await;
        let result = self.notify_fallback_on_success(result)?;
        self.on_settled(settlement, result);
        Ok(result)
    }

    /// Wakes the first request of the queue of each counter from which a settlement has reverted units.
    pub(super) fn on_settled(&self, settlement: &Settlement, result: SettleResult) {
        if result == SettleResult::Settled {
            self.wait_queues.wake_for_charges(&settlement.reverted);
        }
    }

    /// Decides a call after a failed store call, as
    /// [`decide_without_store`](Gate::decide_without_store) does.
    fn charge_once_without_store(
        &self,
        matched: &MatchedRules<'_>,
        identity: &CallIdentity,
    ) -> Result<OnceDecision, OnceError> {
        let local = matched.matches_decidable_without_store();
        if matched.on_store_error() == OnStoreError::Deny || !local.has_hits() {
            let decision = self.decide_without_store(matched, decide::charge_local);
            return Ok(OnceDecision { decision, repeated_after: None });
        }
        let hits: HitList<'_> = local.hits().collect();
        let once = self.fallback.decide_with_local_counts(
            |counts| decision_from_result(&hits, counts.charge_once(&hits, identity), &local),
            |once| once.as_ref().map_or(&[][..], |once| once.decision.outcomes()),
        )?;
        self.fallback.keep_counts_for(identity.ttl);
        Ok(OnceDecision { decision: once.decision.into_degraded(), ..once })
    }
}

/// Converts the result of a store into the decision on a call with an idempotency key.
fn decision_from_result(
    hits: &[Hit<'_>],
    result: OnceResult,
    matched: &MatchedRules<'_>,
) -> Result<OnceDecision, OnceError> {
    let (result, repeated_after) = match result {
        OnceResult::Decided(result) => (result, None),
        OnceResult::Repeated { result, age } => {
            (result.unwrap_or_else(|| unknown_admission(hits.len())), Some(age))
        }
        OnceResult::OtherRequest => return Err(OnceError::OtherRequest),
        OnceResult::InProgress => return Err(OnceError::InProgress),
    };
    let decision = Decision::from_charge(hits, result, decide::limits_of(matched));
    Ok(OnceDecision { decision, repeated_after })
}

/// Returns the result of an admitted call of which only the admission is known.
fn unknown_admission(hits: usize) -> ChargeResult {
    let outcomes = (0..hits).map(|_| Outcome::unknown()).collect();
    ChargeResult { allowed: true, outcomes, receipt: Receipt::default() }
}
