//! Calls and settlements that are repeated, concurrent, or whose replies are lost.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use slidegate::store::{
    CallIdentity, CallSettlement, ChargeOnceResult, ChargeResult, Hit, Key, Scope, SettleResult,
    Value,
};
use slidegate::{Algorithm, Limit, ManualClock, MemoryStore, Quota, Store, StoreError};
use slidegate_redis::{RedisSettings, RedisStore};

use super::fixture::{self, TTL, TestRequest, decided, identity, settings, settlement};
use crate::proxy::{Proxy, ReplyFault};
use crate::server::cluster::Cluster;
use crate::server::{LONG, Redis, poll_until};

/// Charges, repeats, settles and repeats calls at `address`, with two stores.
async fn assert_calls_are_applied_once(address: &str, clients: usize) {
    let request = TestRequest::new(clients);
    let [first, second] = [(); 2].map(|()| RedisStore::open(address, settings()).unwrap());
    let hits = request.hits(10);
    let result = decided(first.charge_once_async(&hits, &identity(1)).await.unwrap());
    assert!(result.allowed);
    assert_eq!(request.used(&first).await, [10; 6]);
    for store in [&first, &second] {
        match store.charge_once_async(&hits, &identity(1)).await.unwrap() {
            ChargeOnceResult::Repeated { result: Some(repeated), .. } => {
                assert_eq!(repeated, result)
            }
            other => panic!("{other:?} is not a repetition"),
        }
        let other = CallIdentity { request_digest: 8, ..identity(1) };
        let other = store.charge_once_async(&hits, &other).await.unwrap();
        assert_eq!(other, ChargeOnceResult::OtherRequest);
        let other_hits = request.hits(11);
        let changed = store.charge_once_async(&other_hits, &identity(1)).await.unwrap();
        assert!(matches!(changed, ChargeOnceResult::Repeated { result: None, .. }), "{changed:?}");
    }
    assert_eq!(request.used(&second).await, [10; 6]);

    for (cost, expected) in
        [(4, SettleResult::Settled), (4, SettleResult::Repeated), (5, SettleResult::OtherValue)]
    {
        let settlement = settlement(1, &result.receipt, cost);
        assert_eq!(second.settle_async(&settlement).await.unwrap(), expected);
        assert_eq!(request.used(&first).await, [4; 6]);
    }
    let again = first.charge_once_async(&hits, &identity(1)).await.unwrap();
    assert!(matches!(again, ChargeOnceResult::Repeated { .. }), "{again:?}");

    // A reservation without an idempotency key: its record is created by the settlement.
    let reserved = first.charge_async(&hits).await.unwrap();
    for expected in [SettleResult::Settled, SettleResult::Repeated] {
        let settlement = settlement(2, &reserved.receipt, 25);
        assert_eq!(second.settle_async(&settlement).await.unwrap(), expected);
        assert_eq!(request.used(&first).await, [29; 6]);
    }

    let too_much = request.hits(990);
    for _ in 0..2 {
        let denied = decided(first.charge_once_async(&too_much, &identity(3)).await.unwrap());
        assert!(!denied.allowed && denied.receipt.is_empty(), "a denied call is decided again");
    }
}

#[tokio::test]
async fn calls_in_one_slot_are_applied_once() {
    let redis = Redis::start();
    assert_calls_are_applied_once(&redis.address(), 1).await;
    redis.command(&["FLUSHALL"]);
    assert_calls_are_applied_once(&redis.address(), 3).await;
}

#[tokio::test]
async fn calls_in_several_slots_are_applied_once() {
    let cluster = Cluster::start();
    assert_calls_are_applied_once(&cluster.address(), 3).await;
}

