//! Tests that a Redis store has the properties that testkit defines for every store.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use slidegate::testkit::properties;
use slidegate::{Limit, ManualClock};
use slidegate_redis::{RedisSettings, RedisStore};

use crate::server::{LONG, Redis};

/// An expiry margin so long that no key expires in a test. Keys expire by the clock of Redis, and the clock of the
/// tests may not advance.
const LONG_EXPIRY_MARGIN: Duration = Duration::from_secs(1_000_000);

/// A factory of independent stores that share a Redis server and a manual clock.
struct RedisStoreFactory {
    redis: Redis,
    clock: ManualClock,
    stores: AtomicU64,
}

impl RedisStoreFactory {
    fn start() -> Self {
        Self { redis: Redis::start(), clock: ManualClock::default(), stores: AtomicU64::new(0) }
    }

    /// Creates an empty store.
    fn new_store(&self) -> RedisStore {
        let prefix = format!("{}:", self.stores.fetch_add(1, Ordering::Relaxed));
        let settings = RedisSettings {
            prefix,
            timeout: LONG,
            expiry_margin: LONG_EXPIRY_MARGIN,
            // An answer of the cache lists only the limits that deny, and depends on the real time.
            deny_cache_ttl: Duration::ZERO,
            // Permits end at the stated time.
            max_clock_skew: Duration::ZERO,
            ..RedisSettings::default()
        };
        RedisStore::open(&self.redis.address(), settings).unwrap().with_clock(self.clock.clone())
    }
}

/// Checks a property for every limit and some seeds, each with an empty store.
macro_rules! check {
    ($property:path, seeds: $seeds:expr) => {
        let bench = RedisStoreFactory::start();
        for limit in properties::limits() {
            for seed in $seeds {
                $property(&bench.new_store(), &bench.clock, &limit, seed).await;
            }
        }
    };
    ($property:path) => {
        let bench = RedisStoreFactory::start();
        for limit in properties::limits() {
            $property(&bench.new_store(), &bench.clock, &limit).await;
        }
    };
}

#[tokio::test]
async fn units_in_window_stay_below_upper_bound() {
    check!(properties::units_stay_below_bound, seeds: [3]);
}

#[tokio::test]
async fn retry_after_and_reset_after_are_exact() {
    check!(properties::retry_after_is_exact, seeds: [1, 2]);
}

#[tokio::test]
async fn cost_above_limit_maximum_has_no_retry_after() {
    check!(properties::cost_above_max_has_no_retry_after);
}

#[tokio::test]
async fn free_units_are_exact_in_debt() {
    check!(properties::free_units_are_exact_in_debt);
}

#[tokio::test]
async fn denial_charges_nothing() {
    check!(properties::denial_charges_nothing);
}

#[tokio::test]
async fn counter_in_debt_denies_until_debt_is_paid() {
    check!(properties::debts_are_paid_first, seeds: [4]);
}

#[tokio::test]
async fn revert_undoes_its_charge() {
    check!(properties::revert_undoes_its_charge, seeds: 0..4);
}

#[tokio::test]
async fn refund_frees_exactly_refunded_units() {
    check!(properties::refund_frees_as_many_units, seeds: [5]);
}

#[tokio::test]
async fn unrefunded_units_in_window_stay_below_upper_bound() {
    check!(properties::units_stay_below_bound_without_refunds, seeds: [6]);
}

#[tokio::test]
async fn hit_order_does_not_affect_outcomes() {
    let bench = RedisStoreFactory::start();
    let limits: Vec<Limit> = properties::limits().into_iter().step_by(6).collect();
    for seed in 0..10 {
        let (store, other_store) = (bench.new_store(), bench.new_store());
        properties::order_of_hits_is_irrelevant(
            (&store, &other_store),
            &bench.clock,
            &limits,
            seed,
        )
        .await;
    }
}

/// `SEEDS=100` runs 100 seeds for each limit.
#[tokio::test]
async fn clock_steps_keep_bound_and_waits() {
    let bench = RedisStoreFactory::start();
    let seeds = std::env::var("SEEDS").map_or(1, |seeds| seeds.parse().unwrap());
    let permits = [1, 10].map(|max| Limit::concurrent(max, Duration::from_secs(60)).unwrap());
    for limit in properties::limits().into_iter().chain(permits) {
        for seed in 0..seeds {
            let store = bench.new_store();
            properties::clock_steps_keep_bound_and_waits(&store, &bench.clock, &limit, seed).await;
        }
    }
}

#[tokio::test]
async fn permits_end_in_time_after_clock_steps() {
    let bench = RedisStoreFactory::start();
    properties::permits_end_in_time_after_clock_steps(&bench.new_store(), &bench.clock).await;
}

#[tokio::test]
async fn calendar_periods_are_counted_separately() {
    let bench = RedisStoreFactory::start();
    for seed in 0..100 {
        let store = bench.new_store();
        properties::calendar_periods_are_counted_separately(&store, &bench.clock, seed).await;
    }
}
