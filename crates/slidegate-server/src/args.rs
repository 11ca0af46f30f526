//! What may stand on the command line: syntax only. `settings` finds out what it means.

mod address;
mod cluster;
mod size;
mod source;
mod span;
mod store;
mod telling;
mod tls;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;

use clap::{ArgMatches, CommandFactory, Error, FromArgMatches, Parser};
use slidegate::Jitter;
use slidegate::headers::Style;
use slidegate_tower::TrustedProxies;
use tracing::level_filters::LevelFilter;

pub use self::address::AddressOrNone;
pub use self::cluster::{ClusterArgs, KeyText};
use self::size::max_memory;
pub use self::source::{SourceArgs, algorithm};
use self::span::span;
pub use self::store::{RedisClock, StoreArgs};
pub use self::telling::{LogFormat, TellingArgs};
pub use self::tls::TlsArgs;
use crate::command::convert::ConvertArgs;
use crate::command::explain::ExplainArgs;
use crate::command::replay::ReplayArgs;
use crate::command::validate::ValidateArgs;
use crate::http::RepeatedHeaders;

/// Limits how many requests pass, over sliding windows.
///
/// Write a policy file that says who may do how much, start `slidegate serve`, and ask it before
/// each request: `curl localhost:8080/v1/check -d '{"attributes":{"client":"alice"}}'`.
#[derive(Debug, Parser)]
#[command(name = "slidegate", version, disable_help_subcommand = true)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Answer over HTTP whether requests may pass
    Serve(Box<ServeArgs>),
    /// Say what is wrong with policies, or what they would do
    ///
    /// Tells every mistake with its place and what would be right, and exits with 1 if there is any.
    /// Otherwise tells in words what the policy enforces.
    Validate(ValidateArgs),
    /// Say what a policy makes of one request, rule by rule, and why
    ///
    /// Decides here, as if nobody had asked before: no server is asked, and nothing is counted.
    ///
    /// Example: slidegate explain --policy policy.yaml method=POST path=/login ip=192.0.2.7
    Explain(ExplainArgs),
    /// Print the policy that files of Envoy's reference rate limit server mean
    ///
    /// It is what `serve --ratelimit-config` enforces. Tells every mistake, and what cannot be expressed, with
    /// its place, and exits with 1 if there is any.
    Convert(ConvertArgs),
    /// Print the JSON Schema of policies, by which editors complete and check them
    ///
    /// Write it to a file, and name that in the first line of a policy:
    /// # yaml-language-server: $schema=./slidegate.schema.json
    Schema,
    /// Try a policy on the requests of a log file
    Replay(ReplayArgs),
}

