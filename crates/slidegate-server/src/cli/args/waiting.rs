//! The flags that bound calls that wait for capacity.

use std::time::Duration;

use super::value_parsers::DurationRange;

/// The flags that bound calls that wait for capacity.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Waiting calls (wait_ms)")]
pub struct WaitingArgs {
    /// Maximum wait of a call with wait_ms; 0s disables waiting
    ///
    /// A call with a longer wait_ms waits for this time. From 0s to 10m. A value above --shutdown-grace cuts waiting
    /// calls off when the server stops.
    #[arg(
        long,
        value_name = "DURATION",
        env = "SLIDEGATE_MAX_WAIT",
        default_value = "5s",
        value_parser = parse_max_wait
    )]
    pub max_wait: Duration,

    /// Maximum number of calls that wait at the same time; 0 disables waiting
    ///
    /// Each waiting call occupies a connection. Further calls that would have to wait are denied immediately.
    #[arg(long, value_name = "N", env = "SLIDEGATE_MAX_WAITING", default_value = "1000")]
    pub max_waiting: usize,

    /// Maximum number of calls that wait for the same limit and key; 0 disables waiting
    #[arg(long, value_name = "N", env = "SLIDEGATE_MAX_WAITING_PER_KEY", default_value = "100")]
    pub max_waiting_per_key: usize,
}

fn parse_max_wait(text: &str) -> Result<Duration, String> {
    let max = Duration::from_secs(600);
    DurationRange { min: Duration::ZERO, max, example: "5s" }.parse(text)
}
