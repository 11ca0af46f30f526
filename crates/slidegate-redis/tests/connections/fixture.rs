//! A store with one counter, and the number of repetitions of an interruption.

use std::time::Duration;

use slidegate::store::{ChargeResult, Hit, Key, Scope, Value};
use slidegate::{Algorithm, Limit, Store, StoreError};
use slidegate_redis::{RedisSettings, RedisStore};

const MAX: u64 = 1_000_000;

/// A store with one counter.
pub struct Counter {
    pub store: RedisStore,
    scope: Scope,
    limit: Limit,
}

impl Counter {
    pub fn open(address: &str, timeout: Duration) -> Self {
        let settings = RedisSettings { timeout, ..RedisSettings::default() };
        Self::with_store(RedisStore::open(address, settings).unwrap())
    }

    pub fn with_store(store: RedisStore) -> Self {
        let scope = Scope::new("connections", "rule", "limit", &["client"]);
        let limit = Limit::new(format!("{MAX}/d").parse().unwrap(), Algorithm::SlidingLog).unwrap();
        Self { store, scope, limit }
    }

    pub fn hit(&self) -> Hit<'_> {
        Hit::new(Key::new(&self.scope, &[Value::Text("ann")]), &self.limit, 1)
    }

    pub async fn charge(&self) -> Result<ChargeResult, StoreError> {
        self.store.charge_async(&[self.hit()]).await
    }

    /// Returns the number of units that are charged.
    pub async fn used(&self) -> u64 {
        MAX - self.store.peek_async(&[self.hit()]).await.unwrap()[0].remaining()
    }
}

/// Returns the number of repetitions: `REPETITIONS` if it is set, otherwise `default`.
pub fn repetitions(default: u64) -> u64 {
    std::env::var("REPETITIONS").map_or(default, |number| number.parse().unwrap())
}
