//! The final cost of an allowed request, determined from its response.

use std::sync::Arc;

use http::{Extensions, HeaderMap, Response, StatusCode};

use crate::backend::{PendingCharge, SealedBackend};
use crate::request_options::RequestOptions;

/// The final cost of an allowed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// Keeps the charge.
    Keep,
    /// Reverts the charge.
    Revert,
    /// Corrects the charge to the actual cost in units, also above max: then further requests are denied until enough
    /// units have left the window.
    Cost(u64),
    /// Keeps the charge, and records units of a named cost, also above max. Under a policy, rules with that cost charge
    /// them; under a limiter, all of its limits do.
    Report {
        /// The name of the cost, such as `tokens`.
        cost: &'static str,
        /// The units that have been consumed.
        units: u64,
    },
}

/// The charge of a call that is dropped before its response: the client disconnected, a timeout ended the call, or it
/// panicked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDrop {
    /// The charge stays: otherwise a client could consume work for free by disconnecting early.
    #[default]
    Keep,
    /// The charge is reverted, also if the call is dropped while it waits for the store. For an asynchronous store, a
    /// tokio task does this; outside of a tokio runtime the charge stays.
    Revert,
}

/// The head of a response: everything except the body.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ResponseHead<'a> {
    /// The status. Always 200 for gRPC calls: see [`grpc_status`](Self::grpc_status).
    pub status: StatusCode,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// Values that handlers and layers have added, such as a cost.
    pub extensions: &'a Extensions,
}

impl ResponseHead<'_> {
    /// Returns the status code of a gRPC call that failed before it sent a message. A stream that fails later reports
    /// the code in its trailers, which are not available yet.
    pub fn grpc_status(&self) -> Option<u16> {
        self.headers.get("grpc-status")?.to_str().ok()?.parse().ok()
    }
}

impl<'a, B> From<&'a Response<B>> for ResponseHead<'a> {
    fn from(response: &'a Response<B>) -> Self {
        Self {
            status: response.status(),
            headers: response.headers(),
            extensions: response.extensions(),
        }
    }
}

/// The charge of a request in progress. Dropping the guard before [`settle`](Self::settle) applies the [`OnDrop`]
/// setting.
pub struct SettleGuard<B: SealedBackend> {
    backend: B,
    options: Arc<RequestOptions>,
    charge: Option<Box<PendingCharge>>,
    on_drop: OnDrop,
}

impl<B: SealedBackend> SettleGuard<B> {
    pub fn new(
        backend: B,
        options: Arc<RequestOptions>,
        charge: PendingCharge,
        on_drop: OnDrop,
    ) -> Self {
        Self { backend, options, charge: Some(Box::new(charge)), on_drop }
    }

    /// Settles the charge. Returns the future of an asynchronous store, `None` if nothing is left to do.
    pub fn settle(mut self, settlement: Settlement) -> Option<B::SettleFuture> {
        let charge = self.charge.take()?;
        match settlement {
            Settlement::Keep => None,
            _ => self.backend.settle(self.options.clone(), *charge, settlement).err(),
        }
    }
}

impl<B: SealedBackend> Drop for SettleGuard<B> {
    fn drop(&mut self) {
        let Some(charge) = self.charge.take_if(|_| self.on_drop == OnDrop::Revert) else {
            return;
        };
        let options = self.options.clone();
        let Err(future) = self.backend.settle(options, *charge, Settlement::Revert) else {
            return;
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(future);
        }
    }
}
