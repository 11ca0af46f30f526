//! The interpretation of the arguments of `slidegate serve` as settings.
//!
//! Reads the policy, key and certificate files, so that every error is reported before the server starts.

mod cluster;
mod secret;
mod warnings;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use slidegate::wait::WaitOptions;
use slidegate_redis::{AddressError, ClientCertificate};
use thiserror::Error;
use tracing::level_filters::LevelFilter;

use self::cluster::ClusterSettingsError;
use self::secret::{SecretError, SecretFlags, read_secret};
use self::warnings::find_warnings;
use crate::boot::listen::ListenAddress;
use crate::boot::settings::{RedisClock, ServiceSettings, Settings, StoreSettings};
use crate::bounds::StoreBounds;
use crate::cli::args::{
    AddressOrNone, ClusterArgs, ObservabilityArgs, ServeArgs, StoreArgs, TlsArgs,
};
use crate::policy::file::{PolicyFile, PolicyFileError};
use crate::telemetry::Redactor;
use crate::telemetry::log::LogSettings;
use crate::telemetry::trace_settings::{CollectorUrlError, TraceSettings};
use crate::tls::{Tls, TlsError, TlsFiles};

/// An error in the arguments, or in a file that an argument names.
#[derive(Debug, Error)]
pub enum SettingsError {
    #[error(transparent)]
    Policy(#[from] PolicyFileError),
    #[error(
        "--store (SLIDEGATE_STORE): this is not `memory`, `cluster://` or a Redis address: {0}"
    )]
    Store(#[from] AddressError),
    #[error(transparent)]
    TokenKey(#[from] SecretError),
    #[error(transparent)]
    Cluster(#[from] ClusterSettingsError),
    #[error("--otlp-endpoint (SLIDEGATE_OTLP_ENDPOINT): this is not the URL of a collector: {0}")]
    Otlp(#[from] CollectorUrlError),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

const TOKEN_KEY_FLAGS: SecretFlags = SecretFlags {
    text: "--token-key (SLIDEGATE_TOKEN_KEY)",
    file: "--token-key-file (SLIDEGATE_TOKEN_KEY_FILE)",
};

/// The flag of the private key for Redis, with its environment variable.
const REDIS_KEY_FLAG: &str = "--redis-key-file (SLIDEGATE_REDIS_KEY_FILE)";

/// The maximum difference between the clocks of instances that use `--redis-clock client`. Keys in Redis are kept
/// longer by this duration.
const MAX_INSTANCE_CLOCK_SKEW: Duration = Duration::from_secs(10);

/// Interprets the arguments, and reads the files that the arguments name.
pub fn from_args(args: ServeArgs) -> Result<Settings, SettingsError> {
    let expected_instances = args.store.expected_instances;
    let ready_needs_store = args.store.ready_needs_store;
    let store_bounds = StoreBounds {
        max_keys: args.store.max_keys.get(),
        max_memory: args.store.max_memory,
        max_call_records: args.store.max_call_records.get(),
    };
    let warnings = find_warnings(&args);
    let token_key = args.store.token_key.as_ref().map(|key| key.0.clone());
    let token_key = read_secret(token_key, args.store.token_key_file.as_deref(), TOKEN_KEY_FLAGS)?;
    let store = store_settings(args.store, args.cluster, store_bounds)?;
    let policy_file =
        PolicyFile::read(args.policy_source.into_source(), store.limit_support_check())?;
    let (AddressOrNone(grpc), AddressOrNone(admin)) = (args.grpc, args.admin);
    let has_admin_listener = admin.is_some();
    let own_name = match &admin {
        Some(ListenAddress::Host { name, .. }) => Some(name.clone()),
        Some(ListenAddress::Ip(_)) | None => None,
    };
    Ok(Settings {
        http: args.http,
        grpc,
        trusted_proxies: args.trusted_proxies,
        repeated_headers: args.repeated_headers,
        admin,
        admin_hosts: args.admin_host.into_iter().chain(own_name).collect(),
        tls: load_tls_files(args.tls)?,
        headers: args.headers,
        retry_jitter: args.retry_jitter,
        service: ServiceSettings {
            policy: policy_file.policy.clone(),
            is_observe_only: args.observe,
            rejects_unused_names: args.strict,
            store,
            expected_instances,
            store_bounds,
            max_buffered: args.connections.max_buffered,
            token_key,
            warnings,
            ready_needs_store,
            wait_options: WaitOptions {
                max_waiting: args.waiting.max_waiting,
                max_waiting_per_key: args.waiting.max_waiting_per_key,
                max_waiting_bytes: store_bounds.max_waiting_bytes(),
                max_wait: args.waiting.max_wait,
                ..WaitOptions::default()
            },
            has_admin_listener,
            max_denial_logs_per_second: max_denial_logs_per_second(&args.observability),
            redact: Redactor::new(args.observability.redact_keys),
            traces: build_trace_settings(&args.observability)?,
        },
        policy_file,
        clients: args.connections.bounds(),
        is_max_connections_given: args.connections.is_max_connections_given,
        shutdown_grace: args.shutdown_grace,
        log: LogSettings {
            level: args.observability.log_level,
            format: args.observability.log_format,
        },
    })
}

/// Returns the maximum number of denials in the log per second and rule. Returns 0 if the log level excludes denials.
/// The log then does not report a number of omitted denials either.
fn max_denial_logs_per_second(args: &ObservabilityArgs) -> u16 {
    if args.log_level >= LevelFilter::INFO { args.log_denials } else { 0 }
}

fn build_trace_settings(
    args: &ObservabilityArgs,
) -> Result<Option<TraceSettings>, CollectorUrlError> {
    let collector = args.otlp_endpoint.as_deref().filter(|url| !url.is_empty()).map(str::parse);
    let (sample, trust_forwarded) = (args.trace_sample.0, args.trust_traceparent);
    Ok(collector.transpose()?.map(|collector| TraceSettings { collector, sample, trust_forwarded }))
}

fn load_tls_files(args: TlsArgs) -> Result<Option<Arc<Tls>>, TlsError> {
    let (Some(cert), Some(key)) = (args.tls_cert, args.tls_key) else { return Ok(None) };
    let files = TlsFiles::for_listeners(cert, key, args.tls_client_ca);
    Tls::load(files, args.tls_listeners).map(Some)
}

/// Returns the certificate of the server for Redis. The parser of arguments requires both files or none.
fn client_certificate(
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
) -> Option<ClientCertificate> {
    Some(ClientCertificate { cert_file: cert_file?, key_file: key_file? })
}

fn store_settings(
    args: StoreArgs,
    cluster: ClusterArgs,
    bounds: StoreBounds,
) -> Result<StoreSettings, SettingsError> {
    if args.store.0 == "memory" {
        return Ok(StoreSettings::Memory);
    }
    if let Some(settings) = cluster::from_args(&args.store.0, cluster, bounds) {
        return Ok(StoreSettings::Cluster(Box::new(settings?)));
    }
    let settings = slidegate_redis::RedisSettings {
        prefix: args.redis_prefix,
        timeout: args.redis_timeout,
        ca_file: args.redis_ca_file,
        client_certificate: client_certificate(args.redis_cert_file, args.redis_key_file),
        deny_cache_ttl: args.deny_cache_ttl,
        // The store itself does not log keys with values of other programs: the log of failed calls has these keys,
        // redacted as configured.
        logs_foreign_values: false,
        ..slidegate_redis::RedisSettings::default()
    };
    let settings = match args.redis_clock {
        RedisClock::Server => settings,
        RedisClock::Client => {
            slidegate_redis::RedisSettings { expiry_margin: MAX_INSTANCE_CLOCK_SKEW, ..settings }
        }
    };
    let address = Box::new(args.store.0.parse()?);
    Ok(StoreSettings::Redis { address, settings, clock: args.redis_clock })
}
