//! The one place that picks a store.

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
use crate::health::Health;
use crate::service::Service;
use crate::settings::{ServiceSettings, StoreBounds, StoreChoice};
use crate::watch::metrics::{ClusterFigures, Shares, StoreFigures};
use crate::watch::traces::TracesError;
use crate::watch::{Denials, Metrics, Traces, Watch, Watched};

/// A node of a cluster.
pub type Node = ClusterStore<Arc<DriftCorrectedClock>>;

/// Where counts live.
pub enum Store {
    Memory(MemoryStore),
    Redis(Box<RedisStore>),
    Cluster(Box<Node>),
}

/// Why there is no service.
#[derive(Debug, Error)]
pub enum ServiceError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("{flag}{0}", flag = flag(.0))]
    Start(#[from] StartError),
    #[error(transparent)]
    Traces(#[from] TracesError),
}

/// Which flag says what a node cannot be.
fn flag(error: &StartError) -> &'static str {
    match error {
        StartError::Listen { .. } | StartError::NoKey(_) => {
            "--cluster-listen (SLIDEGATE_CLUSTER_LISTEN): "
        }
        StartError::Key(_) => "--cluster-key (SLIDEGATE_CLUSTER_KEY): ",
        StartError::Address(_) => "--cluster-advertise (SLIDEGATE_CLUSTER_ADVERTISE): ",
        StartError::Join(_) => "--store (SLIDEGATE_STORE): ",
    }
}

/// What decides by the policy and the store of the settings. Within a runtime: a store elsewhere connects in
/// the background.
pub async fn service(settings: ServiceSettings) -> Result<Service, ServiceError> {
    let bounds = settings.bounds;
    let store = Store::open(settings.store, bounds).await?;
    let metrics = settings.gathers.then(|| Metrics::new(store.kind()));
    let traces = settings.traces.map(Traces::start).transpose()?;
    let store_traces = traces.as_ref().map(|traces| traces.of_store(store.kind()));
    let store_metrics = metrics.as_ref().map(|metrics| metrics.store().clone());
    let store = Watched::new(store, store_metrics, store_traces);
    let policy = match settings.observe {
        true => settings.policy.observing(),
        false => settings.policy,
    };
    let gate = Gate::new(policy, store)
        .with_instances(settings.expected_instances)
        .with_local_max_keys(bounds.max_keys)
        .with_local_max_memory(bounds.max_memory);
    let health = Health::new(settings.ready_needs_store);
    let denials = Denials::new(settings.denials_per_second, settings.redact.clone());
    let watch = Watch::new().telling(denials, traces);
    let watch = match metrics {
        Some(metrics) => watch.gathering(metrics, settings.redact),
        None => watch,
    };
    Ok(Service::new(gate, watch, health, settings.observe))
}

impl Store {
    async fn open(choice: StoreChoice, bounds: StoreBounds) -> Result<Self, ServiceError> {
        let (address, settings, clock) = match choice {
            StoreChoice::Memory => {
                let store = MemoryStore::with_clock(SystemClock::new(), bounds.max_keys);
                return Ok(Self::Memory(store.with_max_memory(bounds.max_memory)));
            }
            StoreChoice::Cluster(settings) => {
                return Ok(Self::Cluster(Box::new(ClusterStore::start(*settings).await?)));
            }
            StoreChoice::Redis { address, settings, clock } => (address, settings, clock),
        };
        let store = address.open(settings)?;
        Ok(Self::Redis(Box::new(match clock {
            RedisClock::Server => store,
            // The clocks of several machines have to agree, and what keeps them together adjusts the wall
            // clock only.
            RedisClock::Client => store.with_clock(WallClock),
        })))
    }
}

impl Store {
    /// What kind of store it is, in metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Memory(_) => "memory",
            Self::Redis(_) => "redis",
            Self::Cluster(_) => "cluster",
        }
    }

    /// The node that this process is in a cluster.
    pub fn node(&self) -> Option<&Node> {
        match self {
            Self::Cluster(node) => Some(node),
            Self::Memory(_) | Self::Redis(_) => None,
        }
    }

    /// How its cluster stands.
    pub fn cluster_figures(&self) -> Option<ClusterFigures> {
        let node = self.node()?;
        let (counts, sum) = node.counters().overshoot().snapshot();
        let overshoot = Shares { counts, sum };
        let status = node.status()?;
        Some(ClusterFigures::of(&status, node.unsynced_denials(), overshoot))
    }

    /// Returns whether the store is available: false before the first connection, and while the circuit breaker refuses calls.
    pub fn answers(&self) -> bool {
        match self {
            Self::Memory(_) | Self::Cluster(_) => true,
            Self::Redis(store) => store.is_reachable(),
        }
    }

    /// How it stands.
    pub fn figures(&self) -> StoreFigures {
        match self {
            Self::Memory(store) => StoreFigures {
                keys: store.keys(),
                memory_bytes: store.memory_bytes(),
                evicted_keys: store.evicted_keys(),
                ..StoreFigures::default()
            },
            Self::Cluster(store) => StoreFigures {
                keys: store.counters().keys(),
                memory_bytes: store.counters().memory_bytes(),
                evicted_keys: store.counters().evicted_keys(),
                ..StoreFigures::default()
            },
            Self::Redis(store) => StoreFigures {
                is_breaker_open: store.is_breaker_open(),
                deny_cache_hits: store.deny_cache_hits(),
                ..StoreFigures::default()
            },
        }
    }
}

/// What asks Redis is in a box: it has much to remember, and would stand in the future of every decision, which is
/// moved several times, also where counts live in memory.
impl slidegate::Store for Store {
    type Kind = slidegate::Asynchronous;

    async fn take(&self, hits: &[Hit<'_>]) -> Result<ChargeResult, StoreError> {
        match self {
            Self::Memory(store) => store.take(hits).await,
            Self::Redis(store) => Box::pin(store.take(hits)).await,
            Self::Cluster(store) => store.take(hits).await,
        }
    }

    async fn take_many(&self, asks: &[&[Hit<'_>]]) -> Result<Vec<ChargeResult>, StoreError> {
        match self {
            Self::Memory(store) => store.take_many(asks).await,
            Self::Redis(store) => Box::pin(store.take_many(asks)).await,
            Self::Cluster(store) => store.take_many(asks).await,
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
