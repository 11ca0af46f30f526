//! Backends of the layer: a gate keyed by attributes, or a limiter keyed by one value.
//!
//! A backend is written as an [`AsyncBackend`]. [`adapt`] turns it into a [`Backend`], whose futures have names, so
//! that no future is boxed.

mod adapter;
mod decision_future;
mod gate_backend;
mod limiter_backend;

use std::sync::Arc;

use http::request::Parts;
use slidegate::{Ruling, StoreKind};

use crate::extract::RequestHead;
use crate::request_options::{MalformedDetail, RequestOptions, SettleContext};
use crate::settlement::Settlement;

pub use adapter::adapt;
pub use decision_future::DecisionFuture;
pub use gate_backend::GateBackend;
pub use limiter_backend::LimiterBackend;

/// The backend of a [`RateLimitLayer`](crate::RateLimitLayer): a gate or a limiter, with its extractors.
///
/// The trait is sealed: only this crate implements it.
pub trait Backend: SealedBackend {}

impl<B: SealedBackend> Backend for B {}

/// The result of a backend for one request.
#[expect(clippy::large_enum_variant, reason = "a box would cost each request an allocation")]
pub enum BackendDecision {
    /// Allowed without a charge.
    Uncounted,
    /// The ruling of the limits, and the context for settling the charge.
    Ruling(Ruling, Option<SettleContext>),
    /// Not decided, because the request is malformed.
    Malformed(MalformedDetail),
}

/// The charge of an allowed request that may still be settled.
#[derive(Debug)]
pub struct PendingCharge {
    pub ruling: Ruling,
    pub context: Option<SettleContext>,
}

/// A gate or a limiter as async functions.
pub trait AsyncBackend: Send + Sync + 'static {
    type Kind: StoreKind;

    /// Decides without waiting; returns `None` if the store is asynchronous.
    #[inline]
    fn decide_now(
        &self,
        options: &RequestOptions,
        head: RequestHead<'_>,
    ) -> Option<BackendDecision> {
        Self::Kind::begin(self.decide(options, head)).ok()
    }

    /// Decides one request.
    fn decide(
        &self,
        options: &RequestOptions,
        head: RequestHead<'_>,
    ) -> impl Future<Output = BackendDecision> + Send;

    /// Settles a charge. An error is not retried: the charge stays.
    fn settle(
        &self,
        options: &RequestOptions,
        charge: &PendingCharge,
        settlement: Settlement,
    ) -> impl Future<Output = ()> + Send;
}

/// A backend with named future types, which other futures can contain without a box. A synchronous store never creates
/// them: the methods return `Ok` with the result.
pub trait SealedBackend: Clone + Send + Sync + 'static {
    type DecideFuture: Future<Output = (Parts, BackendDecision)> + Send + 'static;
    type SettleFuture: Future<Output = ()> + Send + 'static;

    /// Decides without waiting; returns `None` if the store is asynchronous.
    fn decide_now(
        &self,
        options: &RequestOptions,
        head: RequestHead<'_>,
    ) -> Option<BackendDecision>;

    /// Decides one request; returns the future as `Err` if the store is asynchronous.
    fn decide(
        &self,
        options: Arc<RequestOptions>,
        parts: Parts,
    ) -> Result<(Parts, BackendDecision), Self::DecideFuture>;

    /// Settles a charge; returns the future as `Err` if the store is asynchronous.
    fn settle(
        &self,
        options: Arc<RequestOptions>,
        charge: PendingCharge,
        settlement: Settlement,
    ) -> Result<(), Self::SettleFuture>;
}
