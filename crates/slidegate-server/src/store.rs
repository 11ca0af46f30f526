//! The store of the server, and the service on top of it.
//!
//! Only this module selects the kind of store. `ServerStore` is an enum instead of a trait object, so that no call is
//! dynamically dispatched.

use std::sync::Arc;

use slidegate::store::Outcomes;
use slidegate::{
    ChargeResult, DriftCorrectedClock, Gate, Hit, MemoryStore, Receipt, StoreError, SystemClock,
    WallClock,
};
use slidegate_cluster::{ClusterStore, StartError};
use slidegate_redis::{ConnectError, RedisStore};
use thiserror::Error;

use crate::args::RedisClock;
use crate::bounds::StoreBounds;
use crate::health::Health;
use crate::service::Service;
use crate::settings::{ServiceSettings, StoreSettings};
use crate::telemetry::metrics::{ClusterStats, OvershootBuckets, StoreStats};
use crate::telemetry::traces::TracerError;
use crate::telemetry::{DecisionTracer, DenialLog, InstrumentedStore, Metrics, Telemetry};

/// A node of a cluster.
pub type ClusterNode = ClusterStore<Arc<DriftCorrectedClock>>;

/// The store that holds the counters.
pub enum ServerStore {
    /// The memory of this process.
    Memory(MemoryStore),
    /// A Redis that all instances share.
    Redis(Box<RedisStore>),
    /// A node of a cluster.
    Cluster(Box<ClusterNode>),
}

/// The reason why the service cannot start.
#[derive(Debug, Error)]
pub enum ServiceError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("{flag}{0}", flag = flag_that_caused_error(.0))]
    StartNode(#[from] StartError),
    #[error(transparent)]
    Tracer(#[from] TracerError),
}

/// Returns the flag that caused the error, as the prefix of the error message.
fn flag_that_caused_error(error: &StartError) -> &'static str {
    match error {
        StartError::Listen { .. } | StartError::NoKey(_) => {
            "--cluster-listen (SLIDEGATE_CLUSTER_LISTEN): "
        }
        StartError::Key(_) => "--cluster-key (SLIDEGATE_CLUSTER_KEY): ",
        StartError::Address(_) => "--cluster-advertise (SLIDEGATE_CLUSTER_ADVERTISE): ",
        StartError::Join(_) => "--store (SLIDEGATE_STORE): ",
    }
}

/// Opens the store and creates the service on top of it. Must be called in a Tokio runtime, in which Redis and cluster
/// stores connect in the background.
pub async fn start_service(settings: ServiceSettings) -> Result<Service, ServiceError> {
    let bounds = settings.bounds;
    let store = ServerStore::open_store(settings.store, bounds).await?;
    let metrics = settings.has_admin_listener.then(|| Metrics::new(store.kind()));
    let traces = settings.traces.map(DecisionTracer::start).transpose()?;
    let store_traces = traces.as_ref().map(|traces| traces.store_tracer(store.kind()));
    let store_metrics = metrics.as_ref().map(|metrics| metrics.store().clone());
    let store = InstrumentedStore::new(store, store_metrics, store_traces);
    let policy = match settings.is_observe_only {
        true => settings.policy.observing(),
        false => settings.policy,
    };
    let gate = Gate::new(policy, store)
        .with_instances(settings.expected_instances)
        .with_local_max_keys(bounds.max_keys)
        .with_local_max_memory(bounds.max_memory);
    let health = Health::new(settings.ready_needs_store);
    let denials = DenialLog::new(settings.max_denial_logs_per_second, settings.redact.clone());
    let telemetry = Telemetry::new().with_denial_log_and_traces(denials, traces);
    let telemetry = match metrics {
        Some(metrics) => telemetry.with_metrics(metrics, settings.redact),
        None => telemetry,
    };
    Ok(Service::new(gate, telemetry, health, settings.is_observe_only))
}

impl ServerStore {
    async fn open_store(
        settings: StoreSettings,
        bounds: StoreBounds,
    ) -> Result<Self, ServiceError> {
        let (address, settings, clock) = match settings {
            StoreSettings::Memory => {
                let store = MemoryStore::with_clock(SystemClock::new(), bounds.max_keys);
                return Ok(Self::Memory(store.with_max_memory(bounds.max_memory)));
            }
            StoreSettings::Cluster(settings) => {
                return Ok(Self::Cluster(Box::new(ClusterStore::start(*settings).await?)));
            }
            StoreSettings::Redis { address, settings, clock } => (address, settings, clock),
        };
        let store = address.open(settings)?;
        Ok(Self::Redis(Box::new(match clock {
            RedisClock::Server => store,
            // The clocks of several machines must agree. Time synchronization adjusts only the wall clock.
            RedisClock::Client => store.with_clock(WallClock),
        })))
    }
}

