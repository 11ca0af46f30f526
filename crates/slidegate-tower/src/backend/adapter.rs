//! An adapter that gives names to the future types of an [`AsyncBackend`].

use std::sync::Arc;

use http::request::Parts;
use slidegate::StoreKind;

use super::{AsyncBackend, Backend, BackendDecision, PendingCharge, SealedBackend};
use crate::extract::RequestHead;
use crate::request_options::RequestOptions;
use crate::settlement::Settlement;

/// An [`AsyncBackend`], with two functions that return its futures. The types of these futures can be named: they are
/// the return types of `D` and `S`.
struct AsyncBackendAdapter<T, D, S> {
    backend: Arc<T>,
    decide: D,
    settle: S,
}

/// Converts an [`AsyncBackend`] to a [`Backend`], which a layer can use.
pub fn adapt<T: AsyncBackend>(backend: T) -> impl Backend {
    AsyncBackendAdapter {
        backend: Arc::new(backend),
        decide: decide_request::<T>,
        settle: settle_charge::<T>,
    }
}

async fn decide_request<T: AsyncBackend>(
    backend: Arc<T>,
    options: Arc<RequestOptions>,
    parts: Parts,
) -> (Parts, BackendDecision) {
    let decision = backend.decide(&options, RequestHead::from(&parts)).await;
    (parts, decision)
}

async fn settle_charge<T: AsyncBackend>(
    backend: Arc<T>,
    options: Arc<RequestOptions>,
    charge: PendingCharge,
    settlement: Settlement,
) {
    backend.settle(&options, &charge, settlement).await;
}

impl<T, D, S, F, G> SealedBackend for AsyncBackendAdapter<T, D, S>
where
    T: AsyncBackend,
    D: Fn(Arc<T>, Arc<RequestOptions>, Parts) -> F + Copy + Send + Sync + 'static,
    S: Fn(Arc<T>, Arc<RequestOptions>, PendingCharge, Settlement) -> G
        + Copy
        + Send
        + Sync
        + 'static,
    F: Future<Output = (Parts, BackendDecision)> + Send,
    G: Future<Output = ()> + Send,
    <T::Kind as StoreKind>::Pending<F>: 'static,
    <T::Kind as StoreKind>::Pending<G>: 'static,
{
    type DecideFuture = <T::Kind as StoreKind>::Pending<F>;
    type SettleFuture = <T::Kind as StoreKind>::Pending<G>;

    #[inline]
    fn decide_now(
        &self,
        options: &RequestOptions,
        head: RequestHead<'_>,
    ) -> Option<BackendDecision> {
        self.backend.decide_now(options, head)
    }

    fn decide(
        &self,
        options: Arc<RequestOptions>,
        parts: Parts,
    ) -> Result<(Parts, BackendDecision), Self::DecideFuture> {
        T::Kind::begin((self.decide)(self.backend.clone(), options, parts))
    }

    fn settle(
        &self,
        options: Arc<RequestOptions>,
        charge: PendingCharge,
        settlement: Settlement,
    ) -> Result<(), Self::SettleFuture> {
        T::Kind::begin((self.settle)(self.backend.clone(), options, charge, settlement))
    }
}

impl<T, D: Copy, S: Copy> Clone for AsyncBackendAdapter<T, D, S> {
    fn clone(&self) -> Self {
        Self { backend: self.backend.clone(), decide: self.decide, settle: self.settle }
    }
}
