//! Opens the store, and starts the service on top of it.

use slidegate::clock::{SystemClock, WallClock};
use slidegate::store::LocalCountsOptions;
use slidegate::{Gate, MemoryStore};
use slidegate_cluster::{ClusterStore, StartError};
use slidegate_redis::ConnectError;
use thiserror::Error;
use tracing::warn;

use super::settings::{RedisClock, ServiceSettings, StoreSettings};
use crate::bounds::StoreBounds;
use crate::connections::bodies::BodyBudget;
use crate::decide::health::Health;
use crate::decide::names::RequestNameChecks;
use crate::decide::store::ServerStore;
use crate::decide::{Service, ServiceOptions};
use crate::reservations::token::{TokenSealer, derive_cluster_token_key};
use crate::telemetry::log::LogQueue;
use crate::telemetry::traces::TracerError;
use crate::telemetry::{DecisionTracer, DenialLog, Metrics, StoreRecorder, Telemetry};

/// The reason why the service cannot start.
#[derive(Debug, Error)]
pub enum ServiceError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("{flag}{0}", flag = flag_that_caused_error(.0))]
    StartNode(#[from] StartError),
    #[error("the operating system provides no random numbers")]
    NoRandomNumbers,
    #[error(transparent)]
    Tracer(#[from] TracerError),
}

/// Returns the flag that caused the error, as the prefix of the error message.
fn flag_that_caused_error(error: &StartError) -> &'static str {
    match error {
        StartError::Listen { .. } | StartError::NoCredentials(_) => {
            "--cluster-listen (SLIDEGATE_CLUSTER_LISTEN): "
        }
        StartError::Credentials(_) => "--cluster-key (SLIDEGATE_CLUSTER_KEY): ",
        StartError::NoSecret => "--cluster-secret-file (SLIDEGATE_CLUSTER_SECRET_FILE): ",
        StartError::Address(_) => "--cluster-advertise (SLIDEGATE_CLUSTER_ADVERTISE): ",
        StartError::Name(_) => "--cluster-node-name (SLIDEGATE_CLUSTER_NODE_NAME): ",
    }
}

/// Opens the store and creates the service on top of it. Must be called in a Tokio runtime, in which Redis and cluster
/// stores connect in the background.
pub async fn start_service(
    settings: ServiceSettings,
    log: LogQueue,
) -> Result<Service, ServiceError> {
    for warning in &settings.warnings {
        warn!("{warning}");
    }
    let bounds = settings.store_bounds;
    let token_key = settings.token_key.map(String::into_bytes);
    let token_key = token_key.or_else(|| derive_token_key(&settings.store));
    let store_prefix = settings.store.key_prefix().to_owned();
    let kind = settings.store.kind();
    let metrics =
        settings.has_admin_listener.then(|| Metrics::new(kind, log, bounds.max_permit_bytes()));
    let traces = settings.traces.map(DecisionTracer::start).transpose()?;
    let store_traces = traces.as_ref().map(|traces| traces.store_tracer(kind));
    let store_metrics = metrics.as_ref().map(|metrics| metrics.store_metrics().clone());
    let recorder = StoreRecorder::new(store_metrics, store_traces, settings.redact.clone());
    let store = open_store(settings.store, bounds, recorder).await?;
    let policy =
        if settings.is_observe_only { settings.policy.observing() } else { settings.policy };
    let gate = Gate::new(policy, store)
        .with_local_counts(LocalCountsOptions {
            instances: settings.expected_instances,
            max_keys: bounds.max_keys,
            max_memory_bytes: bounds.max_store_bytes(),
            max_call_records: bounds.max_call_records,
            ..LocalCountsOptions::default()
        })
        .with_wait_options(settings.wait_options);
    let health = Health::new(settings.ready_needs_store);
    let denials = DenialLog::new(settings.max_denial_logs_per_second, settings.redact.clone());
    let name_checks =
        RequestNameChecks::new(settings.rejects_unused_names, settings.redact.clone());
    let telemetry = Telemetry::new(settings.redact.clone());
    let telemetry = telemetry.with_denial_log_and_traces(denials, traces);
    let telemetry = match metrics {
        Some(metrics) => telemetry.with_metrics(metrics, settings.redact),
        None => telemetry,
    };
    let is_shared_store = matches!(gate.store(), ServerStore::Redis(..));
    let has_other_instances = is_shared_store && settings.expected_instances.get() > 1;
    let tokens = TokenSealer::new(token_key.as_deref(), &store_prefix);
    let tokens = tokens.map_err(|_| ServiceError::NoRandomNumbers)?;
    let tokens =
        if has_other_instances && token_key.is_none() { tokens.with_key_warning() } else { tokens };
    let options = ServiceOptions {
        is_observe_only: settings.is_observe_only,
        bodies: BodyBudget::new(settings.max_buffered),
        shares_reservations: is_shared_store && token_key.is_some(),
    };
    Ok(Service::new(gate, telemetry, health, tokens, name_checks, options))
}

/// Derives the key of reservation and permit tokens from the secret of the cluster, for a node without a token key of
/// its own. Returns `None` if the store is not a cluster with a secret. With the same key, all nodes can distinguish
/// tokens of other nodes from invalid ones.
fn derive_token_key(store: &StoreSettings) -> Option<Vec<u8>> {
    match store {
        StoreSettings::Cluster(settings) => settings.secret().map(derive_cluster_token_key),
        StoreSettings::Memory | StoreSettings::Redis { .. } => None,
    }
}

async fn open_store(
    settings: StoreSettings,
    bounds: StoreBounds,
    recorder: StoreRecorder,
) -> Result<ServerStore, ServiceError> {
    let (address, settings, clock) = match settings {
        StoreSettings::Memory => {
            let store = MemoryStore::with_clock(SystemClock::new(), bounds.max_keys);
            let store = store.with_max_memory(bounds.max_store_bytes());
            let store = store.with_max_call_records(bounds.max_call_records);
            return Ok(ServerStore::Memory(store, recorder));
        }
        StoreSettings::Cluster(settings) => {
            let node = ClusterStore::start(settings.node).await?;
            let node = node.with_max_call_records(bounds.max_call_records);
            return Ok(ServerStore::Cluster(Box::new(node), recorder));
        }
        StoreSettings::Redis { address, settings, clock } => (address, settings, clock),
    };
    let store = address.open(settings)?;
    let store = match clock {
        RedisClock::Server => store,
        // The store uses the wall clock, because the clocks of all instances must agree, and time synchronization
        // adjusts only the wall clock.
        RedisClock::Client => store.with_clock(WallClock),
    };
    Ok(ServerStore::Redis(Box::new(store), recorder))
}
