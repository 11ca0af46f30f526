//! Backends, which decide requests for the layer: a gate with an extractor for each attribute, or a limiter with an
//! extractor of its key.
//!
//! With a synchronous store, a backend decides and settles without a future. With an asynchronous store, its futures
//! are boxed, so that the types of the layer do not depend on the store.

mod decision_future;
mod gate_backend;
mod limiter_backend;

use std::pin::Pin;
use std::sync::Arc;

use http::request::Parts;
use slidegate::{Decision, Permit};

use crate::costs::InvalidCostReason;
use crate::extract::RequestHead;
use crate::names::NamesError;
use crate::request_options::{RequestOptions, SettleContext};
use crate::settlement::Settlement;

pub use decision_future::DecisionFuture;
pub use gate_backend::GateBackend;
pub use limiter_backend::LimiterBackend;

/// The decision of a backend about one request.
#[expect(clippy::large_enum_variant, reason = "nearly every decision is counted")]
pub enum BackendDecision<'b> {
    /// The request is allowed without a check of the limits, because it has no key. The request is not charged.
    Uncounted,
    /// The limits have allowed or denied the request. The second field identifies the request for a later report of
    /// its consumption; it is present only if the layer has a settle function.
    Counted(Decision<'b>, Option<SettleContext>),
    /// The request was not decided, because it is malformed.
    Malformed(InvalidCostReason),
}

impl BackendDecision<'_> {
    /// Returns the same decision without borrowing from the backend.
    fn into_owned(self) -> BackendDecision<'static> {
        match self {
            Self::Uncounted => BackendDecision::Uncounted,
            Self::Counted(decision, context) => {
                BackendDecision::Counted(decision.into_owned(), context)
            }
            Self::Malformed(malformed) => BackendDecision::Malformed(malformed),
        }
    }
}

/// The charge of an allowed request, which is kept, corrected or reverted once the response is known.
#[derive(Debug)]
pub struct PendingCharge {
    pub decision: Decision<'static>,
    pub context: Option<SettleContext>,
}

/// A boxed future that waits for an asynchronous store.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A decider of requests: a gate or a limiter, with its extractors.
pub trait Backend: Send + Sync + 'static {
    /// Decides one request without waiting. Returns `None` if the store is asynchronous; the caller then uses
    /// [`decide_async`](Self::decide_async).
    fn decide(
        &self,
        options: &RequestOptions,
        head: RequestHead<'_>,
    ) -> Option<BackendDecision<'_>>;

    /// Decides one request with an asynchronous store.
    fn decide_async(
        self: Arc<Self>,
        options: Arc<RequestOptions>,
        parts: Parts,
    ) -> BoxFuture<(Parts, BackendDecision<'static>)>;

    /// Keeps, corrects or reverts a charge, as the settlement specifies. Returns a future if the store is asynchronous;
    /// `None` if the settlement is complete. If the store fails, the call is not retried, and the charge stays.
    fn settle(
        self: Arc<Self>,
        charge: PendingCharge,
        settlement: Settlement,
    ) -> Option<BoxFuture<()>>;

    /// Compares the names of the layer with the names of the policy.
    ///
    /// # Errors
    /// If a limit never applies, or a cost has no effect, because its name does not exist.
    fn check_names(&self, options: &RequestOptions) -> Result<(), NamesError> {
        let _ = options;
        Ok(())
    }

    /// Logs a warning about each name that does not fit the policy, once for each policy.
    fn warn_about_names(&self, options: &RequestOptions) {
        let _ = options;
    }

    /// Returns the extension without which a request was denied, and which the server should have added to it; `None` if
    /// the request was denied for another reason.
    fn missing_extension(
        &self,
        decision: &Decision<'_>,
        head: RequestHead<'_>,
    ) -> Option<&'static str>;

    /// Returns whether a decision may have a permit, because a limit bounds the requests in flight.
    fn has_permits(&self) -> bool {
        false
    }

    /// Releases a permit without waiting for the result.
    fn release(&self, permit: Permit) {
        let _ = permit;
    }

    /// Renews a permit. Returns whether it was live; `true` if the store did not respond, so that the renewal is repeated.
    fn renew(self: Arc<Self>, permit: Permit) -> BoxFuture<bool> {
        let _ = permit;
        Box::pin(async { false })
    }
}

/// Logs that the server has not added an extension to a request, without which a limit does not count it. `value` is
/// the name of the attribute that lacks its value, or `key` for a limiter.
fn log_missing_extension(value: &str, extension: &str) {
    tracing::warn!(
        value,
        extension,
        "a request lacks an extension that a rate limit needs; add it in the server, or in a layer that runs before the rate limit"
    );
}
