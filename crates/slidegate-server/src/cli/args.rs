//! The flags of `slidegate serve` and their environment variables: syntax only. `settings` interprets the values.
//!
//! A flag's doc comment is its help text. The first paragraph is the line in `-h`: a noun phrase. The second paragraph
//! has the range and the effect of the extreme value.

mod cluster;
mod connections;
mod ineffective;
mod listener;
mod observability;
mod policy_source;
mod store;
mod value_parsers;
mod waiting;

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use slidegate::Jitter;
use slidegate::headers::Style;
use slidegate_tower::TrustedProxies;

pub use self::cluster::{ClusterArgs, ClusterCredentialArgs};
pub use self::connections::ConnectionArgs;
pub use self::ineffective::reject_ineffective_flags;
pub use self::listener::{AddressOrNone, TlsArgs};
pub use self::observability::ObservabilityArgs;
pub use self::policy_source::PolicySourceArgs;
#[cfg(feature = "tools")]
pub use self::policy_source::parse_algorithm;
pub use self::store::StoreArgs;
pub use self::value_parsers::{DurationRange, parse_host_name, parse_nonzero};
pub use self::waiting::WaitingArgs;

use crate::boot::listen::{GrpcAddress, ListenAddress};
use crate::wire::http::RepeatedHeaders;

/// The flags of `slidegate serve`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("policy", |policy| policy.required_unless_present("ratelimit_config")))]
pub struct ServeArgs {
    #[command(flatten)]
    pub policy_source: PolicySourceArgs,

    /// Observe only: no rule denies, as with `mode: observe` in each rule
    ///
    /// Metrics and top keys show the requests that would have been denied.
    #[arg(long, env = "SLIDEGATE_OBSERVE", help_heading = "Policy")]
    pub observe: bool,

    /// Strict attribute names: status 400 for a request with names that no rule uses, if no rule applies to it
    ///
    /// Only if a rule does not apply for lack of an attribute. By default such a request is allowed, and the log has its
    /// names once a minute. /v1/auth is excepted.
    #[arg(long, env = "SLIDEGATE_STRICT", help_heading = "Policy")]
    pub strict: bool,

    /// Address of the HTTP listener
    ///
    /// Port 0 selects a free port. A host name is resolved at start, and the first of its addresses on which the server
    /// can listen is used. The log has the address.
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "SLIDEGATE_HTTP",
        default_value = "127.0.0.1:8080",
        help_heading = "Listeners"
    )]
    pub http: ListenAddress,

    /// Address of the gRPC listener, for Envoy and other clients; none disables it
    ///
    /// unix:/run/slidegate/grpc.sock listens on a UNIX socket.
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "SLIDEGATE_GRPC",
        default_value = "127.0.0.1:8081",
        help_heading = "Listeners"
    )]
    pub grpc: AddressOrNone<GrpcAddress>,

    /// Address of the admin listener: metrics, top keys, explain; none disables it
    ///
    /// Keep it private. With none, no metrics and no top keys are collected.
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "SLIDEGATE_ADMIN",
        default_value = "127.0.0.1:6070",
        help_heading = "Listeners"
    )]
    pub admin: AddressOrNone<ListenAddress>,

    /// Host names of the admin listener in URLs, such as slidegate.internal
    ///
    /// Names, separated by commas. /v1/… on the admin listener accepts no other names (421), so that no web page reads it
    /// by DNS rebinding. IP addresses, localhost and the host of --admin are always accepted.
    #[arg(
        long,
        value_name = "NAME,…",
        env = "SLIDEGATE_ADMIN_HOST",
        value_delimiter = ',',
        value_parser = parse_host_name,
        help_heading = "Listeners"
    )]
    pub admin_host: Vec<String>,

    #[command(flatten)]
    pub tls: TlsArgs,

    /// Proxies whose X-Forwarded-* headers are trusted at /v1/auth
    ///
    /// Addresses and networks, separated by commas. Requests from other addresses are rejected; none rejects all.
    #[arg(
        long,
        value_name = "CIDR,…",
        env = "SLIDEGATE_TRUSTED_PROXIES",
        default_value = "127.0.0.1,::1",
        help_heading = "Forward authentication (/v1/auth)"
    )]
    pub trusted_proxies: TrustedProxies,

    /// Value of a client header at /v1/auth that occurs several times with different values
    #[arg(
        long,
        value_name = "VALUE",
        env = "SLIDEGATE_REPEATED_HEADERS",
        default_value = "first",
        help_heading = "Forward authentication (/v1/auth)"
    )]
    pub repeated_headers: RepeatedHeaders,

    /// Style of the rate limit headers
    ///
    /// Every style sends Retry-After.
    #[arg(
        long,
        value_name = "STYLE",
        env = "SLIDEGATE_HEADERS",
        default_value = Style::default().name(),
        value_parser = PossibleValuesParser::new(Style::ALL.map(Style::name)).try_map(|name| name.parse::<Style>()),
        help_heading = "Response headers"
    )]
    pub headers: Style,

    /// Maximum random increase of Retry-After and of the reset of a denial; 0% disables it
    ///
    /// Denied clients then do not all retry at the same time.
    #[arg(
        long,
        value_name = "PERCENT",
        env = "SLIDEGATE_RETRY_JITTER",
        default_value = "0%",
        help_heading = "Response headers"
    )]
    pub retry_jitter: Jitter,

    #[command(flatten)]
    pub store: StoreArgs,

    #[command(flatten)]
    pub cluster: ClusterArgs,

    #[command(flatten)]
    pub waiting: WaitingArgs,

    #[command(flatten)]
    pub connections: ConnectionArgs,

    /// Whether the command line has the token key, instead of the environment or a file.
    #[arg(skip)]
    pub is_token_key_on_command_line: bool,

    /// Whether the command line has the cluster key, instead of the environment or a file.
    #[arg(skip)]
    pub is_cluster_key_on_command_line: bool,

    /// Maximum time for requests in flight to finish after the signal to stop; 0s closes connections immediately
    ///
    /// From 0s to 10m.
    #[arg(
        long,
        value_name = "DURATION",
        env = "SLIDEGATE_SHUTDOWN_GRACE",
        default_value = "10s",
        value_parser = parse_shutdown_grace,
        help_heading = "Connections and shutdown"
    )]
    pub shutdown_grace: Duration,

    #[command(flatten)]
    pub observability: ObservabilityArgs,
}

fn parse_shutdown_grace(text: &str) -> Result<Duration, String> {
    let max = Duration::from_secs(600);
    DurationRange { min: Duration::ZERO, max, example: "10s" }.parse(text)
}