impl ServerStore {
    /// Returns the kind of the store, as metrics and responses name it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Memory(_) => "memory",
            Self::Redis(_) => "redis",
            Self::Cluster(_) => "cluster",
        }
    }

    /// Returns the cluster node, or `None` if the store is not a cluster node.
    pub fn cluster_node(&self) -> Option<&ClusterNode> {
        match self {
            Self::Cluster(node) => Some(node),
            Self::Memory(_) | Self::Redis(_) => None,
        }
    }

    /// Returns the state of the cluster for metrics, or `None` if the store is not a cluster node or has no status.
    pub fn cluster_stats(&self) -> Option<ClusterStats> {
        let node = self.cluster_node()?;
        let (counts, sum) = node.counters().overshoot().snapshot();
        let overshoot = OvershootBuckets { counts, sum };
        let status = node.status()?;
        Some(ClusterStats::from_status(&status, node.unsynced_denials(), overshoot))
    }

    /// Returns `true` if the store is available. Redis is unavailable before the first connection and while its circuit
    /// breaker rejects calls.
    pub fn is_available(&self) -> bool {
        match self {
            Self::Memory(_) | Self::Cluster(_) => true,
            Self::Redis(store) => store.is_reachable(),
        }
    }

    /// Returns the statistics of the store for metrics, such as the number of keys.
    pub fn stats(&self) -> StoreStats {
        match self {
            Self::Memory(store) => StoreStats {
                keys: store.keys(),
                memory_bytes: store.memory_bytes(),
                evicted_keys: store.evicted_keys(),
                ..StoreStats::default()
            },
            Self::Cluster(store) => StoreStats {
                keys: store.counters().keys(),
                memory_bytes: store.counters().memory_bytes(),
                evicted_keys: store.counters().evicted_keys(),
                ..StoreStats::default()
            },
            Self::Redis(store) => StoreStats {
                is_breaker_open: store.is_breaker_open(),
                deny_cache_hits: store.deny_cache_hits(),
                ..StoreStats::default()
            },
        }
    }
}

/// Calls to Redis are boxed, because their futures are large. Without the box, they would enlarge the future of every
/// decision, even with another store, and that future is moved several times.
impl slidegate::Store for ServerStore {
    type Kind = slidegate::Asynchronous;

    async fn take(&self, hits: &[Hit<'_>]) -> Result<ChargeResult, StoreError> {
        match self {
            Self::Memory(store) => store.take(hits).await,
            Self::Redis(store) => Box::pin(store.take(hits)).await,
            Self::Cluster(store) => store.take(hits).await,
        }
    }

    async fn take_many(&self, batches: &[&[Hit<'_>]]) -> Result<Vec<ChargeResult>, StoreError> {
        match self {
            Self::Memory(store) => store.take_many(batches).await,
            Self::Redis(store) => Box::pin(store.take_many(batches)).await,
            Self::Cluster(store) => store.take_many(batches).await,
        }
    }

    async fn peek(&self, hits: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        match self {
            Self::Memory(store) => store.peek(hits).await,
            Self::Redis(store) => Box::pin(store.peek(hits)).await,
            Self::Cluster(store) => store.peek(hits).await,
        }
    }

    async fn revert(&self, receipt: &Receipt) -> Result<(), StoreError> {
        match self {
            Self::Memory(store) => store.revert(receipt).await,
            Self::Redis(store) => Box::pin(store.revert(receipt)).await,
            Self::Cluster(store) => store.revert(receipt).await,
        }
    }

    async fn refund(&self, hits: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        match self {
            Self::Memory(store) => store.refund(hits).await,
            Self::Redis(store) => Box::pin(store.refund(hits)).await,
            Self::Cluster(store) => store.refund(hits).await,
        }
    }

    async fn reset(&self, hits: &[Hit<'_>]) -> Result<(), StoreError> {
        match self {
            Self::Memory(store) => store.reset(hits).await,
            Self::Redis(store) => Box::pin(store.reset(hits)).await,
            Self::Cluster(store) => store.reset(hits).await,
        }
    }
}
