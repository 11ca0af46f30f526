//! The one place that picks a store.

use slidegate::store::Outcomes;
use slidegate::{Gate, Hit, MemoryStore, Receipt, StoreError, SystemClock, Taken, WallClock};
use slidegate_redis::{ConnectError, RedisStore};
use thiserror::Error;

use crate::args::RedisClock;
use crate::health::Health;
use crate::service::Service;
use crate::settings::{ServiceSettings, StoreChoice};
use crate::watch::metrics::StoreFigures;
use crate::watch::traces::TracesError;
use crate::watch::{Denials, Metrics, Traces, Watch, Watched};

/// Where counts live.
pub enum Store {
    Memory(MemoryStore),
    Redis(Box<RedisStore>),
}

/// Why there is no service.
#[derive(Debug, Error)]
pub enum ServiceError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Traces(#[from] TracesError),
}

/// What decides by the policy and the store of the settings. Within a runtime: a store elsewhere connects in
/// the background.
pub fn service(settings: ServiceSettings) -> Result<Service, ServiceError> {
    let max_keys = settings.max_keys.get();
    let store = Store::open(settings.store, max_keys)?;
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
        .expecting_instances(settings.expected_instances)
        .with_local_max_keys(max_keys);
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
    fn open(choice: StoreChoice, max_keys: usize) -> Result<Self, ConnectError> {
        let (address, settings, clock) = match choice {
            StoreChoice::Memory => {
                return Ok(Self::Memory(MemoryStore::with(SystemClock::new(), max_keys)));
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
        }
    }

    /// How it stands.
    pub fn figures(&self) -> StoreFigures {
        match self {
            Self::Memory(store) => StoreFigures {
                keys: store.keys(),
                evicted_keys: store.evicted_keys(),
                ..StoreFigures::default()
            },
            Self::Redis(store) => StoreFigures {
                is_open: store.is_open(),
                deny_cache_hits: store.deny_cache_hits(),
                ..StoreFigures::default()
            },
        }
    }
}

impl slidegate::Store for Store {
    type Pace = slidegate::Awaited;

    async fn take(&self, hits: &[Hit<'_>]) -> Result<Taken, StoreError> {
        match self {
            Self::Memory(store) => store.take(hits).await,
            Self::Redis(store) => store.take(hits).await,
        }
    }

    async fn take_many(&self, asks: &[&[Hit<'_>]]) -> Result<Vec<Taken>, StoreError> {
        match self {
            Self::Memory(store) => store.take_many(asks).await,
            Self::Redis(store) => store.take_many(asks).await,
        }
    }

    async fn peek(&self, hits: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        match self {
            Self::Memory(store) => store.peek(hits).await,
            Self::Redis(store) => store.peek(hits).await,
        }
    }

    async fn give_back(&self, receipt: &Receipt) -> Result<(), StoreError> {
        match self {
            Self::Memory(store) => store.give_back(receipt).await,
            Self::Redis(store) => store.give_back(receipt).await,
        }
    }

    async fn refund(&self, hits: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        match self {
            Self::Memory(store) => store.refund(hits).await,
            Self::Redis(store) => store.refund(hits).await,
        }
    }

    async fn reset(&self, hits: &[Hit<'_>]) -> Result<(), StoreError> {
        match self {
            Self::Memory(store) => store.reset(hits).await,
            Self::Redis(store) => store.reset(hits).await,
        }
    }
}
