//! The flags of `slidegate serve` and their environment variables: syntax only. `settings` interprets the values.
//!
//! A flag's doc comment is its help text: a noun phrase with the unit and the effect of the extreme value.

mod cluster;
mod listener;
mod observability;
mod policy_source;
mod store;
mod value_parsers;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;

use slidegate::Jitter;
use slidegate::headers::Style;
use slidegate_tower::TrustedProxies;
use tracing::level_filters::LevelFilter;

pub use self::cluster::{ClusterArgs, ClusterKeyArg};
pub use self::listener::{AddressOrNone, RepeatedHeaders, TlsArgs};
pub use self::observability::{LogFormat, ObservabilityArgs};
pub use self::policy_source::{PolicySourceArgs, parse_algorithm};
pub use self::store::{RedisClock, StoreArgs};
use self::value_parsers::{parse_duration, parse_max_memory};

/// The flags of `slidegate serve`.
#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    #[command(flatten)]
    pub policy_source: PolicySourceArgs,

    /// Address of the HTTP listener; port 0 selects a free port, which is logged
    #[arg(long, value_name = "IP:PORT", env = "SLIDEGATE_HTTP", default_value = "127.0.0.1:8080")]
    pub http: SocketAddr,

    /// Address of the gRPC listener, for Envoy and other clients; none disables it
    #[arg(long, value_name = "IP:PORT", env = "SLIDEGATE_GRPC", default_value = "127.0.0.1:8081")]
    pub grpc: AddressOrNone,

    /// Proxies whose X-Forwarded-* headers are trusted at /v1/auth: addresses and networks, separated by commas.
    /// Requests from other addresses are rejected; none rejects all
    #[arg(
        long,
        value_name = "CIDR,…",
        env = "SLIDEGATE_TRUSTED_PROXIES",
        default_value = "127.0.0.1,::1"
    )]
    pub trusted_proxies: TrustedProxies,

    /// Value of a client header at /v1/auth that the client repeats with different values: `first` uses the first
    /// value, `absent` treats the header as missing
    #[arg(long, value_name = "VALUE", env = "SLIDEGATE_REPEATED_HEADERS", default_value = "first")]
    pub repeated_headers: RepeatedHeaders,

    /// Address of the admin listener: metrics, top keys, explain. Keep it private; none disables it, and collects no
    /// metrics and no top keys
    #[arg(long, value_name = "IP:PORT", env = "SLIDEGATE_ADMIN", default_value = "127.0.0.1:6070")]
    pub admin: AddressOrNone,

    #[command(flatten)]
    pub tls: TlsArgs,

    /// Observe only: no rule denies, as with `mode: observe`; metrics and top keys show the requests that would have
    /// been denied
    #[arg(long, env = "SLIDEGATE_OBSERVE")]
    pub observe: bool,

    /// Style of the rate limit headers: ietf, draft03, x or none. Every style sends Retry-After
    #[arg(long, value_name = "STYLE", env = "SLIDEGATE_HEADERS", default_value = "ietf")]
    pub headers: Style,

    /// Maximum random increase of Retry-After and of the reset in the headers of a denial, so that denied clients do
    /// not all retry at the same time; 0% disables it
    #[arg(long, value_name = "PERCENT", env = "SLIDEGATE_RETRY_JITTER", default_value = "0%")]
    pub retry_jitter: Jitter,

    #[command(flatten)]
    pub store: StoreArgs,

    #[command(flatten)]
    pub cluster: ClusterArgs,

    /// Maximum number of keys, such as clients, that are counted in memory; when it is reached, keys that are about
    /// to expire are evicted
    #[arg(long, value_name = "N", env = "SLIDEGATE_MAX_KEYS", default_value = "10000000")]
    pub max_keys: NonZeroUsize,

    /// Maximum memory of these keys, such as 512MiB, 1GiB or a number of bytes, at least 1MiB; when it is reached,
    /// keys that are about to expire are evicted
    #[arg(
        long,
        value_name = "SIZE",
        env = "SLIDEGATE_MAX_MEMORY",
        default_value = "1GiB",
        value_parser = parse_max_memory
    )]
    pub max_memory: usize,

    /// Maximum number of open connections of each client listener, HTTP and gRPC; when it is reached, new connections
    /// wait until others close
    #[arg(long, value_name = "N", env = "SLIDEGATE_MAX_CONNECTIONS", default_value = "10000")]
    pub max_connections: NonZeroUsize,

    // The default exceeds the 60 s for which proxies keep idle upstream connections, so that the proxy closes them: it
    // knows whether it is about to send a request.
    /// Maximum time to receive the head of a request, to receive its body, to send its response, and to keep an idle
    /// connection, in seconds from 1 to 86400
    #[arg(
        long,
        value_name = "SECONDS",
        env = "SLIDEGATE_CLIENT_TIMEOUT",
        default_value = "75",
        value_parser = clap::value_parser!(u64).range(1..=86_400)
    )]
    pub client_timeout: u64,

    /// Maximum time for requests in flight to finish after the signal to stop, such as 10s or 500ms; 0s closes
    /// connections immediately
    #[arg(
        long,
        value_name = "DURATION",
        env = "SLIDEGATE_SHUTDOWN_GRACE",
        default_value = "10s",
        value_parser = parse_shutdown_grace
    )]
    pub shutdown_grace: Duration,

    /// Fail readiness (/readyz) while the store is unavailable; by default the server stays ready, since
    /// on_store_error of the policy applies
    #[arg(long, env = "SLIDEGATE_READY_NEEDS_STORE")]
    pub ready_needs_store: bool,

    /// Level of the log on standard error: off, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", env = "SLIDEGATE_LOG_LEVEL", default_value = "info")]
    pub log_level: LevelFilter,

    #[command(flatten)]
    pub observability: ObservabilityArgs,
}

/// The maximum of `--shutdown-grace`.
const MAX_SHUTDOWN_GRACE: Duration = Duration::from_secs(600);

fn parse_shutdown_grace(text: &str) -> Result<Duration, String> {
    parse_duration(text, MAX_SHUTDOWN_GRACE)
        .ok_or_else(|| "write it as 500ms or 10s, from 0s to 600s".to_owned())
}
