//! Responses to requests that are denied or malformed.

mod grpc;
mod problem_json;

use std::time::Duration;

use http::{Response, StatusCode};
use slidegate::{Problem, Ruling};

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
    note = "`ProblemJson`, the default, needs a body that is `From<Bytes> + Default`",
    note = "for a tonic service use `.respond_with(Grpc)`, for others a function of a `&Denial<'_>`"
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
    Ruling { ruling: &'d Ruling, retry_after: Option<Duration> },
    Malformed(&'d str),
}

impl<'d> Denial<'d> {
    pub(crate) fn from_ruling(
        head: RequestHead<'d>,
        ruling: &'d Ruling,
        retry_after: Option<Duration>,
    ) -> Self {
        Self { head, cause: DenialReason::Ruling { ruling, retry_after } }
    }

    pub(crate) fn from_malformed_request(head: RequestHead<'d>, detail: &'d str) -> Self {
        Self { head, cause: DenialReason::Malformed(detail) }
    }

    /// Returns the head of the request.
    pub fn head(&self) -> RequestHead<'d> {
        self.head
    }

    /// Returns the ruling with the status of every limit; `None` if the request is malformed, which is detected before
    /// the limits are checked.
    pub fn ruling(&self) -> Option<&'d Ruling> {
        match self.cause {
            DenialReason::Ruling { ruling, .. } => Some(ruling),
            DenialReason::Malformed(_) => None,
        }
    }

    /// Returns the wait after which this request would be allowed, including the jitter of the layer; `None` if the
    /// request can never be allowed or the wait is unknown.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.cause {
            DenialReason::Ruling { retry_after, .. } => retry_after,
            DenialReason::Malformed(_) => None,
        }
    }

    /// Returns the description of the error in a malformed request; `None` if the limits denied the request.
    pub fn malformed_detail(&self) -> Option<&'d str> {
        match self.cause {
            DenialReason::Ruling { .. } => None,
            DenialReason::Malformed(detail) => Some(detail),
        }
    }

    /// Returns the problem details of a denial; `None` if the request is malformed.
    pub fn problem(&self) -> Option<Problem> {
        self.ruling().and_then(Problem::from_ruling)
    }

    /// Returns the reason for the denial; `None` if the request is malformed.
    pub fn reason(&self) -> Option<slidegate::Reason> {
        self.ruling().and_then(Ruling::reason)
    }

    /// Returns the status: the `deny_status` of the rule, 429 by default; 503 if the store is unavailable; 400 if the
    /// request is malformed.
    pub fn status(&self) -> StatusCode {
        match self.ruling().map(|ruling| StatusCode::from_u16(ruling.status())) {
            None => StatusCode::BAD_REQUEST,
            Some(status) => status.unwrap_or(StatusCode::TOO_MANY_REQUESTS),
        }
    }

    /// Returns `true` if the request is a gRPC call, whose response must have gRPC status headers instead of a body.
    pub fn is_grpc(&self) -> bool {
        grpc::is_grpc(self.head)
    }
}
