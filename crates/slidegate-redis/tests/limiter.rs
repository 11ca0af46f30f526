//! Tests that a limiter over Redis gives the same results as a limiter in memory, and that waiting works over Redis.

use std::net::Ipv4Addr;
use std::time::Duration;

use slidegate::store::{Adjustment, Hit, Key, Scope};
use slidegate::{
    Algorithm, Check, Decision, Limit, Limiter, ManualClock, MemoryStore, Reason, Store, Timestamp,
};
use slidegate_redis::{RedisSettings, RedisStore};

use crate::server::{LONG, Redis};

const LIMITS: [&str; 2] = ["5/min", "20/h"];

/// Returns whether the request is allowed, the remaining units of each limit, and the retry time.
fn summary(decision: &Decision<'_>) -> (bool, Vec<u64>, Option<Duration>) {
    let remaining = decision.limits().map(|status| status.remaining()).collect();
    (decision.is_allowed(), remaining, decision.retry_after())
}

#[tokio::test]
async fn limiter_over_redis_equals_limiter_in_memory() {
    let redis = Redis::start();
    let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
    let memory = MemoryStore::with_clock(clock.clone(), 100);
    let memory = Limiter::with_store("limiter", LIMITS, memory).unwrap();
    // Without the denial cache, whose denials list only the limits that deny.
    let settings =
        RedisSettings { timeout: LONG, deny_cache_ttl: Duration::ZERO, ..RedisSettings::default() };
    let store = RedisStore::open(&redis.address(), settings).unwrap().with_clock(clock.clone());
    let remote = Limiter::with_store("limiter", LIMITS, store).unwrap();
    let key = ("customer", Ipv4Addr::LOCALHOST);

    for cost in [1, 0, 2, 9] {
        let local = memory.check(Check::new(&key).cost(cost));
        let other = remote.check_async(Check::new(&key).cost(cost)).await;
        assert_eq!(summary(&local), summary(&other), "a cost of {cost}");
        for actual in [3, 0] {
            let (local, other) = (memory.peek(&key), remote.peek_async(&key).await);
            assert_eq!(summary(&local), summary(&other), "before {actual}");
        }
        memory.settle(&local, cost + 1);
        remote.settle_async(&other, cost + 1).await.unwrap();
        clock.advance(Duration::from_millis(1_500));
    }
    let (local, other) = (memory.report(&key, 4), remote.report_async(&key, 4).await);
    assert_eq!(summary(&local), summary(&other), "a report");
    memory.revert(&local);
    remote.revert_async(&other).await.unwrap();
    memory.refund(&key, 2);
    remote.refund_async(&key, 2).await.unwrap();
    let keys = ["a", "b", "a", "a"];
    let (local, other) = (memory.check_many(&keys), remote.check_many_async(&keys).await);
    assert!(local.iter().map(summary).eq(other.iter().map(summary)));
    let (local, other) =
        (memory.peek(Check::new(&key).cost(5)), remote.peek_async(Check::new(&key).cost(5)).await);
    assert_eq!(summary(&local), summary(&other), "after revert and refund");
    memory.reset(&key);
    remote.reset_async(&key).await.unwrap();
    let other = remote.check_async(&key).await;
    assert_eq!(summary(&memory.check(&key)), summary(&other));
    assert_eq!(other.remaining(), 4);
}

/// The shape in the key of a counter has no resolution, and the script accepts entries of another resolution.
#[tokio::test]
async fn counts_in_redis_survive_change_of_resolution() {
    let redis = Redis::start();
    let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
    let settings = RedisSettings { timeout: LONG, ..RedisSettings::default() };
    let store = RedisStore::open(&redis.address(), settings).unwrap().with_clock(clock.clone());
    let scope = Scope::new("domain", "rule", "limit", &["name"]);
    let values = ["key".into()];
    let mut receipts = Vec::new();
    for (step, resolution) in [None, Some(8), Some(1_024), Some(64), None].into_iter().enumerate() {
        let quota = "1000/min".parse().unwrap();
        let limit = Limit::new(quota, Algorithm::SlidingWindow { resolution }).unwrap();
        let hit = Hit::new(Key::new(&scope, &values), &limit, 1);
        for charged in 1..=20 {
            clock.advance(Duration::from_millis(100));
            let result = store.charge_async(&[hit]).await.unwrap();
            let remaining = 1_000 - 20 * step as u64 - charged;
            assert_eq!(result.outcomes[0].remaining(), remaining, "{resolution:?}");
            receipts.push(result.receipt);
        }
        assert_eq!(redis.keys().len(), 1, "{resolution:?}");
    }
    store.adjust_async(&receipts[30], Adjustment::Revert).await.unwrap();
    let limit = Limit::new("1000/min".parse().unwrap(), Algorithm::default()).unwrap();
    let hit = Hit::new(Key::new(&scope, &values), &limit, 0);
    assert_eq!(store.peek_async(&[hit]).await.unwrap()[0].remaining(), 901, "the charge is found");
    clock.advance(Duration::from_secs(60));
    assert_eq!(store.peek_async(&[hit]).await.unwrap()[0].remaining(), 1_000);
}

#[tokio::test]
async fn wait_over_redis_ends_when_cost_fits() {
    let redis = Redis::start();
    let settings = RedisSettings { timeout: LONG, ..RedisSettings::default() };
    let store = RedisStore::open(&redis.address(), settings).unwrap();
    let limiter = Limiter::with_store("limiter", ["2/300ms"], store).unwrap();
    let mut times = Vec::new();
    for _ in 0..5 {
        let decision = limiter.wait_async("key").await.unwrap();
        assert!(decision.is_allowed());
        times.push(tokio::time::Instant::now());
    }
    assert!(times[4] - times[0] >= Duration::from_millis(300), "five units need three windows");
    let error = limiter.wait_async(Check::new("key").cost(3)).await.unwrap_err();
    assert_eq!(error.decision().reason(), Some(Reason::CostExceedsMax), "{error}");
}

#[tokio::test]
async fn limiters_share_store_and_its_numbers_but_no_counters() {
    let mut redis = Redis::start();
    let settings = RedisSettings { timeout: LONG, ..RedisSettings::default() };
    let store = RedisStore::open(&redis.address(), settings).unwrap();
    let logins = Limiter::with_store("logins", ["1/h"], store.clone()).unwrap();
    let searches = Limiter::with_store("searches", ["1/h"], store.clone()).unwrap();
    assert!(logins.check_async("ann").await.is_allowed());
    assert!(searches.check_async("ann").await.is_allowed());
    assert_eq!((store.stats().calls, store.stats().failures.len()), (2, 0));
    assert!(store.stats().call_time > Duration::ZERO);

    redis.kill();
    let degraded = logins.check_async("bob").await;
    assert!(degraded.is_allowed() && degraded.is_degraded());
    let class = degraded.store_error().unwrap().class();
    assert_eq!(store.stats().failures.into_iter().collect::<Vec<_>>(), [(class, 1)]);
    assert_eq!(logins.check_async("bob").await.remaining(), 0, "counted in memory");
}
