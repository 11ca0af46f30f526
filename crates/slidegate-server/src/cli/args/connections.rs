//! The flags that bound connections and bodies of clients.

use std::num::NonZeroUsize;
use std::time::Duration;

use super::value_parsers::{DurationRange, parse_nonzero, parse_size};
use crate::bounds::ClientBounds;
use crate::connections::bodies::MIN_BODY_BUDGET;

/// The flags that bound connections and bodies of clients.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Connections and shutdown")]
pub struct ConnectionArgs {
    /// Maximum number of open connections of each client listener, HTTP and gRPC
    ///
    /// When it is reached, new connections wait until others close. If the open file limit of the process is too low
    /// for it, the server uses a lower maximum.
    #[arg(
        long,
        value_name = "N",
        env = "SLIDEGATE_MAX_CONNECTIONS",
        default_value = "10000",
        value_parser = parse_nonzero::<NonZeroUsize>
    )]
    pub max_connections: NonZeroUsize,

    /// Whether the command line or the environment sets `max_connections`.
    #[arg(skip)]
    pub is_max_connections_given: bool,

    /// Maximum number of open connections from one address; by default half of --max-connections, at least 256
    ///
    /// IPv6 addresses in the same /64 network count as one. Further connections are closed at once.
    #[arg(
        long,
        value_name = "N",
        env = "SLIDEGATE_MAX_CONNECTIONS_PER_ADDRESS",
        value_parser = parse_nonzero::<NonZeroUsize>
    )]
    pub max_connections_per_address: Option<NonZeroUsize>,

    /// Maximum age of a connection, increased at random by up to 10%
    ///
    /// An HTTP connection then closes after its next response, and a gRPC connection after its open calls. From 1s to
    /// 365 days (8760h).
    #[arg(
        long,
        value_name = "DURATION",
        env = "SLIDEGATE_MAX_CONNECTION_AGE",
        default_value = "1h",
        value_parser = parse_max_connection_age
    )]
    pub max_connection_age: Duration,

    /// Maximum time that a gRPC connection may be without calls
    ///
    /// Idle HTTP connections close after --client-timeout. From 1s to 365 days (8760h).
    #[arg(
        long,
        value_name = "DURATION",
        env = "SLIDEGATE_MAX_CONNECTION_IDLE",
        default_value = "5m",
        value_parser = parse_max_connection_age
    )]
    pub max_connection_idle: Duration,

    /// Maximum memory for request bodies of all connections
    ///
    /// Above it, the server stops reading until others are handled. One connection uses at most half of it. Each
    /// connection has 64 KiB of its own in addition. At least 8MiB.
    #[arg(
        long,
        value_name = "SIZE",
        env = "SLIDEGATE_MAX_BUFFERED",
        default_value = "64MiB",
        value_parser = parse_max_buffered
    )]
    pub max_buffered: usize,

    // The default exceeds the 60 s for which proxies keep idle upstream connections, so that the proxy closes them
    // first: only the proxy knows whether it is about to send a request.
    /// Maximum wait for a client in each step of a request, and maximum idle time of a connection
    ///
    /// The steps are to receive the head, to receive the body, and to send the response. From 1s to 24h.
    #[arg(
        long,
        value_name = "DURATION",
        env = "SLIDEGATE_CLIENT_TIMEOUT",
        default_value = "75s",
        value_parser = parse_client_timeout
    )]
    pub client_timeout: Duration,
}

impl ConnectionArgs {
    /// Returns the bounds on the connections of a listener.
    pub fn bounds(&self) -> ClientBounds {
        ClientBounds {
            max_connections: self.max_connections,
            max_connections_per_address: self.max_connections_per_address,
            client_timeout: self.client_timeout,
            max_connection_age: self.max_connection_age,
            max_connection_idle: self.max_connection_idle,
        }
    }
}

fn parse_client_timeout(text: &str) -> Result<Duration, String> {
    let (min, max) = (Duration::from_secs(1), Duration::from_secs(86_400));
    DurationRange { min, max, example: "75s" }.parse(text)
}

fn parse_max_connection_age(text: &str) -> Result<Duration, String> {
    let (min, max) = (Duration::from_secs(1), Duration::from_secs(8_760 * 3_600));
    DurationRange { min, max, example: "1h" }.parse(text)
}

fn parse_max_buffered(text: &str) -> Result<usize, String> {
    parse_size(text, MIN_BODY_BUDGET, "8MiB")
}
