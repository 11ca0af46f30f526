//! `slidegate health`: checks that a server runs, for the health checks of containers.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use thiserror::Error;

use crate::cli::client::{self, RequestError, ResponseBounds};

/// The flags of `slidegate health`.
#[derive(Debug, clap::Args)]
pub struct HealthArgs {
    /// HTTP or admin listener of the server. By default the admin listener of SLIDEGATE_ADMIN
    #[arg(long, value_name = "URL", default_value_t = admin_url(std::env::var("SLIDEGATE_ADMIN").ok()))]
    pub server: String,
}

/// Returns the URL of an admin listener. A listener on all addresses is called on the loopback address.
fn admin_url(listener: Option<String>) -> String {
    let listener = listener.unwrap_or_else(|| "127.0.0.1:6070".to_owned());
    let address = match listener.parse() {
        Ok(SocketAddr::V4(all)) if all.ip().is_unspecified() => {
            SocketAddr::from((Ipv4Addr::LOCALHOST, all.port())).to_string()
        }
        Ok(SocketAddr::V6(all)) if all.ip().is_unspecified() => {
            SocketAddr::from((Ipv6Addr::LOCALHOST, all.port())).to_string()
        }
        _ => listener,
    };
    format!("http://{address}")
}

/// The error if a server does not run.
#[derive(Debug, Error)]
#[error(
    "{url}: the server does not respond with 200: {cause}; check --server, and the log of the server"
)]
pub struct HealthError {
    url: String,
    cause: RequestError,
}

/// The bounds of the response. The timeout is below the 30 s that Docker waits for a check.
const RESPONSE_BOUNDS: ResponseBounds =
    ResponseBounds { timeout: Duration::from_secs(5), max_body_bytes: 64 * 1024 };

/// Runs `slidegate health`. Succeeds if the server responds to `/healthz`.
pub fn run(args: &HealthArgs) -> Result<&'static str, HealthError> {
    let url = format!("{}/healthz", args.server.trim_end_matches('/'));
    match client::get(&url, RESPONSE_BOUNDS) {
        Ok(_) => Ok("ok\n"),
        Err(cause) => Err(HealthError { url, cause }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_that_of_admin_listener() {
        for (listener, url) in [
            (None, "http://127.0.0.1:6070"),
            (Some("0.0.0.0:9090"), "http://127.0.0.1:9090"),
            (Some("[::]:9090"), "http://[::1]:9090"),
            (Some("192.0.2.7:9090"), "http://192.0.2.7:9090"),
            (Some("localhost:9090"), "http://localhost:9090"),
        ] {
            assert_eq!(admin_url(listener.map(str::to_owned)), url);
        }
    }
}
