//! Settles the charge of a request that ends without a response, as the setting [`OnDrop`] says.

use std::sync::Arc;

use crate::backend::{Backend, BoxFuture, PendingCharge};
use crate::settlement::{OnDrop, Settlement};

/// A guard of the charge of a request in progress. If the guard is dropped before [`settle`](Self::settle) is called,
/// the [`OnDrop`] setting determines whether the charge is reverted.
pub struct SettleGuard {
    backend: Arc<dyn Backend>,
    charge: Option<PendingCharge>,
    on_drop: OnDrop,
}

impl SettleGuard {
    pub fn new(backend: Arc<dyn Backend>, charge: PendingCharge, on_drop: OnDrop) -> Self {
        Self { backend, charge: Some(charge), on_drop }
    }

    /// Settles the charge. Returns a future if the settlement must wait for an asynchronous store; `None` if the
    /// settlement is complete.
    pub fn settle(mut self, settlement: Settlement) -> Option<BoxFuture<()>> {
        let charge = self.charge.take()?;
        match settlement {
            Settlement::Keep => None,
            _ => self.backend.clone().settle(charge, settlement),
        }
    }

    /// Settles the charge without waiting for the store. A tokio task settles a charge in an asynchronous store; outside
    /// of a tokio runtime, such a charge stays.
    pub fn settle_in_background(self, settlement: Settlement) {
        if let Some(future) = self.settle(settlement) {
            spawn_in_runtime(future);
        }
    }
}

fn spawn_in_runtime(future: BoxFuture<()>) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(future);
    }
}

impl Drop for SettleGuard {
    fn drop(&mut self) {
        let Some(charge) = self.charge.take_if(|_| self.on_drop == OnDrop::Revert) else {
            return;
        };
        let backend = self.backend.clone();
        if let Some(future) = backend.settle(charge, Settlement::Revert) {
            spawn_in_runtime(future);
        }
    }
}
