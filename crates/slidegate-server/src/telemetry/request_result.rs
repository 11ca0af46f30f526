//! The classification of responses: the result under which metrics count a request, and the status for traces.

use opentelemetry::KeyValue;
use slidegate::{Decision, Reason};

/// The result of a request, for metrics and traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestResult {
    Allowed,
    Denied,
    /// The request was denied because the store is unavailable and a rule denies requests in that case.
    StoreUnavailable,
    /// The request is invalid.
    Invalid,
    /// The server failed to decide about the request.
    Error,
}

/// A response that metrics and traces can classify.
pub trait ClassifyResponse {
    /// Returns the result under which metrics count the response.
    fn request_result(&self) -> RequestResult;

    /// Returns the status of the response as a span attribute.
    fn status_span_attribute(&self) -> KeyValue;
}

impl RequestResult {
    /// All results, in the order of the variants. A variant that is cast to an integer is its index in this array.
    pub const ALL: [Self; 5] =
        [Self::Allowed, Self::Denied, Self::StoreUnavailable, Self::Invalid, Self::Error];

    /// Returns the name of the result, which is the value of the label `result`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::StoreUnavailable => "store_unavailable",
            Self::Invalid => "invalid",
            Self::Error => "error",
        }
    }
}

/// Returns the result that metrics record for the response to a decision.
pub fn request_result_of_decision(decision: &Decision<'_>) -> RequestResult {
    match decision.is_allowed() {
        true => RequestResult::Allowed,
        false if decision.reason() == Some(Reason::StoreUnavailable) => {
            RequestResult::StoreUnavailable
        }
        false => RequestResult::Denied,
    }
}
