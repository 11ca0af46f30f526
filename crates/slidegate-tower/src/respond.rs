//! Responses to requests that are denied or malformed.

mod grpc;
mod problem_json;

use std::time::Duration;

use http::{Response, StatusCode};
use slidegate::{Decision, Problem};

use crate::extract::RequestHead;

pub use grpc::Grpc;
pub use problem_json::ProblemJson;

/// A responder, which creates the response to a denied request. Functions that take a `&Denial` and return a response
/// implement this trait.
///
/// The layer adds its rate-limit headers to the response, including `Retry-After`, unless the response already has
/// them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not create responses with the body `{B}`",
    note = "`ProblemJson`, the default, requires a body type that implements `From<Bytes> + Default`",
    note = "for a tonic service, use `.respond_with(Grpc)`; for other bodies, pass a function that takes `&Denial<'_>`"
)]
pub trait Respond<B>: Send + Sync + 'static {
    /// Returns the response to a denied request.
    fn respond(&self, denial: &Denial<'_>) -> Response<B>;
}

impl<F, B> Respond<B> for F
where
    F: Fn(&Denial<'_>) -> Response<B> + Send + Sync + 'static,
{
    fn respond(&self, denial: &Denial<'_>) -> Response<B> {
        self(denial)
    }
}

/// A denied request and the cause of the denial.
#[derive(Clone, Copy, Debug)]
pub struct Denial<'d> {
    head: RequestHead<'d>,
    cause: DenialReason<'d>,
}

/// The cause of a denial: the limits denied the request, or the request is malformed.
#[derive(Clone, Copy, Debug)]
enum DenialReason<'d> {
    Limits { decision: &'d Decision<'static>, retry_after: Option<Duration> },
    Malformed(&'d str),
}

impl<'d> Denial<'d> {
    pub(crate) fn from_decision(
        head: RequestHead<'d>,
        decision: &'d Decision<'static>,
        retry_after: Option<Duration>,
    ) -> Self {
        Self { head, cause: DenialReason::Limits { decision, retry_after } }
    }

    pub(crate) fn from_malformed_request(head: RequestHead<'d>, detail: &'d str) -> Self {
        Self { head, cause: DenialReason::Malformed(detail) }
    }

    /// Returns the head of the request.
    pub fn head(&self) -> RequestHead<'d> {
        self.head
    }

    /// Returns the decision with the status of every limit; `None` if the request is malformed, which is detected before
    /// the limits are checked.
    pub fn decision(&self) -> Option<&'d Decision<'static>> {
        match self.cause {
            DenialReason::Limits { decision, .. } => Some(decision),
            DenialReason::Malformed(_) => None,
        }
    }

    /// Returns the wait after which this request would be allowed, including the jitter of the layer; `None` if the
    /// request can never be allowed or the wait is unknown.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.cause {
            DenialReason::Limits { retry_after, .. } => retry_after,
            DenialReason::Malformed(_) => None,
        }
    }

    /// Returns the description of the error in a malformed request; `None` if the limits denied the request.
    pub fn malformed_detail(&self) -> Option<&'d str> {
        match self.cause {
            DenialReason::Limits { .. } => None,
            DenialReason::Malformed(detail) => Some(detail),
        }
    }

    /// Returns the problem details of a denial; `None` if the request is malformed.
    pub fn problem(&self) -> Option<Problem> {
        self.decision().and_then(Problem::from_decision)
    }

    /// Returns the reason for the denial; `None` if the request is malformed.
    pub fn reason(&self) -> Option<slidegate::Reason> {
        self.decision().and_then(Decision::reason)
    }

    /// Returns the status: the `deny_status` of the rule, 429 by default; 503 if the store is unavailable; 400 if the
    /// request is malformed.
    pub fn status(&self) -> StatusCode {
        match self.decision().map(|decision| StatusCode::from_u16(decision.status())) {
            None => StatusCode::BAD_REQUEST,
            Some(status) => status.unwrap_or(StatusCode::TOO_MANY_REQUESTS),
        }
    }

    /// Returns `true` if the request is a gRPC call, whose response must have gRPC status headers instead of a body.
    pub fn is_grpc(&self) -> bool {
        grpc::is_grpc(self.head)
    }
}
