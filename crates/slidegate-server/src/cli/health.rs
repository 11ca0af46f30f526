//! `slidegate health`: checks that a server runs, for the health checks of containers.

use std::time::Duration;

use thiserror::Error;
use ureq::Agent;

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
    cause: ureq::Error,
}

/// The timeout of the call, below the 30 s that Docker waits for a check.
const HEALTH_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs `slidegate health`. Succeeds if the server responds to `/healthz`.
pub fn run(args: &HealthArgs) -> Result<&'static str, HealthError> {
    let url = format!("{}/healthz", args.server.trim_end_matches('/'));
    let agent: Agent =
        Agent::config_builder().timeout_global(Some(HEALTH_REQUEST_TIMEOUT)).build().into();
    match agent.get(&url).call() {
        Ok(_) => Ok("ok\n"),
        Err(cause) => Err(HealthError { url, cause }),
    }
}
