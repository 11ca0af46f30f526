//! The promises, held by the Redis store.
#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

mod server;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use slidegate::testkit::properties;
use slidegate::{Limit, ManualClock};
use slidegate_redis::{RedisStore, Settings};

use server::{LONG, Redis};

/// Nothing may expire because an injected clock stands still.
const FOREVER: Duration = Duration::from_secs(1_000_000);

/// Stores that share nothing, on one clock.
struct Bench {
    redis: Redis,
    clock: ManualClock,
    stores: AtomicU64,
}

impl Bench {
    fn start() -> Self {
        Self { redis: Redis::start(), clock: ManualClock::default(), stores: AtomicU64::new(0) }
    }

    /// A store that is empty.
    fn store(&self) -> RedisStore {
        let prefix = format!("{}:", self.stores.fetch_add(1, Ordering::Relaxed));
        let settings =
            Settings { prefix, timeout: LONG, expiry_margin: FOREVER, ..Settings::default() };
        RedisStore::open(&self.redis.address(), settings).unwrap().with_clock(self.clock.clone())
    }
}

/// Runs a law for every limit and some seeds, each on an empty store.
macro_rules! hold {
    ($law:path, seeds: $seeds:expr) => {
        let bench = Bench::start();
        for limit in properties::limits() {
            for seed in $seeds {
                $law(&bench.store(), &bench.clock, &limit, seed).await;
            }
        }
    };
    ($law:path) => {
        let bench = Bench::start();
        for limit in properties::limits() {
            $law(&bench.store(), &bench.clock, &limit).await;
        }
    };
}

#[tokio::test]
async fn never_above_the_bound_in_any_window() {
    hold!(properties::units_stay_below_bound, seeds: [3]);
}

#[tokio::test]
async fn retry_after_and_reset_after_are_exact() {
    hold!(properties::retry_after_is_exact, seeds: [1, 2]);
}

#[tokio::test]
async fn cost_above_max_has_no_retry_after() {
    hold!(properties::cost_above_max_has_no_retry_after);
}

#[tokio::test]
async fn denial_charges_nothing() {
    hold!(properties::denial_charges_nothing);
}

#[tokio::test]
async fn debts_are_paid_first() {
    hold!(properties::debts_are_paid_first, seeds: [4]);
}

#[tokio::test]
async fn give_back_undoes_exactly_its_charge() {
    hold!(properties::revert_undoes_its_charge, seeds: 0..4);
}

#[tokio::test]
async fn a_refund_makes_room_for_exactly_as_much() {
    hold!(properties::refund_frees_as_many_units, seeds: [5]);
}

#[tokio::test]
async fn never_above_the_bound_in_any_window_but_for_what_is_refunded() {
    hold!(properties::units_stay_below_bound_without_refunds, seeds: [6]);
}

#[tokio::test]
async fn the_order_of_limits_and_rules_changes_no_decision() {
    let bench = Bench::start();
    let limits: Vec<Limit> = properties::limits().into_iter().step_by(6).collect();
    for seed in 0..10 {
        let (store, twin) = (bench.store(), bench.store());
        properties::order_of_hits_is_irrelevant((&store, &twin), &bench.clock, &limits, seed).await;
    }
}
