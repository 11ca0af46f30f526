//! Reservations within a process: a guard that settles the estimate of a request, or reverts it when it is dropped.

use std::sync::Arc;
use std::time::Duration;
use std::{fmt, mem};

use super::{Gate, GateRef};
use crate::call::CallId;
use crate::decision::{Decision, Denied};
use crate::request::Request;
use crate::reserved_call::{ActualCosts, ReservedCall};
use crate::store::{Adjustment, SettleResult, Store, StoreError, SyncStore, poll_once};

/// The time for which a store remembers that a reservation was settled, so that a repeated settlement has no effect.
const SETTLE_TTL: Duration = Duration::from_secs(60);

/// The charges of an allowed request, which are an estimate. They are corrected with [`settle`](Self::settle). If the
/// reservation is dropped before, they are reverted. The charges of a call with an
/// [idempotency key](Request::with_idempotency_key) stay, so that a repetition of the call can settle them.
///
/// ```
/// use slidegate::{ActualCosts, Descriptor, Gate, MemoryStore, Policy, Request};
///
/// let policy = Policy::from_yaml("
/// rules: [{ name: tokens, per: [user], limits: [1000/h], cost: tokens }]
/// ")?;
/// let gate = Gate::new(policy, MemoryStore::new());
/// let estimate = || Descriptor::new([("user", "ann")]).with_cost("tokens", 700);
/// let request = || Request::new("default", estimate());
///
/// let reservation = gate.reserve(&request())?;
/// assert!(gate.reserve(&request()).is_err());                          // 300 tokens are left
/// reservation.settle(ActualCosts::new().with_cost("tokens", 200));
/// drop(gate.reserve(&request())?);                                     // reverts the estimate
/// assert_eq!(gate.peek(&request()).remaining(), 800);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a reservation that is dropped reverts its charges"]
pub struct Reservation<'g, S: Store> {
    gate: GateRef<'g, S>,
    decision: Decision<'static>,
    call: ReservedCall,
    /// Whether the charges are reverted when the reservation is dropped.
    is_reverted_on_drop: bool,
}

impl<S: Store> Gate<S> {
    /// Decides a request, and charges its cost, which is an estimate. Returns a guard with which the charges are
    /// corrected later, or reverted.
    ///
    /// # Errors
    /// If the request is denied.
    pub fn reserve(&self, request: &Request<'_>) -> Result<Reservation<'_, S>, Denied>
    where
        S: SyncStore,
    {
        poll_once(self.reserve_async(request))
    }

    /// Decides a request, and charges its cost, which is an estimate. See [`reserve`](Self::reserve).
    ///
    /// # Errors
    /// If the request is denied.
    pub async fn reserve_async(&self, request: &Request<'_>) -> Result<Reservation<'_, S>, Denied> {
        let decision = self.check_async(request).await.into_result()?;
        let id = request.call_identity().map_or_else(CallId::unique, |call| call.id);
        // The charges of a call with a key belong to all of its repetitions.
        let is_reverted_on_drop = request.call_identity().is_none();
        let call = ReservedCall::from_decision(id, &decision);
        Ok(Reservation { gate: GateRef::Borrowed(self), decision, call, is_reverted_on_drop })
    }
}

impl ReservedCall {
    /// Corrects the charges of the call to the actual costs, unless this has been done before. The correction can be
    /// repeated for `ttl`. `is_degraded` is whether the decision on the call was [degraded](Decision::is_degraded): its
    /// charges were then made in the memory of `gate`.
    ///
    /// # Errors
    /// If the store did not respond. The caller can repeat the call.
    pub async fn settle_async<S: Store>(
        &self,
        gate: &Gate<S>,
        actual: &ActualCosts<'_>,
        ttl: Duration,
        is_degraded: bool,
    ) -> Result<SettleResult, StoreError> {
        gate.apply_settlement(&self.settlement(actual, ttl), is_degraded).await
    }
}

impl<'g, S: Store> Reservation<'g, S> {
    /// Converts to a reservation that owns a reference to its gate, for a task or the body of a response. `gate` is the
    /// gate that returned the reservation.
    ///
    /// ```
    /// use slidegate::{Descriptor, Gate, MemoryStore, Policy, Request};
    /// use std::sync::Arc;
    ///
    /// let policy = Policy::from_yaml("rules: [{ name: tokens, limits: [1000/h], cost: tokens }]")?;
    /// let gate = Arc::new(Gate::new(policy, MemoryStore::new()));
    /// let request = Request::new("default", Descriptor::new([]).with_cost("tokens", 700));
    ///
    /// let reservation = gate.reserve(&request)?.into_owned(Arc::clone(&gate));
    /// std::thread::spawn(move || reservation.settle(200)).join().unwrap();
    /// assert_eq!(gate.peek(&request).remaining(), 800);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_owned(mut self, gate: Arc<Gate<S>>) -> Reservation<'static, S> {
        Reservation {
            gate: GateRef::Shared(gate),
            decision: self.decision.clone(),
            call: self.call.clone(),
            is_reverted_on_drop: mem::take(&mut self.is_reverted_on_drop),
        }
    }

    /// Returns the decision of the request.
    pub fn decision(&self) -> &Decision<'static> {
        &self.decision
    }

    /// Corrects the charges to the actual costs.
    pub fn settle<'c>(self, actual: impl Into<ActualCosts<'c>>)
    where
        S: SyncStore,
    {
        drop(poll_once(self.settle_async(actual)));
    }

    /// Corrects the charges to the actual costs. If the future is dropped before the store is called, the charges are
    /// reverted.
    ///
    /// # Errors
    /// If the store did not respond. The estimate may stay charged.
    pub async fn settle_async<'c>(
        mut self,
        actual: impl Into<ActualCosts<'c>>,
    ) -> Result<(), StoreError> {
        let actual = actual.into();
        let settlement = {
            let actual = actual.for_decision(&self.decision);
            self.gate.warn_about_uncharged_costs(&self.decision, &actual);
            self.call.settlement(&actual, SETTLE_TTL)
        };
        let is_degraded = self.decision.is_degraded();
        self.is_reverted_on_drop = false;
        let first = self.gate.apply_settlement(&settlement, is_degraded).await;
        match first {
            // The failed call may have settled the charges. A second call is safe, because the store applies a
            // settlement once.
            Err(error) if error.may_have_charged() => {
                self.gate.apply_settlement(&settlement, is_degraded).await.map(drop)
            }
            result => result.map(drop),
        }
    }

    /// Keeps the charges as they are.
    pub fn keep(mut self) {
        self.is_reverted_on_drop = false;
    }
}

impl<S: Store> Drop for Reservation<'_, S> {
    fn drop(&mut self) {
        if !self.is_reverted_on_drop {
            return;
        }
        if self.decision.is_degraded() {
            self.gate.fallback.adjust_local_charges(self.decision.receipt(), Adjustment::Revert);
        } else {
            self.gate.revert_later(self.decision.receipt().clone());
        }
    }
}

impl<S: Store> fmt::Debug for Reservation<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("call", &self.call).finish_non_exhaustive()
    }
}
