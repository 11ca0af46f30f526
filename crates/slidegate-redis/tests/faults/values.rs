//! Tests of Redis keys with values that were not written by slidegate.

use std::time::Duration;

use slidegate::store::{Adjustment, CallId, CallIdentity, Edit, Hit, Key, Scope, Value};
use slidegate::{Algorithm, Limit, ManualClock, Store, StoreError, Timestamp};
use slidegate_redis::{RedisSettings, RedisStore};

use super::load::{FaultTrial, MAX_PER_DAY, new_gate, new_request, patient_settings};
use crate::server::{LONG, Redis};

/// A store with one identity and a manual clock.
struct StoredValueFixture {
    store: RedisStore,
    scope: Scope,
    clock: ManualClock,
}

impl StoredValueFixture {
    fn open(redis: &Redis) -> Self {
        let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
        let settings = RedisSettings {
            timeout: LONG,
            deny_cache_ttl: Duration::ZERO,
            ..RedisSettings::default()
        };
        let store = RedisStore::open(&redis.address(), settings).unwrap().with_clock(clock.clone());
        Self { store, scope: Scope::new("values", "rule", "limit", &["client"]), clock }
    }

    fn hit<'a>(&'a self, limit: &'a Limit) -> Hit<'a> {
        let key = Key::new(&self.scope, &[Value::Text("all")]);
        Hit::new(key, limit, 1)
    }
}

fn new_limit(max: u64, window: Duration, algorithm: Algorithm) -> Limit {
    Limit::new(slidegate::Quota::new(max, window).unwrap(), algorithm).unwrap()
}

const MINUTE: Duration = Duration::from_secs(60);

/// Deletes all keys, takes one unit of a limit, and returns the key of its counter.
async fn charge_one_unit_and_find_key(
    redis: &Redis,
    fixture: &StoredValueFixture,
    limit: &Limit,
) -> String {
    redis.command(&["FLUSHALL"]);
    assert!(fixture.store.charge_async(&[fixture.hit(limit)]).await.unwrap().allowed);
    redis.keys().remove(0)
}

#[tokio::test]
async fn wrong_redis_value_type_fails_only_its_key() {
    let redis = Redis::start();
    let fixture = StoredValueFixture::open(&redis);
    let other = Scope::new("values", "other", "limit", &["client"]);
    for algorithm in Algorithm::ALL {
        for max in [10, 1_000] {
            let limit = new_limit(max, MINUTE, algorithm);
            let key = charge_one_unit_and_find_key(&redis, &fixture, &limit).await;
            redis.command(&["DEL", &key]);
            redis.command(&["LPUSH", &key, "x"]);
            let bad = fixture.hit(&limit);
            let good = Hit { key: Key::new(&other, &[Value::Text("all")]), ..bad };
            for _ in 0..30 {
                fixture.store.charge_async(&[bad]).await.unwrap_err();
                fixture.store.charge_async(&[good, bad]).await.unwrap_err();
                fixture.store.peek_async(&[bad]).await.unwrap_err();
                fixture.store.edit_async(&[bad], Edit::Refund).await.unwrap_err();
                fixture.store.charge_many_async(&[&[good], &[bad]]).await.unwrap_err();
                let identity =
                    CallIdentity { id: CallId::unique(), request_digest: 7, ttl: MINUTE };
                let error = fixture.store.charge_once_async(&[good, bad], &identity).await;
                assert!(error.unwrap_err().keys_with_foreign_values().is_some());
            }
            assert!(!fixture.store.is_breaker_open(), "other keys are not affected");
            fixture.store.charge_async(&[good]).await.unwrap();
            redis.command(&["DEL", &key]);
            fixture.store.charge_async(&[bad]).await.unwrap();
        }
    }
}

