//! Tests that the Redis store returns the same outcomes as the reference model. The tests use a real server and a
//! manual clock.

use std::time::Duration;

use slidegate::testkit::conformance;
use slidegate::{Algorithm, ManualClock};
use slidegate_redis::{RedisSettings, RedisStore};

use crate::server::Redis;
use crate::server::cluster::Cluster;

/// An expiry margin so long that no key expires in a test. Keys expire by the clock of Redis, and the clock of the
/// tests may not advance.
const LONG_EXPIRY_MARGIN: Duration = Duration::from_secs(1_000_000);

async fn assert_store_matches_model(
    address: &str,
    algorithms: &[Algorithm],
    seeds: std::ops::Range<u64>,
    has_clock_steps: bool,
) {
    let (mut decisions, mut waits, mut repeated_calls) = (0, 0, 0);
    for seed in seeds {
        let clock = ManualClock::default();
        let settings = RedisSettings {
            // Records of calls do not depend on the algorithm.
            prefix: format!("{}:{}:{seed}:", algorithms.len(), algorithms[0]),
            // A call that times out may have had its effect, which the suite does not know. A busy machine is slow.
            timeout: Duration::from_secs(60),
            expiry_margin: LONG_EXPIRY_MARGIN,
            // The model has one clock.
            max_clock_skew: Duration::ZERO,
            // A denial from the cache lists only the limits that deny.
            deny_cache_ttl: Duration::ZERO,
            ..RedisSettings::default()
        };
        let store = RedisStore::open(address, settings).unwrap().with_clock(clock.clone());
        let result = if has_clock_steps {
            let trace = conformance::run_trace_with_clock_steps;
            trace(&store, &clock, algorithms, seed, 400).await
        } else {
            conformance::run_trace(&store, &clock, algorithms, seed, 400).await
        };
        match result {
            Ok(report) => {
                decisions += report.decisions;
                waits += report.waits;
                repeated_calls += report.repeated_calls;
            }
            Err(difference) => panic!("{algorithms:?}: {difference}"),
        }
    }
    assert!(decisions > 1_000 && waits > 100, "{decisions} decisions, {waits} waits");
    assert!(repeated_calls > 100, "{repeated_calls} repeated calls");
}

#[tokio::test]
async fn store_matches_model_with_each_algorithm() {
    let redis = Redis::start();
    for algorithm in conformance::ALL_ALGORITHMS {
        assert_store_matches_model(&redis.address(), &[algorithm], 0..60, false).await;
    }
}

#[tokio::test]
async fn store_matches_model_with_mixed_algorithms() {
    let redis = Redis::start();
    assert_store_matches_model(&redis.address(), &conformance::ALL_ALGORITHMS, 1_000..1_150, false)
        .await;
}

/// `SEEDS=1000` runs 1000 seeds for each algorithm and for all algorithms together.
#[tokio::test]
async fn store_matches_model_with_clock_steps() {
    let redis = Redis::start();
    let count = std::env::var("SEEDS").map_or(40, |seeds| seeds.parse().unwrap());
    let seeds = 10_000..10_000 + count;
    for algorithms in
        conformance::ALL_ALGORITHMS.chunks(1).chain([&conformance::ALL_ALGORITHMS[..]])
    {
        assert_store_matches_model(&redis.address(), algorithms, seeds.clone(), true).await;
    }
}

/// Tests a Cluster with random requests, some of which have keys in several slots.
#[tokio::test]
async fn cluster_store_matches_model() {
    let cluster = Cluster::start();
    assert_store_matches_model(
        &cluster.address(),
        &conformance::ALL_ALGORITHMS,
        2_000..2_040,
        false,
    )
    .await;
}
