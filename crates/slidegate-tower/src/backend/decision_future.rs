//! The future of a decision by an asynchronous store. If the future is dropped before the decision is complete, the permit
//! of the request is released, and with [`OnDrop::Revert`] its charge is reverted.

use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::request::Parts;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::{Backend, BackendDecision, BoxFuture, PendingCharge};
use crate::settlement::{OnDrop, Settlement};

/// A pending decision of an asynchronous store.
pub enum DecisionFuture {
    /// The response future polls the decision. Dropping the response future cancels the decision.
    Inline(BoxFuture<(Parts, BackendDecision<'static>)>),
    /// The decision runs to completion in a tokio task. If the response future is dropped before the decision is
    /// complete, the charge of the request is reverted, or its permit is released.
    Spawned(DecisionTask),
}

/// A decision that runs in its own tokio task. If this value is dropped before the decision is complete, the charge of
/// the request is reverted, or its permit is released.
pub struct DecisionTask {
    /// The handle of the task; `None` once the decision is complete.
    handle: Option<JoinHandle<(Parts, BackendDecision<'static>)>>,
    backend: Arc<dyn Backend>,
    runtime: Handle,
    on_drop: OnDrop,
}

impl DecisionFuture {
    /// Creates the future of a decision. The decision runs in a new tokio task if a dropped request must be reverted
    /// ([`OnDrop::Revert`]) or may have a permit to release. Outside of a tokio runtime, no task can be started. The
    /// charge of a dropped request then stays, and its permit counts until it expires.
    pub fn new(
        future: BoxFuture<(Parts, BackendDecision<'static>)>,
        backend: &Arc<dyn Backend>,
        on_drop: OnDrop,
    ) -> Self {
        match Handle::try_current() {
            Ok(runtime) if on_drop == OnDrop::Revert || backend.has_permits() => {
                let backend = backend.clone();
                let handle = Some(runtime.spawn(future));
                Self::Spawned(DecisionTask { handle, backend, runtime, on_drop })
            }
            _ => Self::Inline(future),
        }
    }
}

impl Future for DecisionFuture {
    type Output = (Parts, BackendDecision<'static>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let task = match &mut *self {
            Self::Inline(future) => return future.as_mut().poll(context),
            Self::Spawned(task) => task,
        };
        let Some(handle) = &mut task.handle else { return Poll::Pending };
        let Poll::Ready(result) = Pin::new(handle).poll(context) else { return Poll::Pending };
        task.handle = None;
        match result {
            Ok(decision) => Poll::Ready(decision),
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            // The runtime is shutting down, and has canceled the task, so there is no decision.
            Err(_) => Poll::Pending,
        }
    }
}

impl Drop for DecisionTask {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        let (backend, on_drop) = (self.backend.clone(), self.on_drop);
        self.runtime.spawn(async move {
            let Ok((_, BackendDecision::Counted(mut decision, context))) = handle.await else {
                return;
            };
            if let Some(permit) = decision.take_permit() {
                backend.release(permit);
            }
            let charge = PendingCharge { decision, context };
            if on_drop == OnDrop::Revert
                && charge.decision.is_allowed()
                && let Some(future) = backend.settle(charge, Settlement::Revert)
            {
                future.await;
            }
        });
    }
}
