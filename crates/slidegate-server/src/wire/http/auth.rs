//! `/v1/auth`: forward authentication. A proxy describes the client's request in headers, and the response allows or
//! denies it.
//!
//! Only requests from trusted proxies are served. The crate `slidegate-tower` determines the client address and
//! normalizes the path.

mod forwarded;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, Uri};
use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use slidegate::clock::{Clock, SystemClock};
use slidegate_tower::TrustedProxies;
use slidegate_tower::extract::client_address;
use tracing::warn;

pub use self::forwarded::RepeatedHeaders;
use self::forwarded::{ForwardedRequest, has_ambiguous_path};
use crate::decide::active_policy::ActivePolicy;
use crate::decide::{AttributeNameSource, Call, Operation};
use crate::json::{CowText, default_domain};
use crate::render::problem::HttpProblem;
use crate::telemetry::LogThrottle;

/// A forward-auth request: the query of the proxy, and the client's request that the proxy describes in headers.
pub struct ForwardAuthRequest<'r> {
    query: ForwardAuthQuery<'r>,
    forwarded: ForwardedRequest<'r>,
}

impl<'r> ForwardAuthRequest<'r> {
    /// Parses the head of a forward-auth request from `peer`. The policy names the client's headers that are
    /// attributes.
    pub fn parse(
        head: &'r Parts,
        peer: SocketAddr,
        proxy_trust: &ProxyTrust,
        policy: &'r ActivePolicy,
    ) -> Result<Self, HttpProblem> {
        let query = ForwardAuthQuery::parse(&head.uri)?;
        let forwarded = proxy_trust.read_forwarded_request(&head.headers, peer.ip(), policy)?;
        if has_ambiguous_path(&head.headers) {
            let problem = "the path has a segment `.` or `..`, and also `//`, `%2F`, `%5C` or a backslash, so servers read it in different ways; send the path without `.` and `..`";
            return Err(HttpProblem::bad_request(problem));
        }
        Ok(Self { query, forwarded })
    }

    /// Returns the status of a denial that the proxy chooses, if it chooses one.
    pub fn deny_status(&self) -> Option<StatusCode> {
        self.query.deny_status.as_ref().map(|DenyStatus(status)| *status)
    }

    /// Converts this request to a check of one unit.
    pub fn to_call(&self) -> Call<'_> {
        let request = self.forwarded.to_gate_request(&self.query.domain);
        Call {
            name_source: AttributeNameSource::ForwardAuth,
            ..Call::new(Operation::Check, request)
        }
    }
}

/// The proxies whose `X-Forwarded-*` headers are trusted, and the treatment of repeated client headers.
pub struct ProxyTrust {
    proxies: TrustedProxies,
    repeated: RepeatedHeaders,
    log_throttle: LogThrottle,
    clock: SystemClock,
}

impl ProxyTrust {
    /// Creates the settings for these proxies. Requests from untrusted addresses cause at most one log entry per
    /// minute.
    pub fn new(proxies: TrustedProxies, repeated: RepeatedHeaders) -> Self {
        let log_throttle = LogThrottle::new(1, Duration::from_secs(60));
        Self { proxies, repeated, log_throttle, clock: SystemClock::new() }
    }

    /// Reads the request that a proxy describes in headers. Returns an error if `peer` is not a trusted proxy. The
    /// alternatives would silently apply wrong limits: to count all clients of this peer as one client, or to trust the
    /// client addresses in its headers.
    fn read_forwarded_request<'h>(
        &self,
        headers: &'h HeaderMap,
        peer: IpAddr,
        policy: &'h ActivePolicy,
    ) -> Result<ForwardedRequest<'h>, HttpProblem> {
        let peer = peer.to_canonical();
        if self.proxies.contains(peer) {
            let ip = client_address(headers, peer, &self.proxies);
            return Ok(ForwardedRequest::from_headers(
                headers,
                ip,
                &policy.header_attributes,
                self.repeated,
            ));
        }
        let problem = format!(
            "{peer} is not in --trusted-proxies ({}), so its X-Forwarded-* headers are not trusted; add \
             {peer} if it is your proxy",
            self.proxies
        );
        // The rejection is also logged, because most proxies do not show this response to anyone.
        if let Some(unlogged) = self.log_throttle.try_acquire(self.clock.now()) {
            warn!(
                %peer,
                trusted_proxies = %self.proxies,
                unlogged,
                "rejected forward-auth request from untrusted address; if it is your proxy, add it to \
                 --trusted-proxies"
            );
        }
        Err(HttpProblem::bad_request(problem))
    }
}

/// The query of a forward-auth request: settings that the proxy chooses.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForwardAuthQuery<'q> {
    /// The domain whose rules apply, by default `default`.
    #[serde(borrow, default = "default_domain")]
    domain: CowText<'q>,
    /// The status of a denial. By default 429, or 503 if the request is denied only because the store is unavailable.
    #[serde(default)]
    deny_status: Option<DenyStatus>,
}

impl<'q> ForwardAuthQuery<'q> {
    fn parse(uri: &'q Uri) -> Result<Self, HttpProblem> {
        serde_urlencoded::from_str(uri.query().unwrap_or_default()).map_err(|error| {
            HttpProblem::bad_request(format!(
                "the query: {error}; send only domain=NAME and deny_status=N, each at most once"
            ))
        })
    }
}

/// The status of a denial, an error from 400 to 599.
struct DenyStatus(StatusCode);

const MIN_DENY_STATUS: u16 = 400;
const MAX_DENY_STATUS: u16 = 599;

impl<'de> Deserialize<'de> for DenyStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DenyStatusVisitor;

        impl Visitor<'_> for DenyStatusVisitor {
            type Value = DenyStatus;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a status from {MIN_DENY_STATUS} to {MAX_DENY_STATUS}")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<DenyStatus, E> {
                let is_numeric = text.bytes().all(|byte| byte.is_ascii_digit());
                let status = text.parse().ok().filter(|status| {
                    is_numeric && (MIN_DENY_STATUS..=MAX_DENY_STATUS).contains(status)
                });
                let status = status.and_then(|status| StatusCode::from_u16(status).ok());
                status.map(DenyStatus).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
            }
        }

        deserializer.deserialize_str(DenyStatusVisitor)
    }
}
