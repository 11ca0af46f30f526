//! Permits within a process: releases and renewals, and a guard that releases the permit of a request when it is dropped.

use std::fmt;
use std::sync::Arc;

use super::{Gate, GateRef};
use crate::decision::{Decision, Denied};
use crate::permit::Permit;
use crate::request::Request;
use crate::store::{PermitChange, Store, StoreError, SyncStore, poll_once};

/// An allowed request in flight. When the guard is dropped, the [permit](Permit) of the request is released.
///
/// The guard of a repeated call, with an [idempotency key](Request::with_idempotency_key), has the permit of the first
/// call, and does not release it when it is dropped.
///
/// The permit expires if the request takes longer than `permit_ttl`. [Renew](Self::renew) it in time, for example each
/// time a third of its [time to live](Permit::ttl) has passed.
///
/// ```
/// use slidegate::{Descriptor, Gate, MemoryStore, Policy, Request};
///
/// let policy = Policy::from_yaml("
/// rules:
///   - { name: streams, per: [user], limits: [{ name: in-flight, concurrent: 2, permit_ttl: 60s }] }
/// ")?;
/// let gate = Gate::new(policy, MemoryStore::new());
/// let request = || Request::new("default", Descriptor::new([("user", "ann")]));
///
/// let first = gate.acquire(&request())?;
/// let second = gate.acquire(&request())?;
/// assert!(gate.acquire(&request()).is_err());          // two requests are in flight
/// drop(first);
/// assert!(gate.acquire(&request()).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a guard that is dropped releases its permit"]
pub struct PermitGuard<'g, S: Store> {
    gate: GateRef<'g, S>,
    decision: Decision<'static>,
    /// `None` if no limit bounds the requests in flight, or the permit has been released.
    permit: Option<Permit>,
    /// Whether the permit is released when the guard is dropped.
    is_released_on_drop: bool,
}