/// Sends the same call and then the same settlement many times at once.
async fn assert_concurrent_calls_are_applied_once(address: &str, clients: usize) {
    let request = TestRequest::new(clients);
    let stores = [(); 3].map(|()| RedisStore::open(address, settings()).unwrap());
    let hits = request.hits(10);
    let identity = identity(1);
    let calls = (0..30).map(|nth| stores[nth % 3].charge_once_async(&hits, &identity));
    let results: Vec<ChargeOnceResult> =
        join_all(calls).await.into_iter().map(Result::unwrap).collect();
    let decided: Vec<&ChargeResult> = results
        .iter()
        .filter_map(|result| match result {
            ChargeOnceResult::Decided(result) => Some(result),
            ChargeOnceResult::Repeated { .. } => None,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(decided.len(), 1);
    assert_eq!(request.used(&stores[0]).await, [10; 6]);
    let settlement = settlement(1, &decided[0].receipt, 3);
    let settled = (0..30).map(|nth| stores[nth % 3].settle_async(&settlement));
    let settled: Vec<_> = join_all(settled).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(settled.iter().filter(|result| **result == SettleResult::Settled).count(), 1);
    assert_eq!(request.used(&stores[0]).await, [3; 6]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_calls_are_applied_once() {
    let redis = Redis::start();
    assert_concurrent_calls_are_applied_once(&redis.address(), 2).await;
    let cluster = Cluster::start();
    assert_concurrent_calls_are_applied_once(&cluster.address(), 2).await;
}

/// A call whose reply is lost has been charged. Its repetition must not be charged again, and a settlement whose reply
/// is lost must not be applied again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_with_lost_replies_are_applied_once() {
    let redis = Redis::start();
    let proxy = Arc::new(Proxy::start(redis.port()).await);
    let request = TestRequest::new(1);
    let settings =
        RedisSettings { timeout: Duration::from_millis(300), ..RedisSettings::default() };
    let store = RedisStore::open(&proxy.address(), settings.clone()).unwrap();
    let direct = RedisStore::open(&redis.address(), settings).unwrap();
    let hits = request.hits(1);
    let mut charged = 0;
    for (call, fault) in
        (1..).zip([ReplyFault::Drop, ReplyFault::Cut, ReplyFault::Shorten].repeat(3))
    {
        proxy.set_fault(fault);
        let lost = store.charge_once_async(&hits, &identity(call)).await;
        proxy.set_fault(ReplyFault::Pass);
        let result = loop {
            match store.charge_once_async(&hits, &identity(call)).await {
                Ok(
                    ChargeOnceResult::Decided(result)
                    | ChargeOnceResult::Repeated { result: Some(result), .. },
                ) => {
                    break result;
                }
                Ok(other) => panic!("{other:?} after {lost:?}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        charged += 1;
        assert_eq!(request.used(&direct).await, [charged; 6], "{fault:?}");

        let settlement = settlement(call, &result.receipt, 3);
        proxy.set_fault(fault);
        let lost = store.settle_async(&settlement).await;
        proxy.set_fault(ReplyFault::Pass);
        loop {
            match store.settle_async(&settlement).await {
                Ok(SettleResult::Settled | SettleResult::Repeated) => break,
                Ok(other) => panic!("{other:?} after {lost:?}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
        charged += 2;
        assert_eq!(request.used(&direct).await, [charged; 6], "{fault:?}");
    }
}

/// A paused Redis carries out a call after its caller has stopped waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_to_paused_redis_are_applied_once() {
    let redis = Redis::start();
    let settings =
        RedisSettings { timeout: Duration::from_millis(200), ..RedisSettings::default() };
    let store = RedisStore::open(&redis.address(), settings).unwrap();
    let direct = RedisStore::open(&redis.address(), fixture::settings()).unwrap();
    let request = TestRequest::new(1);
    let hits = request.hits(10);
    // Redis has the scripts, so that one message is enough for a call.
    let other = TestRequest::new(1).of_client("bob");
    let charged = store.charge_once_async(&other.hits(10), &identity(9)).await.unwrap();
    store.settle_async(&settlement(9, &decided(charged).receipt, 3)).await.unwrap();
    redis.pause();
    let late = store.charge_once_async(&hits, &identity(1)).await;
    assert!(matches!(late, Err(StoreError::TimedOut(_))), "{late:?}");
    redis.resume();
    poll_until("the late call is charged", LONG, async || request.used(&direct).await == [10; 6])
        .await;
    let repeated = direct.charge_once_async(&hits, &identity(1)).await.unwrap();
    let ChargeOnceResult::Repeated { result: Some(result), .. } = repeated else {
        panic!("{repeated:?} is not a repetition")
    };
    assert_eq!(request.used(&direct).await, [10; 6]);

    request.used(&store).await;
    redis.pause();
    let late = store.settle_async(&settlement(1, &result.receipt, 3)).await;
    assert!(matches!(late, Err(StoreError::TimedOut(_))), "{late:?}");
    redis.resume();
    poll_until("the late settlement is applied", LONG, async || {
        request.used(&direct).await == [3; 6]
    })
    .await;
    let repeated = direct.settle_async(&settlement(1, &result.receipt, 3)).await;
    assert_eq!(repeated.unwrap(), SettleResult::Repeated);
    assert_eq!(request.used(&direct).await, [3; 6]);
}

/// Charges one of two limits of a rule at a time, and settles the calls later, in any order, in Redis and in memory.
/// All outcomes must be the same. Most settlements revert the newest charge of a key, for which Redis has a shorter
/// path.
async fn assert_settlements_equal_memory(redis: &Redis, algorithm: Algorithm, seed: u64) {
    let clock = ManualClock::default();
    let settings = RedisSettings {
        prefix: format!("{algorithm}-{seed}:"),
        // Keys expire by the clock of Redis, which is ahead of the clock of the test.
        expiry_margin: Duration::from_secs(1_000_000),
        deny_cache_ttl: Duration::ZERO,
        ..fixture::settings()
    };
    let remote = RedisStore::open(&redis.address(), settings).unwrap().with_clock(clock.clone());
    let local = MemoryStore::with_clock(clock.clone(), 100);
    let limits = [1_000, 50].map(|max| {
        let quota = Quota::new(max, Duration::from_secs(60)).unwrap();
        (
            Scope::new("d", "r", &format!("l{max}"), &["client"]),
            Limit::new(quota, algorithm).unwrap(),
        )
    });
    let value = [Value::Text("ann")];
    let hit = |nth: usize, cost| Hit::new(Key::new(&limits[nth].0, &value), &limits[nth].1, cost);
    let (mut rng, mut reserved) = (fastrand::Rng::with_seed(seed), Vec::new());
    for call in 1..=60 {
        clock.advance(Duration::from_millis(rng.u64(0..1_500)));
        let hits = [hit(usize::from(rng.u8(0..4) == 0), rng.u64(1..=20))];
        let charged =
            [remote.charge_async(&hits).await.unwrap(), local.charge_async(&hits).await.unwrap()];
        assert_eq!(charged[0].outcomes, charged[1].outcomes, "{algorithm}, seed {seed}");
        if charged[0].allowed {
            reserved.push((call, charged.map(|result| result.receipt)));
        }
        while !reserved.is_empty() && rng.bool() {
            let newest = reserved.len() - 1;
            let nth = if rng.bool() { newest } else { rng.usize(0..=newest) };
            let (call, [own, other]) = reserved.remove(nth);
            let cost = rng.u64(0..=25);
            let results = [
                remote.settle_async(&settlement(call, &own, cost)).await.unwrap(),
                local.settle_async(&settlement(call, &other, cost)).await.unwrap(),
            ];
            assert_eq!(results, [SettleResult::Settled; 2]);
        }
        for nth in 0..2 {
            let peeked = [
                remote.peek_async(&[hit(nth, 1)]).await.unwrap(),
                local.peek_async(&[hit(nth, 1)]).await.unwrap(),
            ];
            assert_eq!(peeked[0], peeked[1], "{algorithm}, seed {seed}, call {call}");
        }
    }
}

#[tokio::test]
async fn settlements_in_redis_equal_memory() {
    let redis = Redis::start();
    for algorithm in Algorithm::ALL {
        for seed in 0..20 {
            assert_settlements_equal_memory(&redis, algorithm, seed).await;
        }
    }
}

#[tokio::test]
async fn record_expires_with_its_call() {
    let redis = Redis::start();
    let store = RedisStore::open(&redis.address(), settings()).unwrap();
    let request = TestRequest::new(1);
    let hits = request.hits(1);
    store.charge_once_async(&hits, &identity(1)).await.unwrap();
    let key = format!("slidegate:call:{}", identity(1).id);
    let ttl_ms: i64 = redis.try_command(&["PTTL", &key]).unwrap();
    let expected = TTL.as_millis() as i64;
    assert!((expected..expected + 10_000).contains(&ttl_ms), "{ttl_ms}");
    redis.command(&["SET", &key, "foreign"]);
    let error = store.charge_once_async(&hits, &identity(1)).await.unwrap_err();
    assert!(error.to_string().contains("FOREIGN"), "{error}");
}

/// A process whose clock is behind accepts a reservation for longer, and must still find the record of its settlement.
#[tokio::test]
async fn settlement_is_remembered_longer_than_its_reservation() {
    const LEFT: Duration = Duration::from_secs(2_000);
    let redis = Redis::start();
    let store = RedisStore::open(&redis.address(), settings()).unwrap();
    let request = TestRequest::new(1);
    let result = store.charge_once_async(&request.hits(1), &identity(1)).await.unwrap();
    let receipt = decided(result).receipt;
    // The first record exists already, and lives for a shorter time; the second is created.
    for call in [1, 2] {
        let settlement = CallSettlement { ttl: LEFT, ..settlement(call, &receipt, 3) };
        store.settle_async(&settlement).await.unwrap();
        let key = format!("slidegate:call:{}", identity(call).id);
        let ttl_ms: i64 = redis.try_command(&["PTTL", &key]).unwrap();
        let expected = (LEFT + Duration::from_secs(60)).as_millis() as i64;
        assert!((expected..expected + 10_000).contains(&ttl_ms), "{ttl_ms}");
    }
    // A record is never kept for a shorter time.
    let early = CallSettlement { ttl: Duration::ZERO, ..settlement(3, &receipt, 3) };
    store.charge_once_async(&request.hits(1), &identity(3)).await.unwrap();
    store.settle_async(&early).await.unwrap();
    let key = format!("slidegate:call:{}", identity(3).id);
    let ttl_ms: i64 = redis.try_command(&["PTTL", &key]).unwrap();
    assert!(ttl_ms > TTL.as_millis() as i64 - 60_000, "{ttl_ms}");
}

/// The expiry of a key is a time of the clock of Redis. After a step back, all keys would live longer by the step.
#[tokio::test]
async fn record_expires_in_time_after_redis_clock_steps_back() {
    let redis = Redis::start();
    let store = RedisStore::open(&redis.address(), settings()).unwrap();
    let request = TestRequest::new(1);
    let hits = request.hits(10);
    let result = decided(store.charge_once_async(&hits, &identity(1)).await.unwrap());
    let is_record = |key: &String| key.contains("call:");
    let record = redis.keys().into_iter().find(is_record).unwrap();
    let ttl_ms = TTL.as_millis() as i64;
    let step_back = || redis.command(&["PEXPIRE", &record, &(ttl_ms + 3_600_000).to_string()]);
    step_back();
    let repeated = store.charge_once_async(&hits, &identity(1)).await.unwrap();
    assert!(matches!(repeated, ChargeOnceResult::Repeated { .. }), "{repeated:?}");
    let margin_ms = settings().expiry_margin.as_millis() as i64;
    let left_ms = redis.ttl_ms(&record);
    assert!(left_ms <= ttl_ms + margin_ms, "{left_ms} ms are left");

    // The record of a settlement is kept at least as long as the reservation.
    let settlement = settlement(1, &result.receipt, 4);
    assert_eq!(store.settle_async(&settlement).await.unwrap(), SettleResult::Settled);
    step_back();
    store.charge_once_async(&hits, &identity(1)).await.unwrap();
    assert!(redis.ttl_ms(&record) > ttl_ms + 60_000);
}
