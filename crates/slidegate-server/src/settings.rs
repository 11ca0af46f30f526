//! What the arguments mean: files are read, so that a mistake shows before anything starts.

mod cluster;

use std::fmt;
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use slidegate::headers::Style;
use slidegate::{Jitter, Policy};
use slidegate_redis::{Address, AddressError};
use slidegate_tower::TrustedProxies;
use thiserror::Error;
use tracing::level_filters::LevelFilter;

use self::cluster::ClusterError;
use crate::args::{
    AddressOrNone, ClusterArgs, RedisClock, ServeArgs, StoreArgs, TellingArgs, TlsArgs,
};
use crate::http::RepeatedHeaders;
use crate::log::LogSettings;
use crate::policy_file::{LimitCheck, PolicyFile, PolicyFileError, any_limit};
use crate::tls::{Tls, TlsError, TlsFiles};
use crate::watch::Redact;
use crate::watch::traces::{CollectorUrlError, TraceSettings};

/// All that `serve` needs to know.
pub struct Settings {
    pub http: SocketAddr,
    pub grpc: Option<SocketAddr>,
    pub trusted_proxies: TrustedProxies,
    pub repeated_headers: RepeatedHeaders,
    pub admin: Option<SocketAddr>,
    /// How clients are spoken to, if by TLS.
    pub tls: Option<Arc<Tls>>,
    pub headers: Style,
    pub retry_jitter: Jitter,
    /// As it was when the server started.
    pub policy_file: PolicyFile,
    pub service: ServiceSettings,
    pub clients: ClientBounds,
    pub shutdown_grace: Duration,
    pub log: LogSettings,
}

/// What decides, and who watches.
pub struct ServiceSettings {
    pub policy: Policy,
    /// Whether every rule only watches.
    pub observe: bool,
    pub store: StoreChoice,
    pub expected_instances: NonZeroU32,
    pub bounds: StoreBounds,
    pub ready_needs_store: bool,
    /// Whether somebody can ask for what is gathered.
    pub gathers: bool,
    /// Denials that are logged in one second, at most.
    pub denials_per_second: u16,
    /// How values of clients are shown.
    pub redact: Redact,
    /// Where traces go, if there are any.
    pub traces: Option<TraceSettings>,
}

/// Bounds of the keys in the memory of this process.
#[derive(Debug, Clone, Copy)]
pub struct StoreBounds {
    /// Keys at once.
    pub max_keys: usize,
    /// Bytes that the keys take.
    pub max_memory: usize,
}

/// Where counts live.
#[derive(Debug)]
pub enum StoreChoice {
    Memory,
    Redis { address: Box<Address>, settings: slidegate_redis::Settings, clock: RedisClock },
    Cluster(Box<slidegate_cluster::Settings>),
}

/// Why the arguments mean nothing.
#[derive(Debug, Error)]
pub enum SettingsError {
    #[error(transparent)]
    Policy(#[from] PolicyFileError),
    #[error(
        "--store (SLIDEGATE_STORE) is neither `memory` nor `cluster://` nor an address of a Redis: {0}"
    )]
    Store(#[from] AddressError),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("--otlp-endpoint (SLIDEGATE_OTLP_ENDPOINT) is no address of a collector: {0}")]
    Otlp(#[from] CollectorUrlError),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// How much the clocks of instances may differ that tell Redis the time: so much longer than needed are keys
/// kept.
const CLOCKS_DIFFER: Duration = Duration::from_secs(10);

/// What clients may take of the server.
#[derive(Debug, Clone, Copy)]
pub struct ClientBounds {
    /// Connections at once.
    pub connections: NonZeroUsize,
    /// How long to wait for a client in each step of an exchange.
    pub client_timeout: Duration,
}

impl Settings {
    /// Reads what the arguments point to.
    pub fn read(args: ServeArgs) -> Result<Self, SettingsError> {
        let expected_instances = args.store.expected_instances;
        let bounds = StoreBounds { max_keys: args.max_keys.get(), max_memory: args.max_memory };
        let store = StoreChoice::read(args.store, args.cluster, bounds)?;
        let policy_file = PolicyFile::read(args.source.source(), store.supports())?;
        let (AddressOrNone(grpc), AddressOrNone(admin)) = (args.grpc, args.admin);
        Ok(Self {
            http: args.http,
            grpc,
            trusted_proxies: args.trusted_proxies,
            repeated_headers: args.repeated_headers,
            admin,
            tls: tls(args.tls)?,
            headers: args.headers,
            retry_jitter: args.retry_jitter,
            service: ServiceSettings {
                policy: policy_file.policy.clone(),
                observe: args.observe,
                store,
                expected_instances,
                bounds,
                ready_needs_store: args.ready_needs_store,
                gathers: admin.is_some(),
                denials_per_second: denials_per_second(&args.telling, args.log_level),
                redact: Redact::new(args.telling.redact_keys),
                traces: traces(&args.telling)?,
            },
            policy_file,
            clients: ClientBounds {
                connections: args.max_connections,
                client_timeout: Duration::from_secs(args.client_timeout),
            },
            shutdown_grace: args.shutdown_grace,
            log: LogSettings { level: args.log_level, format: args.telling.log_format },
        })
    }
}

/// What is not logged is not counted either.
fn denials_per_second(args: &TellingArgs, level: LevelFilter) -> u16 {
    if level >= LevelFilter::INFO { args.log_denials } else { 0 }
}

fn traces(args: &TellingArgs) -> Result<Option<TraceSettings>, CollectorUrlError> {
    let collector = args.otlp_endpoint.as_deref().filter(|url| !url.is_empty()).map(str::parse);
    let (sample, trust_forwarded) = (args.trace_sample.0, args.trust_traceparent);
    Ok(collector.transpose()?.map(|collector| TraceSettings { collector, sample, trust_forwarded }))
}

fn tls(args: TlsArgs) -> Result<Option<Arc<Tls>>, TlsError> {
    let (Some(cert), Some(key)) = (args.tls_cert, args.tls_key) else { return Ok(None) };
    Tls::load(TlsFiles { cert, key, client_ca: args.tls_client_ca }).map(Some)
}

impl StoreChoice {
    fn read(
        args: StoreArgs,
        cluster: ClusterArgs,
        bounds: StoreBounds,
    ) -> Result<Self, SettingsError> {
        if args.store.0 == "memory" {
            return Ok(Self::Memory);
        }
        if let Some(settings) = cluster::read(&args.store.0, cluster, bounds) {
            return Ok(Self::Cluster(Box::new(settings?)));
        }
        let settings = slidegate_redis::Settings {
            prefix: args.redis_prefix,
            timeout: args.redis_timeout,
            ca_file: args.redis_ca_file,
            deny_cache_ttl: args.deny_cache_ttl,
            ..slidegate_redis::Settings::default()
        };
        let settings = match args.redis_clock {
            RedisClock::Server => settings,
            RedisClock::Client => {
                slidegate_redis::Settings { expiry_margin: CLOCKS_DIFFER, ..settings }
            }
        };
        let address = Box::new(args.store.0.parse()?);
        Ok(Self::Redis { address, settings, clock: args.redis_clock })
    }

    /// The limits that it can count by.
    fn supports(&self) -> LimitCheck {
        match self {
            Self::Memory | Self::Redis { .. } => any_limit,
            Self::Cluster(_) => slidegate_cluster::supports,
        }
    }
}

/// As one may show it: without a password.
impl fmt::Display for StoreChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Redis { address, .. } => address.fmt(f),
            Self::Cluster(_) => f.write_str("cluster://"),
        }
    }
}