/// Requests in flight.
impl<S: Store> Gate<S> {
    /// Decides a request as [`check`](Self::check) does. Returns a guard that releases the permit of the request when it is
    /// dropped. Charges of other limits stay.
    ///
    /// # Errors
    /// If the request is denied.
    pub fn acquire(&self, request: &Request<'_>) -> Result<PermitGuard<'_, S>, Denied>
    where
        S: SyncStore,
    {
        poll_once(self.acquire_async(request))
    }

    /// Decides a request as [`check_async`](Self::check_async) does. See [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// If the request is denied.
    pub async fn acquire_async(&self, request: &Request<'_>) -> Result<PermitGuard<'_, S>, Denied> {
        let decision = self.check_async(request).await.into_result()?;
        Ok(PermitGuard::new(self, decision))
    }

    async fn change_permit_async(
        &self,
        permit: &Permit,
        change: PermitChange,
    ) -> Result<bool, StoreError> {
        if permit.is_degraded() {
            return Ok(self.fallback.change_permit(permit, change));
        }
        let result = self.store.change_permit_async(permit.receipt(), change).await;
        let was_live = self.notify_fallback_on_success(result)?;
        self.on_permit_change(permit, change, was_live);
        Ok(was_live)
    }

    /// Wakes the first request that waits for the permit, if the permit is free now. A permit that could not be renewed
    /// is also free, because it had been released or had expired.
    fn on_permit_change(&self, permit: &Permit, change: PermitChange, was_live: bool) {
        if change == PermitChange::Release || !was_live {
            self.wait_queues.wake_for_charges(permit.receipt().permit_charges());
        }
    }
}

/// Releases and renewals. A permit is released or renewed by a gate over the store that counts it.
impl Permit {
    /// Releases the permit, so that another request can get one. Returns whether it was live: a permit that has been
    /// released or has expired is not.
    pub fn release<S: SyncStore>(&self, gate: &Gate<S>) -> bool {
        poll_once(self.release_async(gate)).unwrap_or(false)
    }

    /// Renews the permit: it expires a whole `permit_ttl` from now. Returns whether it was live: a permit that has been
    /// released or has expired is not, and cannot be renewed.
    pub fn renew<S: SyncStore>(&self, gate: &Gate<S>) -> bool {
        poll_once(self.renew_async(gate)).unwrap_or(false)
    }

    /// Releases the permit. See [`release`](Self::release).
    ///
    /// # Errors
    /// If the store did not respond. The caller can repeat the call; otherwise the permit counts until it expires.
    pub async fn release_async<S: Store>(&self, gate: &Gate<S>) -> Result<bool, StoreError> {
        gate.change_permit_async(self, PermitChange::Release).await
    }

    /// Renews the permit. See [`renew`](Self::renew).
    ///
    /// # Errors
    /// If the store did not respond. The caller can repeat the call.
    pub async fn renew_async<S: Store>(&self, gate: &Gate<S>) -> Result<bool, StoreError> {
        gate.change_permit_async(self, PermitChange::Renew).await
    }

    /// Releases the permit without waiting for the result. If the store cannot release the permit, it counts until it
    /// expires.
    pub fn release_later<S: Store>(self, gate: &Gate<S>) {
        if self.is_degraded() {
            gate.fallback.change_permit(&self, PermitChange::Release);
        } else {
            gate.revert_later(self.into_receipt());
        }
    }
}

impl<'g, S: Store> PermitGuard<'g, S> {
    fn new(gate: &'g Gate<S>, decision: Decision<'static>) -> Self {
        let (permit, is_released_on_drop) =
            (decision.permit(), decision.repeated_after().is_none());
        Self { gate: GateRef::Borrowed(gate), decision, permit, is_released_on_drop }
    }

    /// Converts to a guard that owns a reference to its gate, for a task or the body of a response. `gate` is the gate
    /// that returned the guard.
    pub fn into_owned(mut self, gate: Arc<Gate<S>>) -> PermitGuard<'static, S> {
        let (decision, permit) = (self.decision.clone(), self.permit.take());
        let is_released_on_drop = self.is_released_on_drop;
        PermitGuard { gate: GateRef::Shared(gate), decision, permit, is_released_on_drop }
    }

    /// Returns the decision of the request.
    pub fn decision(&self) -> &Decision<'static> {
        &self.decision
    }

    /// Returns the permit; `None` if no limit bounds the requests in flight.
    pub fn permit(&self) -> Option<&Permit> {
        self.permit.as_ref()
    }

    /// Renews the permit: it expires a whole `permit_ttl` from now. Returns whether it was live; if it was not, other
    /// requests may have taken its place. Returns `true` if there is no permit.
    pub fn renew(&self) -> bool
    where
        S: SyncStore,
    {
        self.permit.as_ref().is_none_or(|permit| permit.renew(&self.gate))
    }

    /// Renews the permit. See [`renew`](Self::renew).
    ///
    /// # Errors
    /// If the store did not respond. The caller can repeat the call.
    pub async fn renew_async(&self) -> Result<bool, StoreError> {
        match &self.permit {
            Some(permit) => permit.renew_async(&self.gate).await,
            None => Ok(true),
        }
    }

    /// Releases the permit and waits for the result. Returns whether it was live. If the future is dropped before the store
    /// responds, the permit is released in the background.
    ///
    /// # Errors
    /// If the store did not respond. The permit is then released in the background.
    pub async fn release_async(mut self) -> Result<bool, StoreError> {
        let Some(permit) = &self.permit else { return Ok(true) };
        let was_live = permit.release_async(&self.gate).await?;
        self.permit = None;
        Ok(was_live)
    }

    /// Returns the permit without releasing it.
    pub fn into_permit(mut self) -> Option<Permit> {
        self.permit.take()
    }
}

impl<S: Store> Drop for PermitGuard<'_, S> {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take().filter(|_| self.is_released_on_drop) {
            permit.release_later(&self.gate);
        }
    }
}

impl<S: Store> fmt::Debug for PermitGuard<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitGuard").field("permit", &self.permit).finish_non_exhaustive()
    }
}
