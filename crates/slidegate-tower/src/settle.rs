//! What an allowed request has cost, once its answer is there.

use std::sync::Arc;

use http::{Extensions, HeaderMap, Response, StatusCode};

use crate::decide::{Charge, Decides};
use crate::question::Question;

/// What an allowed request has cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    /// What it was charged.
    Keep,
    /// Nothing.
    Revert,
    /// So many units, even beyond what the limits hold: then its sender stays denied until enough has left the
    /// window.
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

/// What becomes of the charge of a call that is dropped before its answer is there: because the client is gone, a
/// time-out ended it, or it panicked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDrop {
    /// It stays: otherwise a client that hangs up in time has what it wants for nothing.
    #[default]
    Keep,
    /// The charge is reverted, also if the call is dropped while it waits for the store. For a store that is not local, a tokio
    /// task does this; outside of a tokio runtime the charge stays.
    Revert,
}

/// The head of an answer: all but its body.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Answer<'a> {
    /// The status. That of gRPC calls is always 200: see [`grpc_status`](Self::grpc_status).
    pub status: StatusCode,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// What handlers and layers have added to it, such as a cost.
    pub extensions: &'a Extensions,
}

impl Answer<'_> {
    /// The code with which a gRPC call has failed before it sent anything. A stream that fails later says so behind
    /// its messages, which are not there yet.
    pub fn grpc_status(&self) -> Option<u16> {
        self.headers.get("grpc-status")?.to_str().ok()?.parse().ok()
    }
}

impl<'a, B> From<&'a Response<B>> for Answer<'a> {
    fn from(response: &'a Response<B>) -> Self {
        Self {
            status: response.status(),
            headers: response.headers(),
            extensions: response.extensions(),
        }
    }
}

/// A charge that is not settled yet.
pub struct Unsettled<D: Decides> {
    decider: D,
    question: Arc<Question>,
    charge: Option<Box<Charge>>,
    on_drop: OnDrop,
}

impl<D: Decides> Unsettled<D> {
    pub fn new(decider: D, question: Arc<Question>, charge: Charge, on_drop: OnDrop) -> Self {
        Self { decider, question, charge: Some(Box::new(charge)), on_drop }
    }

    /// What is to be waited for.
    pub fn settle(mut self, settle: Settle) -> Option<D::Settling> {
        let charge = self.charge.take()?;
        match settle {
            Settle::Keep => None,
            _ => self.decider.settle(self.question.clone(), *charge, settle).err(),
        }
    }
}

impl<D: Decides> Drop for Unsettled<D> {
    fn drop(&mut self) {
        let Some(charge) = self.charge.take_if(|_| self.on_drop == OnDrop::Revert) else {
            return;
        };
        let question = self.question.clone();
        let Err(settling) = self.decider.settle(question, *charge, Settle::Revert) else {
            return;
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(settling);
        }
    }
}
