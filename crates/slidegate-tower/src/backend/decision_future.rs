//! The future of a decision by an asynchronous store. With [`OnDrop::Revert`], the charge of the request is reverted if
//! the future is dropped before the decision is complete.

use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::request::Parts;
use pin_project_lite::pin_project;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::{BackendDecision, PendingCharge, SealedBackend};
use crate::request_options::RequestOptions;
use crate::settlement::{OnDrop, Settlement};

pin_project! {
    /// A pending decision of an asynchronous store.
    #[project = DecisionFutureProjection]
    pub enum DecisionFuture<B>
    where
        B: SealedBackend,
    {
        /// The response future polls the decision. Dropping the response future cancels the decision.
        Inline { #[pin] future: B::DecideFuture },
        /// The decision runs to completion in a tokio task. If the response future is dropped before the decision is
        /// complete, the charge of the request is reverted.
        Spawned { task: DecisionTask<B> },
    }
}

/// A decision that runs in its own tokio task. If this value is dropped before the decision is complete, the charge of
/// the request is reverted.
pub struct DecisionTask<B: SealedBackend> {
    /// The handle of the task; `None` once the decision is complete.
    handle: Option<JoinHandle<(Parts, BackendDecision)>>,
    backend: B,
    options: Arc<RequestOptions>,
    runtime: Handle,
}

impl<B: SealedBackend> DecisionFuture<B> {
    /// Creates the future of a decision. With [`OnDrop::Revert`], the decision runs in a new tokio task. Outside of a
    /// tokio runtime, no task can be started. The charge of a dropped request then stays.
    pub fn new(
        future: B::DecideFuture,
        backend: &B,
        options: &Arc<RequestOptions>,
        on_drop: OnDrop,
    ) -> Self {
        match Handle::try_current() {
            Ok(runtime) if on_drop == OnDrop::Revert => {
                let (backend, options) = (backend.clone(), options.clone());
                let handle = Some(runtime.spawn(future));
                Self::Spawned { task: DecisionTask { handle, backend, options, runtime } }
            }
            _ => Self::Inline { future },
        }
    }
}

impl<B: SealedBackend> Future for DecisionFuture<B> {
    type Output = (Parts, BackendDecision);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let task = match self.project() {
            DecisionFutureProjection::Inline { future } => return future.poll(context),
            DecisionFutureProjection::Spawned { task } => task,
        };
        let Some(handle) = &mut task.handle else { return Poll::Pending };
        let Poll::Ready(result) = Pin::new(handle).poll(context) else { return Poll::Pending };
        task.handle = None;
        match result {
            Ok(decision) => Poll::Ready(decision),
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            // The runtime is shutting down.
            Err(_) => Poll::Pending,
        }
    }
}

impl<B: SealedBackend> Drop for DecisionTask<B> {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        let (backend, options) = (self.backend.clone(), self.options.clone());
        self.runtime.spawn(async move {
            let Ok((_, BackendDecision::Ruling(ruling, context))) = handle.await else { return };
            if !ruling.decision().is_allowed() {
                return;
            }
            let charge = PendingCharge { ruling, context };
            if let Err(future) = backend.settle(options, charge, Settlement::Revert) {
                future.await;
            }
        });
    }
}
