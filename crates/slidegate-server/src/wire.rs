//! The one place that picks a store.

use slidegate::store::Outcomes;
use slidegate::{Gate, Hit, MemoryStore, Receipt, StoreError, SystemClock, Taken, WallClock};
use slidegate_redis::{ConnectError, RedisStore};

use crate::args::RedisClock;
use crate::settings::{Settings, StoreChoice};

/// Where counts live.
pub enum Store {
    Memory(MemoryStore),
    Redis(Box<RedisStore>),
}

/// A gate that enforces the policy by the store of the settings. Within a runtime: a store elsewhere
/// connects in the background.
pub fn gate(settings: Settings) -> Result<Gate<Store>, ConnectError> {
    let max_keys = settings.max_keys.get();
    let store = Store::open(settings.store, max_keys)?;
    Ok(Gate::new(settings.policy, store)
        .expecting_instances(settings.expected_instances)
        .with_local_max_keys(max_keys))
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

impl slidegate::Store for Store {
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

    async fn reset(&self, hits: &[Hit<'_>]) -> Result<(), StoreError> {
        match self {
            Self::Memory(store) => store.reset(hits).await,
            Self::Redis(store) => store.reset(hits).await,
        }
    }
}
