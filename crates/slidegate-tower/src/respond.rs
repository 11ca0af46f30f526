//! The answer to a request that may not pass.

mod grpc;
mod problem_json;

use std::time::Duration;

use http::{Response, StatusCode};
use slidegate::{Problem, Ruling};

use crate::extract::Head;

pub use grpc::Grpc;
pub use problem_json::ProblemJson;

/// Answers a request that may not pass. A function of a [`Denial`] does, too.
///
/// The layer adds its headers to the answer, `Retry-After` among them, unless the answer has them already.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not make answers with the body `{B}`",
    note = "`ProblemJson`, which answers unless another is named, needs a body that is `From<Bytes> + Default`",
    note = "for a service of tonic say `.respond_with(Grpc)`, for any other a function of a `&Denial<'_>`"
)]
pub trait Respond<B>: Send + Sync + 'static {
    /// The answer.
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

/// A request that may not pass, and why.
#[derive(Clone, Copy, Debug)]
pub struct Denial<'d> {
    head: Head<'d>,
    reason: Reason<'d>,
}

#[derive(Clone, Copy, Debug)]
enum Reason<'d> {
    Ruled { ruling: &'d Ruling, retry_after: Option<Duration> },
    Malformed(&'d str),
}

impl<'d> Denial<'d> {
    pub(crate) fn ruled(head: Head<'d>, ruling: &'d Ruling, retry_after: Option<Duration>) -> Self {
        Self { head, reason: Reason::Ruled { ruling, retry_after } }
    }

    pub(crate) fn malformed(head: Head<'d>, detail: &'d str) -> Self {
        Self { head, reason: Reason::Malformed(detail) }
    }

    /// The head of the request.
    pub fn head(&self) -> Head<'d> {
        self.head
    }

    /// How the limits stand; none if they were not asked, since the request itself makes no sense.
    pub fn ruling(&self) -> Option<&'d Ruling> {
        match self.reason {
            Reason::Ruled { ruling, .. } => Some(ruling),
            Reason::Malformed(_) => None,
        }
    }

    /// How long until this request would fit, with the layer's jitter; none if it never can, or that is not known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.reason {
            Reason::Ruled { retry_after, .. } => retry_after,
            Reason::Malformed(_) => None,
        }
    }

    /// What is wrong with a request that makes no sense.
    pub fn malformed_because(&self) -> Option<&'d str> {
        match self.reason {
            Reason::Ruled { .. } => None,
            Reason::Malformed(detail) => Some(detail),
        }
    }

    /// Why a limit denies it; none if the request makes no sense.
    pub fn problem(&self) -> Option<Problem> {
        self.ruling().and_then(Problem::from_ruling)
    }

    /// Returns why the request is denied; `None` if it is malformed.
    pub fn reason(&self) -> Option<slidegate::Reason> {
        self.ruling().and_then(Ruling::reason)
    }

    /// Returns the status: the `deny_status` of the rule, 429 by default; 503 if the store is unavailable; 400 if the request
    /// is malformed.
    pub fn status(&self) -> StatusCode {
        match self.ruling().map(|ruling| StatusCode::from_u16(ruling.status())) {
            None => StatusCode::BAD_REQUEST,
            Some(status) => status.unwrap_or(StatusCode::TOO_MANY_REQUESTS),
        }
    }

    /// Whether the request is a gRPC call, whose answers have another form.
    pub fn is_grpc(&self) -> bool {
        grpc::is_grpc(self.head)
    }
}
