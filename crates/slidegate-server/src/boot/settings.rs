//! The settings from which [`serve_until_signal`](crate::boot::serve_until_signal) starts the server. The module
//! `cli::settings` reads them from the arguments.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use slidegate::headers::Style;
use slidegate::wait::WaitOptions;
use slidegate::{Jitter, Policy};
use slidegate_cluster::Credentials;
use slidegate_redis::Address;
use slidegate_tower::TrustedProxies;

use crate::boot::listen::{GrpcAddress, ListenAddress};
use crate::bounds::{ClientBounds, StoreBounds};
use crate::policy::file::PolicyFile;
use crate::policy::{LimitSupportCheck, accept_any_limit};
use crate::telemetry::Redactor;
use crate::telemetry::log::LogSettings;
use crate::telemetry::trace_settings::TraceSettings;
use crate::tls::{ClusterTls, Tls};
use crate::wire::http::RepeatedHeaders;

/// The settings of `slidegate serve`.
pub struct Settings {
    pub http: ListenAddress,
    pub grpc: Option<GrpcAddress>,
    pub trusted_proxies: TrustedProxies,
    pub repeated_headers: RepeatedHeaders,
    pub admin: Option<ListenAddress>,
    /// The host names that requests to the admin listener may have, in addition to IP addresses and `localhost`.
    pub admin_hosts: Vec<String>,
    /// The TLS settings of the client listeners, or `None` for plain TCP.
    pub tls: Option<Arc<Tls>>,
    pub headers: Style,
    pub retry_jitter: Jitter,
    /// The policy that is active when the server starts.
    pub policy_file: PolicyFile,
    pub service: ServiceSettings,
    pub clients: ClientBounds,
    /// Whether the command line or the environment sets the maximum number of connections.
    pub is_max_connections_given: bool,
    pub shutdown_grace: Duration,
    pub log: LogSettings,
}

/// The settings of the service: decisions, readiness and observability.
pub struct ServiceSettings {
    pub policy: Policy,
    /// Whether every rule only observes, because of `--observe`.
    pub is_observe_only: bool,
    /// Whether a request is rejected if no rule applies to it and no rule uses its attributes, because of `--strict`.
    pub rejects_unused_names: bool,
    pub store: StoreSettings,
    pub expected_instances: NonZeroU32,
    pub store_bounds: StoreBounds,
    /// Maximum memory of request bodies in bytes.
    pub max_buffered: usize,
    /// The key with which reservations are encrypted, or `None` to draw a random key.
    pub token_key: Option<String>,
    /// Warnings about the arguments and the environment.
    pub warnings: Vec<String>,
    pub ready_needs_store: bool,
    /// The options of calls that wait.
    pub wait_options: WaitOptions,
    /// Whether there is an admin listener. Without an admin listener, no metrics and no top keys are collected.
    pub has_admin_listener: bool,
    /// Maximum number of denials in the log per second and rule; 0 logs none.
    pub max_denial_logs_per_second: u16,
    /// The redactor of the log and the top keys. It decides which key values are shown as hashes.
    pub redact: Redactor,
    /// The settings of tracing, or `None` to trace nothing.
    pub traces: Option<TraceSettings>,
}

/// The store to open, with its settings.
#[derive(Debug)]
pub enum StoreSettings {
    /// The memory of this process.
    Memory,
    /// A Redis that all instances share.
    Redis { address: Box<Address>, settings: slidegate_redis::RedisSettings, clock: RedisClock },
    /// The replicated memory of a cluster. This process is one of its nodes.
    Cluster(Box<NodeSettings>),
}

/// The settings of a cluster node.
#[derive(Debug)]
pub struct NodeSettings {
    pub node: slidegate_cluster::ClusterSettings,
    /// The certificates of the node, which are reloaded when their files change. `None` without certificates.
    pub tls: Option<ClusterTls>,
}

impl NodeSettings {
    /// Returns the secret that all nodes share: the separate secret of the cluster, or else its first key. `None`
    /// without both.
    pub fn secret(&self) -> Option<&str> {
        let key = match &self.node.credentials {
            Some(Credentials::Keys(keys)) => keys.first(),
            Some(Credentials::Certificates(_)) | None => None,
        };
        self.node.secret.as_ref().or(key).map(String::as_str)
    }
}

/// The clock that counters in Redis use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RedisClock {
    /// The clock of Redis.
    Server,
    /// The clock of this machine.
    Client,
}

impl StoreSettings {
    /// Returns the kind of the store, as metrics and responses name it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis { .. } => "redis",
            Self::Cluster(_) => "cluster",
        }
    }

    /// Returns the prefix of the keys in the store, which is empty if the store is in this process.
    pub fn key_prefix(&self) -> &str {
        match self {
            Self::Redis { settings, .. } => &settings.prefix,
            Self::Memory | Self::Cluster(_) => "",
        }
    }

    /// Returns the certificates of a cluster node; `None` if the store is not a cluster, or has no certificates.
    pub fn cluster_tls(&self) -> Option<&ClusterTls> {
        match self {
            Self::Cluster(settings) => settings.tls.as_ref(),
            Self::Memory | Self::Redis { .. } => None,
        }
    }

    /// Returns a function that checks whether the store supports a limit.
    pub fn limit_support_check(&self) -> LimitSupportCheck {
        match self {
            Self::Memory | Self::Redis { .. } => accept_any_limit,
            Self::Cluster(_) => slidegate_cluster::supports,
        }
    }
}

/// Formats the store for logs, without a password.
impl fmt::Display for StoreSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Redis { address, .. } => address.fmt(f),
            Self::Cluster(_) => f.write_str("cluster://"),
        }
    }
}