#[tokio::test]
async fn invalid_string_value_fails_only_its_key() {
    let redis = Redis::start();
    let fixture = StoredValueFixture::open(&redis);
    let mut rng = fastrand::Rng::with_seed(7);
    for algorithm in Algorithm::ALL {
        for max in [10, 1_000] {
            let (limit, longer) =
                (new_limit(max, MINUTE, algorithm), new_limit(max, 2 * MINUTE, algorithm));
            let key = charge_one_unit_and_find_key(&redis, &fixture, &limit).await;
            let mut connection = redis.connection();
            for length in (1..130).chain([200, 280, 4_000, 5_600, 100_000]) {
                for kind in ["x", "0", "random"] {
                    let value: Vec<u8> = match kind {
                        "random" => (0..length).map(|_| rng.u8(..)).collect(),
                        letter => letter.as_bytes().repeat(length),
                    };
                    redis::cmd("SET").arg(&key).arg(&value[..]).exec(&mut connection).unwrap();
                    let context = format!("{limit}: {length} bytes, {kind}");
                    let hit = fixture.hit(&limit);
                    fixture.store.charge_async(&[hit]).await.expect_err(&context);
                    fixture.store.charge_async(&[hit, hit]).await.expect_err(&context);
                    fixture
                        .store
                        .charge_async(&[hit, Hit { limit: &longer, ..hit }])
                        .await
                        .expect_err(&context);
                    fixture.store.peek_async(&[hit]).await.expect_err(&context);
                    fixture.store.edit_async(&[hit], Edit::Refund).await.expect_err(&context);
                    let stored: Vec<u8> =
                        redis::cmd("GET").arg(&key).query(&mut connection).unwrap();
                    assert_eq!(stored, value, "{context}");
                    assert!(!fixture.store.is_breaker_open(), "{context}");
                }
            }
            // An empty value may be accepted, but it must expire.
            redis.command(&["SET", &key, ""]);
            if fixture.store.charge_async(&[fixture.hit(&limit)]).await.is_ok() {
                redis.assert_all_expire();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_type_under_load_degrades_only_its_key() {
    let redis = Redis::start();
    let trial = FaultTrial::begin(&redis.address()).await;
    let gate = new_gate(&redis.address(), "local", patient_settings());
    let _ = gate.check_async(&new_request("spoilt")).await;
    let wrong_type = redis.keys().into_iter().filter(|key| key.contains("spoilt"));
    for key in wrong_type {
        redis.command(&["DEL", &key]);
        redis.command(&["LPUSH", &key, "x"]);
        redis.command(&["EXPIRE", &key, "60"]);
    }
    let mut degraded = 0;
    for _ in 0..200 {
        degraded += u64::from(gate.check_async(&new_request("spoilt")).await.is_degraded());
    }
    assert!(degraded >= 198, "{degraded}");
    assert!(!gate.store().is_breaker_open());
    trial.wait_for_recovery().await;
    trial.end(&redis, false).await;
}

/// Tests that requests for a key whose value has the wrong type are counted in memory. Successful calls for other keys
/// must not reset the count in memory.
#[tokio::test]
async fn key_with_wrong_type_is_counted_in_memory() {
    let redis = Redis::start();
    let gate = new_gate(&redis.address(), "local", patient_settings());
    let _ = gate.check_async(&new_request("spoilt")).await;
    for key in redis.keys() {
        redis.command(&["DEL", &key]);
        redis.command(&["LPUSH", &key, "x"]);
        redis.command(&["EXPIRE", &key, "600"]);
    }
    let mut allowed = 0;
    for _ in 0..1_000 {
        let wrong_type = gate.check_async(&new_request("spoilt")).await;
        allowed += u64::from(wrong_type.is_allowed());
        let other_decision = gate.check_async(&new_request("ann")).await;
        assert!(!other_decision.is_degraded() || gate.store().is_breaker_open());
    }
    assert!(allowed <= 2 * MAX_PER_DAY, "{allowed} allowed");
}

#[tokio::test]
async fn every_written_key_expires() {
    let redis = Redis::start();
    let fixture = StoredValueFixture::open(&redis);
    let windows = [Duration::from_millis(1), Duration::from_millis(700), MINUTE, 60 * 24 * MINUTE];
    for window in windows {
        for algorithm in Algorithm::ALL {
            for max in [1, 10, 1_000] {
                let limit = new_limit(max, window, algorithm);
                redis.command(&["FLUSHALL"]);
                // Several times, because later charges update the value in place; then all are reverted.
                let mut receipts = Vec::new();
                for _ in 0..3 {
                    let taken = fixture.store.charge_async(&[fixture.hit(&limit)]).await.unwrap();
                    receipts.push(taken.receipt);
                    fixture.clock.advance(window / 2);
                    let ttl_ms = redis.keys().iter().map(|key| redis.ttl_ms(key)).max().unwrap();
                    // A tick of a window may round it up.
                    let most = 3 * window + Duration::from_secs(3);
                    assert!(ttl_ms >= 0, "{limit} never expires");
                    assert!(
                        ttl_ms <= most.as_millis() as i64,
                        "{limit} expires only after {ttl_ms} ms"
                    );
                }
                fixture.store.edit_async(&[fixture.hit(&limit)], Edit::Refund).await.unwrap();
                redis.assert_all_expire();
                let both =
                    [fixture.hit(&limit), Hit { cost: 2, required: 2, ..fixture.hit(&limit) }];
                fixture.store.charge_async(&both).await.unwrap();
                redis.assert_all_expire();
                for receipt in receipts {
                    fixture.store.adjust_async(&receipt, Adjustment::Revert).await.unwrap();
                }
                redis.assert_all_expire();
                fixture.store.edit_async(&[fixture.hit(&limit)], Edit::Reset).await.unwrap();
                redis.assert_all_expire();
            }
        }
    }
}

#[tokio::test]
async fn refund_creates_no_key() {
    let redis = Redis::start();
    let fixture = StoredValueFixture::open(&redis);
    for algorithm in Algorithm::ALL {
        for max in [10, 1_000] {
            let limit = new_limit(max, MINUTE, algorithm);
            let [outcome] =
                fixture.store.edit_async(&[fixture.hit(&limit)], Edit::Refund).await.unwrap()[..]
            else {
                panic!("one for one")
            };
            assert_eq!((outcome.remaining(), outcome.reset_after()), (max, Duration::ZERO));
            assert!(redis.keys().is_empty(), "{limit}");
        }
    }
}

/// Tests that refunds read and write only the changed parts of a large sliding log.
#[tokio::test]
async fn refund_of_large_sliding_log_removes_oldest_units() {
    let redis = Redis::start();
    let fixture = StoredValueFixture::open(&redis);
    let limit = new_limit(10_000, MINUTE, Algorithm::SlidingLog);
    let hit = |cost| Hit { cost, required: cost, ..fixture.hit(&limit) };
    for nth in 0..500 {
        fixture.store.charge_async(&[hit(1 + nth % 3)]).await.unwrap();
        fixture.clock.advance(Duration::from_millis(1));
    }
    let charged: u64 = (0..500).map(|nth| 1 + nth % 3).sum();
    let mut left = charged;
    for units in [1, 1, 1, 2, 3, 7, 100, 400] {
        left -= units;
        let outcome = fixture.store.edit_async(&[hit(units)], Edit::Refund).await.unwrap()[0];
        assert_eq!(outcome.remaining(), 10_000 - left);
        // The oldest remaining unit leaves at its original time.
        let gone = charged - left;
        let nth = 3 * (gone / 6) + [0, 1, 1, 2, 2, 2][(gone % 6) as usize];
        let wait =
            fixture.store.peek_async(&[hit(10_000 - left + 1)]).await.unwrap()[0].retry_after();
        assert_eq!(wait, Some(MINUTE - Duration::from_millis(500 - nth)), "{gone} taken off");
    }
    let all = fixture.store.edit_async(&[hit(u64::MAX)], Edit::Refund).await.unwrap()[0];
    assert_eq!((all.remaining(), all.reset_after()), (10_000, Duration::ZERO));
    assert_eq!(fixture.store.charge_async(&[hit(3)]).await.unwrap().outcomes[0].remaining(), 9_997);
}

#[tokio::test]
async fn changed_limit_maximum_keeps_charged_units() {
    let redis = Redis::start();
    let fixture = StoredValueFixture::open(&redis);
    for algorithm in Algorithm::ALL {
        redis.command(&["FLUSHALL"]);
        let remaining = async |max: u64| {
            let limit = new_limit(max, MINUTE, algorithm);
            fixture.store.charge_async(&[fixture.hit(&limit)]).await.unwrap().outcomes[0]
                .remaining()
        };
        assert_eq!(remaining(1_000).await, 999, "{algorithm:?}");
        // A large log is written in parts, a small one as a whole.
        assert_eq!(remaining(10).await, 8, "{algorithm:?}");
        assert_eq!(remaining(2_000).await, 1_997, "{algorithm:?}");
        assert_eq!(redis.keys().len(), 1);
    }
}

#[tokio::test]
async fn changed_algorithm_or_window_uses_new_counter() {
    let redis = Redis::start();
    let fixture = StoredValueFixture::open(&redis);
    for window in [MINUTE, 2 * MINUTE] {
        for algorithm in Algorithm::ALL {
            let limit = new_limit(10, window, algorithm);
            let taken = fixture.store.charge_async(&[fixture.hit(&limit)]).await.unwrap();
            assert_eq!(taken.outcomes[0].remaining(), 9, "{limit} has a new counter");
        }
    }
    for window in [MINUTE, 2 * MINUTE] {
        for algorithm in Algorithm::ALL {
            let limit = new_limit(10, window, algorithm);
            let peeked = fixture.store.peek_async(&[fixture.hit(&limit)]).await.unwrap();
            assert_eq!(peeked[0].remaining(), 9, "{limit} has its own count");
        }
    }
}

/// Tests a request with 65,537 hits. A call encodes the number of hits in 16 bits, so without a check 65,537 hits would
/// be encoded as one hit.
#[tokio::test]
async fn request_with_too_many_hits_is_rejected() {
    let redis = Redis::start();
    let store = RedisStore::open(&redis.address(), patient_settings()).unwrap();
    let scope = Scope::new("faults", "rule", "limit", &["client"]);
    let limit: Limit = "1/d".parse().unwrap();
    let names: Vec<String> = (0..=1 << 16).map(|nth| nth.to_string()).collect();
    let values: Vec<[Value<'_>; 1]> = names.iter().map(|name| [Value::from(&**name)]).collect();
    let hits: Vec<Hit<'_>> =
        values.iter().map(|value| Hit::new(Key::new(&scope, value), &limit, 1)).collect();
    let error = store.charge_async(&hits).await.unwrap_err();
    assert!(matches!(error, StoreError::Unsupported(_)), "{error}");
    assert_eq!(redis.keys(), [""; 0]);
}
