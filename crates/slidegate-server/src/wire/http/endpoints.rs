//! The HTTP paths that return decisions.

use axum::http::Method;

/// An HTTP path that returns decisions. `docs/reference/openapi.json` describes every endpoint.
#[derive(Clone, Copy)]
pub enum Endpoint {
    Check,
    Peek,
    Report,
    Reserve,
    Settle,
    Release,
    Renew,
    Auth,
    Json,
}

impl Endpoint {
    /// All endpoints.
    pub const ALL: [Self; 9] = [
        Self::Check,
        Self::Peek,
        Self::Report,
        Self::Reserve,
        Self::Settle,
        Self::Release,
        Self::Renew,
        Self::Auth,
        Self::Json,
    ];

    /// Returns the URL path of the endpoint.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Check => "/v1/check",
            Self::Peek => "/v1/peek",
            Self::Report => "/v1/report",
            Self::Reserve => "/v1/reserve",
            Self::Settle => "/v1/settle",
            Self::Release => "/v1/release",
            Self::Renew => "/v1/renew",
            Self::Auth => "/v1/auth",
            Self::Json => "/json",
        }
    }

    /// Returns the endpoint with this path, or `None` if there is none.
    pub fn from_path(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|endpoint| endpoint.as_str() == path)
    }

    /// Returns the maximum size of a body in bytes whose request is handled on the thread of its connection. It takes
    /// less time than a few small requests.
    pub fn max_small_body_bytes(self) -> usize {
        match self {
            // A descriptor takes 40 bytes, and is decided like a request of its own.
            Self::Json => 1024,
            _ => 16 * 1024,
        }
    }

    /// Returns `true` if the endpoint accepts the method. `/v1/auth` accepts every method, since proxies use the method
    /// of their client.
    pub fn allows_method(self, method: &Method) -> bool {
        matches!(self, Self::Auth) || method == Method::POST
    }

    /// Returns the name of the trace span of a request.
    pub fn span_name(self) -> &'static str {
        match self {
            Self::Check => "slidegate.check",
            Self::Peek => "slidegate.peek",
            Self::Report => "slidegate.report",
            Self::Reserve => "slidegate.reserve",
            Self::Settle => "slidegate.settle",
            Self::Release => "slidegate.release",
            Self::Renew => "slidegate.renew",
            Self::Auth => "slidegate.auth",
            Self::Json => "slidegate.should_rate_limit",
        }
    }
}
