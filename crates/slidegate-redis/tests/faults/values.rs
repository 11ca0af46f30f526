//! What else may stand at a key.

use std::time::Duration;

use slidegate::{
    Algorithm, Hit, Key, Limit, ManualClock, Scope, Store, StoreError, Timestamp, Value,
};
use slidegate_redis::{RedisStore, Settings};

use super::load::{MAX_A_DAY, Trial, gate, patient, request};
use crate::server::{LONG, Redis};

/// One key, by a clock that stands.
struct One {
    store: RedisStore,
    scope: Scope,
    clock: ManualClock,
}

impl One {
    fn open(redis: &Redis) -> Self {
        let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
        let settings =
            Settings { timeout: LONG, deny_cache_ttl: Duration::ZERO, ..Settings::default() };
        let store = RedisStore::open(&redis.address(), settings).unwrap().with_clock(clock.clone());
        Self { store, scope: Scope::new("values", "rule", "limit", &["who"]), clock }
    }

    fn hit<'a>(&'a self, limit: &'a Limit) -> Hit<'a> {
        let key = Key::new(&self.scope, &[Value::Text("all")]);
        Hit::new(key, limit, 1)
    }
}

fn limit(max: u64, window: Duration, algorithm: Algorithm) -> Limit {
    Limit::new(slidegate::Quota::new(max, window).unwrap(), algorithm).unwrap()
}

const MINUTE: Duration = Duration::from_secs(60);

/// The key that a limit is counted at.
async fn key_of(redis: &Redis, one: &One, limit: &Limit) -> String {
    redis.command(&["FLUSHALL"]);
    assert!(one.store.take(&[one.hit(limit)]).await.unwrap().allowed);
    redis.keys().remove(0)
}