#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    #[command(flatten)]
    pub source: SourceArgs,

    /// Where to listen; port 0 takes a free port and logs which
    #[arg(long, value_name = "IP:PORT", env = "SLIDEGATE_HTTP", default_value = "127.0.0.1:8080")]
    pub http: SocketAddr,

    /// Where Envoy and other callers of gRPC ask; none listens for no gRPC
    #[arg(long, value_name = "IP:PORT", env = "SLIDEGATE_GRPC", default_value = "127.0.0.1:8081")]
    pub grpc: AddressOrNone,

    /// Whom to believe at /v1/auth for whom they ask: addresses and networks of proxies with commas between,
    /// or none. Nothing is decided there for others
    #[arg(
        long,
        value_name = "CIDR,…",
        env = "SLIDEGATE_TRUSTED_PROXIES",
        default_value = "127.0.0.1,::1"
    )]
    pub trusted_proxies: TrustedProxies,

    /// What a client's header counts as at /v1/auth if the client repeats it with different values: `first` is its
    /// first value, `absent` treats the header as missing
    #[arg(long, value_name = "VALUE", env = "SLIDEGATE_REPEATED_HEADERS", default_value = "first")]
    pub repeated_headers: RepeatedHeaders,

    /// Where to tell how it goes and why: metrics, top, explain. It is for operators only, and must not be
    /// reached by others; none does without, and gathers nothing for it
    #[arg(long, value_name = "IP:PORT", env = "SLIDEGATE_ADMIN", default_value = "127.0.0.1:6070")]
    pub admin: AddressOrNone,

    #[command(flatten)]
    pub tls: TlsArgs,

    /// Deny nothing: every rule only watches, as by `mode: observe`, and what it would have denied is told
    /// by metrics and top
    #[arg(long, env = "SLIDEGATE_OBSERVE")]
    pub observe: bool,

    /// The headers that tell how limits stand: ietf, draft03, x or none. Retry-After goes with every
    /// style
    #[arg(long, value_name = "STYLE", env = "SLIDEGATE_HEADERS", default_value = "ietf")]
    pub headers: Style,

    /// Lengthen Retry-After, and the reset in the headers of a denial, by chance by up to this share,
    /// so that not all who were denied come back at once
    #[arg(long, value_name = "PERCENT", env = "SLIDEGATE_RETRY_JITTER", default_value = "0%")]
    pub retry_jitter: Jitter,

    #[command(flatten)]
    pub store: StoreArgs,

    #[command(flatten)]
    pub cluster: ClusterArgs,

    /// How many keys (such as clients) to count at once in memory; beyond it, one that is about to expire
    /// is forgotten
    #[arg(long, value_name = "N", env = "SLIDEGATE_MAX_KEYS", default_value = "10000000")]
    pub max_keys: NonZeroUsize,

    /// Memory that these keys may take, such as 512MiB, 1GiB or in bytes; beyond it, keys that are about to expire
    /// are evicted
    #[arg(
        long,
        value_name = "SIZE",
        env = "SLIDEGATE_MAX_MEMORY",
        default_value = "1GiB",
        value_parser = max_memory
    )]
    pub max_memory: usize,

    /// How many connections to serve at once, of HTTP and of gRPC each; beyond it, new ones wait until
    /// others end
    #[arg(long, value_name = "N", env = "SLIDEGATE_MAX_CONNECTIONS", default_value = "10000")]
    pub max_connections: NonZeroUsize,

    // Longer than the minute for which proxies keep idle connections to what is behind them: the
    // proxy should be the one to end them, since it knows whether it is about to send.
    /// How long a client may take to send a request's head, then its body, then to take its answer,
    /// and how long it may keep an idle connection
    #[arg(
        long,
        value_name = "SECONDS",
        env = "SLIDEGATE_CLIENT_TIMEOUT",
        default_value = "75",
        value_parser = clap::value_parser!(u64).range(1..=86_400)
    )]
    pub client_timeout: u64,

    /// How long requests may go on after the signal to stop, such as 10s or 500ms
    #[arg(
        long,
        value_name = "SPAN",
        env = "SLIDEGATE_SHUTDOWN_GRACE",
        default_value = "10s",
        value_parser = shutdown_grace
    )]
    pub shutdown_grace: Duration,

    /// Say at /readyz not to be ready while the store does not answer; without it, on_store_error of the
    /// policy is ready enough
    #[arg(long, env = "SLIDEGATE_READY_NEEDS_STORE")]
    pub ready_needs_store: bool,

    /// How much to tell on standard error: off, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", env = "SLIDEGATE_LOG_LEVEL", default_value = "info")]
    pub log_level: LevelFilter,

    #[command(flatten)]
    pub telling: TellingArgs,
}

/// The longest that requests may go on.
const MAX_GRACE: Duration = Duration::from_secs(600);

fn shutdown_grace(text: &str) -> Result<Duration, String> {
    span(text, MAX_GRACE).ok_or_else(|| "write it as 500ms or 10s, from 0s to 600s".to_owned())
}

impl Args {
    /// What stands on the command line, and in the environment. Who is wrong is told, and the process ends.
    pub fn read() -> Self {
        Self::of(Self::command().get_matches()).unwrap_or_else(|error| error.exit())
    }

    fn of(matches: ArgMatches) -> Result<Self, Error> {
        let mut args = Self::from_arg_matches(&matches)?;
        if let (Command::Serve(args), Some(serve)) =
            (&mut args.command, matches.subcommand_matches("serve"))
        {
            args.source.choose(serve)?;
        }
        Ok(args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(words: &[&str]) -> Result<SourceArgs, Error> {
        let line = ["slidegate", "serve"].iter().chain(words);
        match Args::of(Args::command().try_get_matches_from(line)?)?.command {
            Command::Serve(args) => Ok(args.source),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_policy_has_one_source() {
        assert!(source(&["--ratelimit-config", "b"]).unwrap().policy.is_none());
        assert!(source(&["--policy", "a"]).unwrap().ratelimit_config.is_none());
        let both = source(&["--policy", "a", "--ratelimit-config", "b"]).unwrap_err();
        assert!(both.to_string().contains("the argument '--policy <FILE>' cannot be used with"));
    }

    #[test]
    fn debug_has_no_secret() {
        let line = ["slidegate", "serve", "--policy", "p", "--store", "redis://:secret@h"];
        let line = line.iter().chain(&["--cluster-key", "a secret of nodes"]);
        let told = format!("{:?}", Args::try_parse_from(line).unwrap());
        assert!(told.contains("redis_prefix") && told.contains("cluster_key"), "{told}");
        assert!(!told.contains("secret"), "{told}");
    }
}
