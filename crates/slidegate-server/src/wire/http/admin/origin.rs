//! Rejects requests that a web page may have sent. The admin listener has no authentication, and the browser of an
//! operator can reach it.
//!
//! A page reads responses by DNS rebinding: its host name then resolves to the address of the listener. So the `Host`
//! of a request must be an IP address or a known name. A page also sends requests across origins, whose responses it
//! cannot read, so a POST must not come from another origin.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::Response;
use slidegate::policy::normalize_host;

use crate::client_text::excerpt;
use crate::render::problem::HttpProblem;

/// The header with which a browser states whether a request comes from a page of another site.
const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// The host names that requests to the admin listener may have, in addition to IP addresses and `localhost`.
#[derive(Clone, Debug)]
pub struct AdminHosts(Arc<[String]>);

impl AdminHosts {
    /// Creates the list of names. Empty names are ignored.
    pub fn new(names: &[String]) -> Self {
        let names = names.iter().map(|name| normalize_host(name).into_owned());
        Self(names.filter(|name| !name.is_empty()).collect())
    }

    /// Returns `true` if a value of the header `Host` is an address or a name of the listener.
    fn contains(&self, host: &str) -> bool {
        let host = normalize_host(host);
        host == "localhost"
            || host.ends_with(".localhost")
            || host.parse::<IpAddr>().is_ok()
            || self.0.iter().any(|name| *name == host)
    }
}

/// Rejects a request with an unknown `Host`, and a POST of another origin. Used as axum middleware.
pub async fn reject_cross_site_requests(
    State(hosts): State<AdminHosts>,
    request: Request,
    next: Next,
) -> Result<Response, HttpProblem> {
    check_origin(&hosts, request.method(), request.headers())?;
    Ok(next.run(request).await)
}

fn check_origin(
    hosts: &AdminHosts,
    method: &Method,
    headers: &HeaderMap,
) -> Result<(), HttpProblem> {
    // A request without a host is accepted: it is from no web page, because every browser sends a host.
    let Some(host) = headers.get(header::HOST) else { return Ok(()) };
    let host = String::from_utf8_lossy(host.as_bytes());
    if !hosts.contains(&host) {
        return Err(HttpProblem::misdirected_request(format!(
            "host `{}` is not a name of the admin listener, so a web page may have sent the request (DNS rebinding); use an IP address or localhost, or add the name to --admin-host",
            excerpt(&host)
        )));
    }
    if method == Method::POST && is_cross_origin(headers, &host) {
        return Err(HttpProblem::forbidden(
            "a web page of another origin sent the request; send it without the header Origin, for example with curl or `slidegate explain --server`",
        ));
    }
    Ok(())
}

/// Returns `true` if a browser sent the request for a page of another origin than the listener with the header `Host`.
fn is_cross_origin(headers: &HeaderMap, host: &str) -> bool {
    let site = headers.get(SEC_FETCH_SITE);
    if site.is_some_and(|site| site == "cross-site" || site == "same-site") {
        return true;
    }
    let Some(origin) = headers.get(header::ORIGIN) else { return false };
    let origin = String::from_utf8_lossy(origin.as_bytes());
    // The origin of a page without a host is `null`, which counts as another origin.
    let authority = origin.split_once("://").map(|(_, authority)| authority);
    !authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_localhost_and_configured_names_are_hosts() {
        let hosts = AdminHosts::new(&["Slidegate.Internal".to_owned(), String::new()]);
        for host in [
            "127.0.0.1",
            "127.0.0.1:6070",
            "10.1.2.3:9090",
            "[::1]:6070",
            "[2001:db8::1]",
            "localhost",
            "LOCALHOST.:6070",
            "admin.localhost:6070",
            "slidegate.internal",
            "SLIDEGATE.internal:6070",
        ] {
            assert!(hosts.contains(host), "{host}");
        }
        for host in [
            "",
            ":6070",
            "evil.example",
            "127.0.0.1.evil.example:6070",
            "localhost.evil.example",
            "slidegate.internal.evil.example",
            "internal",
        ] {
            assert!(!hosts.contains(host), "{host}");
        }
    }
}