#[tokio::test]
async fn another_type_at_a_key_is_an_error_for_that_key_alone() {
    let redis = Redis::start();
    let one = One::open(&redis);
    let other = Scope::new("values", "other", "limit", &["who"]);
    for algorithm in Algorithm::ALL {
        for max in [10, 1_000] {
            let limit = limit(max, MINUTE, algorithm);
            let key = key_of(&redis, &one, &limit).await;
            redis.command(&["DEL", &key]);
            redis.command(&["LPUSH", &key, "x"]);
            let bad = one.hit(&limit);
            let good = Hit { key: Key::new(&other, &[Value::Text("all")]), ..bad };
            for _ in 0..30 {
                one.store.take(&[bad]).await.unwrap_err();
                one.store.take(&[good, bad]).await.unwrap_err();
                one.store.peek(&[bad]).await.unwrap_err();
                one.store.refund(&[bad]).await.unwrap_err();
                one.store.take_many(&[&[good], &[bad]]).await.unwrap_err();
            }
            assert!(!one.store.is_breaker_open(), "others are well");
            one.store.take(&[good]).await.unwrap();
            redis.command(&["DEL", &key]);
            one.store.take(&[bad]).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_string_that_is_not_ours_is_an_error_for_that_key_alone() {
    let redis = Redis::start();
    let one = One::open(&redis);
    let mut rng = fastrand::Rng::with_seed(7);
    for algorithm in Algorithm::ALL {
        for max in [10, 1_000] {
            let (limit, longer) =
                (limit(max, MINUTE, algorithm), limit(max, 2 * MINUTE, algorithm));
            let key = key_of(&redis, &one, &limit).await;
            let mut connection = redis.connection();
            for length in (1..130).chain([200, 280, 4_000, 5_600, 100_000]) {
                for kind in ["x", "0", "random"] {
                    let value: Vec<u8> = match kind {
                        "random" => (0..length).map(|_| rng.u8(..)).collect(),
                        letter => letter.as_bytes().repeat(length),
                    };
                    redis::cmd("SET").arg(&key).arg(&value[..]).exec(&mut connection).unwrap();
                    let what = format!("{limit}: {length} bytes, {kind}");
                    let hit = one.hit(&limit);
                    one.store.take(&[hit]).await.expect_err(&what);
                    one.store.take(&[hit, hit]).await.expect_err(&what);
                    one.store.take(&[hit, Hit { limit: &longer, ..hit }]).await.expect_err(&what);
                    one.store.peek(&[hit]).await.expect_err(&what);
                    one.store.refund(&[hit]).await.expect_err(&what);
                    let stands: Vec<u8> =
                        redis::cmd("GET").arg(&key).query(&mut connection).unwrap();
                    assert_eq!(stands, value, "{what}");
                    assert!(!one.store.is_breaker_open(), "{what}");
                }
            }
            // Of nothing at all one may think as one likes, but it does not stay.
            redis.command(&["SET", &key, ""]);
            if one.store.take(&[one.hit(&limit)]).await.is_ok() {
                redis.assert_all_expire();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_another_type_at_a_key_degrades_that_key_alone() {
    let redis = Redis::start();
    let trial = Trial::begin(&redis.address()).await;
    let gate = gate(&redis.address(), "local", patient());
    gate.check(&request("spoilt")).await;
    let spoilt = redis.keys().into_iter().filter(|key| key.contains("spoilt"));
    for key in spoilt {
        redis.command(&["DEL", &key]);
        redis.command(&["LPUSH", &key, "x"]);
        redis.command(&["EXPIRE", &key, "60"]);
    }
    let mut degraded = 0;
    for _ in 0..200 {
        degraded += u64::from(gate.check(&request("spoilt")).await.decision().is_degraded());
    }
    assert!(degraded >= 198, "{degraded}");
    assert!(!gate.store().is_breaker_open());
    trial.recovers().await;
    trial.end(&redis, false).await;
}

/// What stands at one key must not undo what is counted in memory for it, whenever others are answered.
#[tokio::test]
async fn while_redis_answers_others_a_key_without_it_is_limited_all_the_same() {
    let redis = Redis::start();
    let gate = gate(&redis.address(), "local", patient());
    gate.check(&request("spoilt")).await;
    for key in redis.keys() {
        redis.command(&["DEL", &key]);
        redis.command(&["LPUSH", &key, "x"]);
        redis.command(&["EXPIRE", &key, "600"]);
    }
    let mut allowed = 0;
    for _ in 0..1_000 {
        let spoilt = gate.check(&request("spoilt")).await;
        allowed += u64::from(spoilt.decision().is_allowed());
        let well = gate.check(&request("ann")).await;
        assert!(!well.decision().is_degraded() || gate.store().is_breaker_open());
    }
    assert!(allowed <= 2 * MAX_A_DAY, "{allowed} allowed");
}

#[tokio::test]
async fn every_key_that_is_written_expires() {
    let redis = Redis::start();
    let one = One::open(&redis);
    let windows = [Duration::from_millis(1), Duration::from_millis(700), MINUTE, 60 * 24 * MINUTE];
    for window in windows {
        for algorithm in Algorithm::ALL {
            for max in [1, 10, 1_000] {
                let limit = limit(max, window, algorithm);
                redis.command(&["FLUSHALL"]);
                // Often, for what is written in part is written then; and all of it given back.
                let mut receipts = Vec::new();
                for _ in 0..3 {
                    let taken = one.store.take(&[one.hit(&limit)]).await.unwrap();
                    receipts.push(taken.receipt);
                    one.clock.advance(window / 2);
                    let lives = redis.keys().iter().map(|key| redis.lives(key)).max().unwrap();
                    // A tick of a window may round it up.
                    let most = 3 * window + Duration::from_secs(3);
                    assert!(lives >= 0, "{limit} stays for ever");
                    assert!(lives <= most.as_millis() as i64, "{limit} stays for {lives} ms");
                }
                one.store.refund(&[one.hit(&limit)]).await.unwrap();
                redis.assert_all_expire();
                let both = [one.hit(&limit), Hit { cost: 2, required: 2, ..one.hit(&limit) }];
                one.store.take(&both).await.unwrap();
                redis.assert_all_expire();
                for receipt in receipts {
                    one.store.revert(&receipt).await.unwrap();
                }
                redis.assert_all_expire();
                one.store.reset(&[one.hit(&limit)]).await.unwrap();
                redis.assert_all_expire();
            }
        }
    }
}

#[tokio::test]
async fn a_refund_makes_no_key() {
    let redis = Redis::start();
    let one = One::open(&redis);
    for algorithm in Algorithm::ALL {
        for max in [10, 1_000] {
            let limit = limit(max, MINUTE, algorithm);
            let [outcome] = one.store.refund(&[one.hit(&limit)]).await.unwrap()[..] else {
                panic!("one for one")
            };
            assert_eq!((outcome.remaining(), outcome.reset_after()), (max, Duration::ZERO));
            assert!(redis.keys().is_empty(), "{limit}");
        }
    }
}

/// Of a large log only what changes is read and written.
#[tokio::test]
async fn a_refund_of_a_large_log_takes_off_the_oldest() {
    let redis = Redis::start();
    let one = One::open(&redis);
    let limit = limit(10_000, MINUTE, Algorithm::SlidingLog);
    let hit = |cost| Hit { cost, required: cost, ..one.hit(&limit) };
    for nth in 0..500 {
        one.store.take(&[hit(1 + nth % 3)]).await.unwrap();
        one.clock.advance(Duration::from_millis(1));
    }
    let charged: u64 = (0..500).map(|nth| 1 + nth % 3).sum();
    let mut left = charged;
    for units in [1, 1, 1, 2, 3, 7, 100, 400] {
        left -= units;
        let outcome = one.store.refund(&[hit(units)]).await.unwrap()[0];
        assert_eq!(outcome.remaining(), 10_000 - left);
        // The oldest of the others leaves when it would have.
        let gone = charged - left;
        let nth = 3 * (gone / 6) + [0, 1, 1, 2, 2, 2][(gone % 6) as usize];
        let wait = one.store.peek(&[hit(10_000 - left + 1)]).await.unwrap()[0].retry_after();
        assert_eq!(wait, Some(MINUTE - Duration::from_millis(500 - nth)), "{gone} taken off");
    }
    let all = one.store.refund(&[hit(u64::MAX)]).await.unwrap()[0];
    assert_eq!((all.remaining(), all.reset_after()), (10_000, Duration::ZERO));
    assert_eq!(one.store.take(&[hit(3)]).await.unwrap().outcomes[0].remaining(), 9_997);
}

#[tokio::test]
async fn a_change_of_max_keeps_the_counts() {
    let redis = Redis::start();
    let one = One::open(&redis);
    for algorithm in Algorithm::ALL {
        redis.command(&["FLUSHALL"]);
        let remaining = async |max: u64| {
            let limit = limit(max, MINUTE, algorithm);
            one.store.take(&[one.hit(&limit)]).await.unwrap().outcomes[0].remaining()
        };
        assert_eq!(remaining(1_000).await, 999, "{algorithm:?}");
        // A large log is written in parts, a small one as a whole.
        assert_eq!(remaining(10).await, 8, "{algorithm:?}");
        assert_eq!(remaining(2_000).await, 1_997, "{algorithm:?}");
        assert_eq!(redis.keys().len(), 1);
    }
}

#[tokio::test]
async fn another_algorithm_or_window_meets_no_foreign_bytes() {
    let redis = Redis::start();
    let one = One::open(&redis);
    for window in [MINUTE, 2 * MINUTE] {
        for algorithm in Algorithm::ALL {
            let limit = limit(10, window, algorithm);
            let taken = one.store.take(&[one.hit(&limit)]).await.unwrap();
            assert_eq!(taken.outcomes[0].remaining(), 9, "{limit} counts anew");
        }
    }
    for window in [MINUTE, 2 * MINUTE] {
        for algorithm in Algorithm::ALL {
            let limit = limit(10, window, algorithm);
            let peeked = one.store.peek(&[one.hit(&limit)]).await.unwrap();
            assert_eq!(peeked[0].remaining(), 9, "{limit} has its own count");
        }
    }
}

/// Numbers of 16 bits would wrap, and a request of 65,537 hits be decided by one of them.
#[tokio::test]
async fn a_request_of_more_hits_than_a_script_can_number_is_refused() {
    let redis = Redis::start();
    let store = RedisStore::open(&redis.address(), patient()).unwrap();
    let scope = Scope::new("faults", "rule", "limit", &["who"]);
    let limit: Limit = "1/d".parse().unwrap();
    let names: Vec<String> = (0..=1 << 16).map(|nth| nth.to_string()).collect();
    let values: Vec<[Value<'_>; 1]> = names.iter().map(|name| [Value::from(&**name)]).collect();
    let hits: Vec<Hit<'_>> =
        values.iter().map(|value| Hit::new(Key::new(&scope, value), &limit, 1)).collect();
    let refused = store.take(&hits).await.unwrap_err();
    assert!(matches!(refused, StoreError::Unsupported(_)), "{refused}");
    assert_eq!(redis.keys(), [""; 0]);
}
