//! Requests with one hit for each algorithm, and the identities and settlements of their calls.

use std::time::Duration;

use slidegate::store::{
    Adjustment, CallId, CallIdentity, CallSettlement, ChargeOnceResult, ChargeResult, Hit, Key,
    Receipt, Scope, Value,
};
use slidegate::{Algorithm, Limit, Store};
use slidegate_redis::{RedisSettings, RedisStore};

use crate::server::LONG;

pub const TTL: Duration = Duration::from_secs(600);

pub fn settings() -> RedisSettings {
    RedisSettings { timeout: LONG, ..RedisSettings::default() }
}

pub fn identity(call: u8) -> CallIdentity {
    CallIdentity { id: CallId::from_bytes([call; 16]), request_digest: 7, ttl: TTL }
}

fn limits() -> Vec<Limit> {
    let algorithms = Algorithm::ALL.into_iter();
    algorithms
        .map(|algorithm| Limit::new("1000/30d".parse().unwrap(), algorithm).unwrap())
        .collect()
}

/// A request with one hit for each algorithm, of clients whose keys are in several slots of a Cluster if `clients` is
/// more than 1.
pub struct TestRequest {
    scopes: Vec<Scope>,
    limits: Vec<Limit>,
    values: Vec<[Value<'static>; 1]>,
}

impl TestRequest {
    pub fn new(clients: usize) -> Self {
        let limits = limits();
        let names = ["ann", "bob", "cyd"];
        let scope = |nth: usize| Scope::new("d", "r", &format!("l{nth}"), &["client"]);
        Self {
            scopes: (0..limits.len()).map(scope).collect(),
            values: (0..limits.len()).map(|nth| [names[nth % clients].into()]).collect(),
            limits,
        }
    }

    /// Returns the request of another client, with counters of its own.
    pub fn of_client(self, client: &'static str) -> Self {
        Self { values: self.values.iter().map(|_| [client.into()]).collect(), ..self }
    }

    pub fn hits(&self, cost: u64) -> Vec<Hit<'_>> {
        let parts = self.scopes.iter().zip(&self.limits).zip(&self.values);
        parts.map(|((scope, limit), value)| Hit::new(Key::new(scope, value), limit, cost)).collect()
    }

    /// Returns the number of units that are charged to each limit.
    pub async fn used(&self, store: &RedisStore) -> Vec<u64> {
        let outcomes = store.peek_async(&self.hits(1)).await.unwrap();
        outcomes.iter().map(|outcome| 1_000 - outcome.remaining()).collect()
    }
}

pub fn settlement(call: u8, receipt: &Receipt, cost: u64) -> CallSettlement {
    let adjustment = Adjustment::SetCost(cost);
    CallSettlement {
        id: CallId::from_bytes([call; 16]),
        owner: receipt.charges().first().map(|charge| charge.counter.clone()),
        value_digest: cost,
        ttl: TTL,
        reverted: receipt.charges_to_revert(adjustment).collect(),
        added: receipt.additional_charges(adjustment).collect(),
    }
}

pub fn decided(result: ChargeOnceResult) -> ChargeResult {
    match result {
        ChargeOnceResult::Decided(result) => result,
        other => panic!("{other:?} is not decided now"),
    }
}
