//! A call, which a listener has parsed, and the decision of the service about it.

use std::time::Duration;

use slidegate::{Decision, IdempotencyKey, Request};

use crate::permits::token::PermitToken;
use crate::reservations::token::ReservationToken;

/// A request of a client, as a listener has parsed it.
pub struct Call<'r> {
    pub operation: Operation,
    /// The domain and the descriptors that the policy applies to.
    pub request: Request<'r>,
    /// Identifies the call, so that a repetition charges nothing.
    pub idempotency_key: Option<IdempotencyKey<'r>>,
    /// The time for which the call may wait until it fits. The service has its own maximum.
    pub max_wait: Duration,
    pub name_source: NameSource,
    /// The tokens of the permits that the call releases first.
    pub released_permits: Vec<&'r str>,
    /// Whether the response contains the permit of the request. Otherwise the permit is released after the decision.
    pub returns_permit: bool,
}

/// The effect of a call on the limits that apply to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Charges the cost if every limit allows the request.
    Check,
    /// Returns the decision of a check. Charges nothing.
    Peek,
    /// Records units that have been consumed. Never denies.
    Report,
    /// Checks, and creates the token that settles the charges within `ttl`.
    Reserve { ttl: Duration },
}

/// The origin of the attribute names of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameSource {
    /// The caller chooses the names.
    Caller,
    /// `/v1/auth` sets fixed names and the headers that the policy names.
    ForwardAuth,
}

/// The decision about a call, with the tokens that its response contains.
pub struct DecidedCall {
    pub decision: Decision<'static>,
    /// The time for which the call waited for capacity.
    pub waited: Duration,
    /// The permit of the request; `None` if it has none, or the call does not return it.
    pub permit: Option<PermitToken>,
    /// The token of the reservation; `None` without a reservation, or if the request is denied.
    pub reservation: Option<ReservationToken>,
}

impl<'r> Call<'r> {
    /// Creates a call that neither waits nor returns a permit.
    pub fn new(operation: Operation, request: Request<'r>) -> Self {
        Self {
            operation,
            request,
            idempotency_key: None,
            max_wait: Duration::ZERO,
            name_source: NameSource::Caller,
            released_permits: Vec::new(),
            returns_permit: false,
        }
    }
}
