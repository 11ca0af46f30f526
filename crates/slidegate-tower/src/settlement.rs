//! Settlement of charges: the final cost of an allowed request is determined from its response.

use http::{Extensions, HeaderMap, Response, StatusCode};

/// The final cost of an allowed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// Keeps the charge.
    Keep,
    /// Reverts the charge.
    Revert,
    /// Corrects the charge to the actual cost in units, even if this cost exceeds the maximum of a limit. Further
    /// requests are then denied until enough units have left the window. If rules have charged costs of several names, use
    /// [`NamedCost`](Self::NamedCost).
    Cost(u64),
    /// Corrects the charges of a [named cost](crate::Attributes::named_cost) to the actual cost in units, even if it
    /// exceeds the maximum of a limit. Charges of other costs stay. A layer over a limiter keeps the charge.
    NamedCost {
        /// The name of the cost, such as `tokens`.
        cost: &'static str,
        /// The units that have been consumed.
        units: u64,
    },
    /// Keeps the charge, and also charges units of a named cost, even if they exceed the maximum of a limit. A gate
    /// charges them to the rules that use this cost. A limiter charges them to all of its limits.
    Report {
        /// The name of the cost, such as `tokens`.
        cost: &'static str,
        /// The units that have been consumed.
        units: u64,
    },
}

/// The treatment of the charge if a call is dropped before its response, because the client disconnected, a timeout
/// ended the call, or the call panicked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDrop {
    /// The charge stays, because otherwise a client could consume work for free by disconnecting early.
    #[default]
    Keep,
    /// The charge is reverted, also if the call is dropped while it waits for the store. For an asynchronous store, a
    /// tokio task reverts the charge; outside of a tokio runtime the charge stays.
    Revert,
}

/// The head of a response: everything except the body.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ResponseHead<'a> {
    /// The status of the response. The status of a gRPC call is always 200: see [`grpc_status`](Self::grpc_status).
    pub status: StatusCode,
    /// The headers of the response.
    pub headers: &'a HeaderMap,
    /// Values that handlers and layers have added to the response, such as a cost.
    pub extensions: &'a Extensions,
}

impl ResponseHead<'_> {
    /// Returns the gRPC status code of a call that failed before it sent a message; `None` otherwise. A stream that
    /// fails later reports the code in its trailers, which are not available yet.
    pub fn grpc_status(&self) -> Option<u16> {
        self.headers.get("grpc-status")?.to_str().ok()?.parse().ok()
    }
}

impl<'a, B> From<&'a Response<B>> for ResponseHead<'a> {
    fn from(response: &'a Response<B>) -> Self {
        Self {
            status: response.status(),
            headers: response.headers(),
            extensions: response.extensions(),
        }
    }
}
