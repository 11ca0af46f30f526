//! A decision of a store that is not local.

use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::request::Parts;
use pin_project_lite::pin_project;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::{Charge, Decided, Decides};
use crate::question::Question;
use crate::settle::{OnDrop, Settle};

pin_project! {
    /// A pending decision.
    #[project = Now]
    pub enum Deciding<D>
    where
        D: Decides,
    {
        /// It is cancelled if the request is dropped.
        Here { #[pin] deciding: D::Deciding },
        /// It runs to its end. If the request is dropped, its charge is reverted.
        InTask { task: Task<D> },
    }
}

/// A decision in a task of its own.
pub struct Task<D: Decides> {
    /// `None` once it is complete.
    deciding: Option<JoinHandle<(Parts, Decided)>>,
    decider: D,
    question: Arc<Question>,
    runtime: Handle,
}

impl<D: Decides> Deciding<D> {
    /// Outside of a tokio runtime, the charge of a dropped request stays.
    pub fn new(
        deciding: D::Deciding,
        decider: &D,
        question: &Arc<Question>,
        on_drop: OnDrop,
    ) -> Self {
        match Handle::try_current() {
            Ok(runtime) if on_drop == OnDrop::Revert => {
                let (decider, question) = (decider.clone(), question.clone());
                let deciding = Some(runtime.spawn(deciding));
                Self::InTask { task: Task { deciding, decider, question, runtime } }
            }
            _ => Self::Here { deciding },
        }
    }
}

impl<D: Decides> Future for Deciding<D> {
    type Output = (Parts, Decided);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let task = match self.project() {
            Now::Here { deciding } => return deciding.poll(context),
            Now::InTask { task } => task,
        };
        let Some(deciding) = &mut task.deciding else { return Poll::Pending };
        let Poll::Ready(made) = Pin::new(deciding).poll(context) else { return Poll::Pending };
        task.deciding = None;
        match made {
            Ok(made) => Poll::Ready(made),
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            // The runtime is shutting down.
            Err(_) => Poll::Pending,
        }
    }
}

impl<D: Decides> Drop for Task<D> {
    fn drop(&mut self) {
        let Some(deciding) = self.deciding.take() else { return };
        let (decider, question) = (self.decider.clone(), self.question.clone());
        self.runtime.spawn(async move {
            let Ok((_, Decided::Ruled(ruling, kept))) = deciding.await else { return };
            if !ruling.decision().is_allowed() {
                return;
            }
            let charge = Charge { ruling, kept };
            if let Err(settling) = decider.settle(question, charge, Settle::Revert) {
                settling.await;
            }
        });
    }
}
