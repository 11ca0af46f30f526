//! Responses to requests that are denied or malformed.

mod grpc;
mod problem_json;

use std::time::Duration;

use http::{Response, StatusCode};
use slidegate::Decision;
use slidegate::headers::Problem;

use crate::extract::RequestHead;

pub use grpc::Grpc;
pub use problem_json::ProblemJson;

/// A responder, which creates the response to a denied request. Functions that take a `&Denial` and return a response
/// implement this trait.
///
/// The layer adds its rate-limit headers to the response, including `Retry-After`, and `Cache-Control: no-store`, unless
/// the response already has them.
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
    Limits {
        decision: &'d Decision<'static>,
        retry_after: Option<Duration>,
        missing_extension: Option<MissingExtension>,
    },
    Malformed(&'d str),
}

/// An extension without which a request was denied, and which the server should have added to it.
#[derive(Clone, Copy, Debug)]
pub struct MissingExtension {
    pub name: &'static str,
    /// The status of such denials that is set in the layer; `None` if they have the status of other denials, such as
    /// 429.
    pub status: Option<StatusCode>,
}

impl<'d> Denial<'d> {
    pub(crate) fn from_decision(
        head: RequestHead<'d>,
        decision: &'d Decision<'static>,
        retry_after: Option<Duration>,
        missing_extension: Option<MissingExtension>,
    ) -> Self {
        Self { head, cause: DenialReason::Limits { decision, retry_after, missing_extension } }
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

    /// Returns the problem details of a denial; `None` if the request is malformed, or if the denial has the status of a
    /// [missing extension](crate::RateLimitLayer::missing_extension_status).
    pub fn problem(&self) -> Option<Problem> {
        self.decision().filter(|_| !self.is_server_error()).and_then(Problem::from_decision)
    }

    /// Returns the extension without which the request was denied, if no request had it so far: the server should have
    /// added it.
    pub fn missing_extension(&self) -> Option<&'static str> {
        self.missing().map(|missing| missing.name)
    }

    fn missing(&self) -> Option<MissingExtension> {
        match self.cause {
            DenialReason::Limits { missing_extension, .. } => missing_extension,
            DenialReason::Malformed(_) => None,
        }
    }

    /// Returns whether the denial has the status of a missing extension.
    pub(crate) fn is_server_error(&self) -> bool {
        self.missing().is_some_and(|missing| missing.status.is_some())
    }

    /// Returns the reason for the denial; `None` if the request is malformed.
    pub fn reason(&self) -> Option<slidegate::Reason> {
        self.decision().and_then(Decision::reason)
    }

    /// Returns the status: the `deny_status` of the rule, 429 by default; 503 if the store is unavailable; 400 if the
    /// request is malformed; the [status of a missing
    /// extension](crate::RateLimitLayer::missing_extension_status), if it is set and the reason.
    pub fn status(&self) -> StatusCode {
        if let Some(status) = self.missing().and_then(|missing| missing.status) {
            return status;
        }
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
