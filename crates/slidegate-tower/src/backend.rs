//! Backends, which decide for the layer whether a request is allowed: a gate with an extractor for each attribute, or a
//! limiter with an extractor of its key.
//!
//! Each backend implements [`AsyncBackend`]. The function [`adapt`] converts it to a [`Backend`], whose future types
//! have names, so that no future is boxed.

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

/// The decision of a backend about one request.
#[expect(clippy::large_enum_variant, reason = "a box would cost each request an allocation")]
pub enum BackendDecision {
    /// The request is allowed without a check of the limits, because it has no key or the store of the limiter is
    /// unavailable. The request is not charged.
    Uncounted,
    /// The limits have allowed or denied the request. The second field contains the attributes and costs of the
    /// request, for a later correction of its charge; it is present only if the layer has a settle function.
    Ruling(Ruling, Option<SettleContext>),
    /// The request was not decided, because it is malformed.
    Malformed(MalformedDetail),
}

/// The charge of an allowed request, which is kept, corrected or reverted once the response is known.
#[derive(Debug)]
pub struct PendingCharge {
    pub ruling: Ruling,
    pub context: Option<SettleContext>,
}

/// A backend whose decisions and settlements are async functions.
pub trait AsyncBackend: Send + Sync + 'static {
    /// The kind of the backend's store: synchronous or asynchronous.
    type Kind: StoreKind;

    /// Decides immediately whether a request is allowed. Returns `None` if the store is asynchronous; the caller then
    /// uses [`decide`](Self::decide).
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

    /// Keeps, corrects or reverts a charge, as the settlement specifies. If the store fails, the call is not retried,
    /// and the charge stays.
    fn settle(
        &self,
        options: &RequestOptions,
        charge: &PendingCharge,
        settlement: Settlement,
    ) -> impl Future<Output = ()> + Send;
}

/// A backend with named future types, so that other futures can contain its futures without a box. With a synchronous
/// store, no future is created: the methods return the result as `Ok`.
pub trait SealedBackend: Clone + Send + Sync + 'static {
    type DecideFuture: Future<Output = (Parts, BackendDecision)> + Send + 'static;
    type SettleFuture: Future<Output = ()> + Send + 'static;

    /// Decides immediately whether a request is allowed. Returns `None` if the store is asynchronous; the caller then
    /// uses [`decide`](Self::decide).
    fn decide_now(
        &self,
        options: &RequestOptions,
        head: RequestHead<'_>,
    ) -> Option<BackendDecision>;

    /// Decides whether a request is allowed. Returns the decision as `Ok` if the store is synchronous, or a future of
    /// the decision as `Err` if the store is asynchronous.
    fn decide(
        &self,
        options: Arc<RequestOptions>,
        parts: Parts,
    ) -> Result<(Parts, BackendDecision), Self::DecideFuture>;

    /// Keeps, corrects or reverts a charge, as the settlement specifies. Returns `Ok` if the store is synchronous, or a
    /// future as `Err` if the store is asynchronous.
    fn settle(
        &self,
        options: Arc<RequestOptions>,
        charge: PendingCharge,
        settlement: Settlement,
    ) -> Result<(), Self::SettleFuture>;
}
