//! `slidegate health`: checks that a server runs, for the health checks of containers.

use std::time::Duration;

use thiserror::Error;

use crate::cli::client::{self, RequestError, ResponseBounds};

/// The flags of `slidegate health`.
#[derive(Debug, clap::Args)]
pub struct HealthArgs {
    /// HTTP or admin listener of the server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:6070")]
    pub server: String,
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
