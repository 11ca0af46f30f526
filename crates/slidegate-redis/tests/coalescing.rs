//! Tests that requests that arrive while a call is in flight share the next call, and that each is decided separately.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{FutureExt, poll};
use slidegate::store::{ChargeResult, Hit, Key, Scope, Value};
use slidegate::{Algorithm, Align, Limit, ManualClock, MemoryStore, Store, StoreError, Timestamp};
use slidegate_redis::{RedisSettings, RedisStore};

use crate::server::{LONG, Redis, poll_until};

/// The time of all requests.
const START: Timestamp = Timestamp::from_secs(1_750_000_020);

struct CoalescingFixture {
    redis: Redis,
    store: Arc<RedisStore>,
    scope: Scope,
}

impl CoalescingFixture {
    async fn start(timeout: Duration) -> Self {
        let redis = Redis::start();
        let settings =
            RedisSettings { timeout, deny_cache_ttl: Duration::ZERO, ..RedisSettings::default() };
        let clock = ManualClock::at(START);
        let store = RedisStore::open(&redis.address(), settings).unwrap().with_clock(clock);
        let fixture = Self {
            redis,
            store: Arc::new(store),
            scope: Scope::new("coalescing", "rule", "limit", &["client"]),
        };
        // Loads every script.
        for algorithm in Algorithm::ALL {
            let limit = new_limit("9/h", algorithm);
            poll_until("the store responds", LONG, async || {
                fixture.take("warm", &limit, 1).await.is_ok()
            })
            .await;
            let client = ["warm".into()];
            let hit = [fixture.hit(&client, &limit, 1)];
            fixture.store.charge_many_async(&[&hit, &hit]).await.unwrap();
        }
        fixture
    }

    fn hit<'a>(&'a self, client: &'a [Value<'a>; 1], limit: &'a Limit, cost: u64) -> Hit<'a> {
        let key = Key::new(&self.scope, client);
        Hit::new(key, limit, cost)
    }

    async fn take(
        &self,
        client: &str,
        limit: &Limit,
        cost: u64,
    ) -> Result<ChargeResult, StoreError> {
        self.store.charge_async(&[self.hit(&[client.into()], limit, cost)]).await
    }

    fn script_call_count(&self) -> u64 {
        self.redis.calls_of("evalsha")
    }

    async fn charged_units(&self, client: &str, limit: &Limit) -> u64 {
        let outcomes =
            self.store.peek_async(&[self.hit(&[client.into()], limit, 1)]).await.unwrap();
        limit.quota().max() - outcomes[0].remaining()
    }
}

fn new_limit(quota: &str, algorithm: Algorithm) -> Limit {
    Limit::new(quota.parse().unwrap(), algorithm).unwrap()
}

#[tokio::test]
async fn waiting_requests_share_one_script_call_in_order() {
    let fixture = CoalescingFixture::start(LONG).await;
    for algorithm in Algorithm::ALL {
        let limit = new_limit("41/h", algorithm);
        fixture.redis.command(&["FLUSHDB"]);
        let before = fixture.script_call_count();
        fixture.redis.pause();
        let mut takes: Vec<_> =
            (0..101).map(|_| fixture.take("all", &limit, 1).boxed_local()).collect();
        for take in &mut takes {
            assert!(poll!(take).is_pending());
        }
        fixture.redis.resume();
        let taken = join_all(takes).await;
        assert_eq!(
            fixture.script_call_count(),
            before + 2,
            "one call for the first, one for the others"
        );
        for (nth, taken) in taken.into_iter().enumerate() {
            let taken = taken.unwrap();
            let charges = taken.receipt.charges().len();
            assert_eq!(
                (taken.allowed, charges),
                (nth < 41, usize::from(nth < 41)),
                "{algorithm:?}"
            );
            let left = 40_u64.saturating_sub(nth as u64);
            assert_eq!(taken.outcomes[0].remaining(), left, "{algorithm:?}, the {nth}th");
        }
    }
}

#[tokio::test]
async fn canceled_first_request_hands_over_to_waiting_requests() {
    let fixture = CoalescingFixture::start(LONG).await;
    let limit = new_limit("41/h", Algorithm::SlidingCounter);
    fixture.redis.pause();
    let mut takes: Vec<_> = (0..50).map(|_| fixture.take("all", &limit, 1).boxed_local()).collect();
    for take in &mut takes {
        assert!(poll!(take).is_pending());
    }
    let before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    drop(takes.remove(0));
    let after = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert_eq!(after, before, "Drop spawns no task");
    fixture.redis.resume();
    let taken = join_all(takes).await;
    let allowed = taken.into_iter().filter(|taken| taken.as_ref().unwrap().allowed).count();
    // The first request was sent before it was canceled.
    assert!([40, 41].contains(&allowed), "{allowed}");
}

#[tokio::test]
async fn sequential_requests_use_separate_script_calls() {
    let fixture = CoalescingFixture::start(LONG).await;
    let limit = new_limit("41/h", Algorithm::SlidingCounter);
    let before = fixture.script_call_count();
    for _ in 0..50 {
        fixture.take("all", &limit, 1).await.unwrap();
    }
    assert_eq!(fixture.script_call_count(), before + 50);
}

#[tokio::test]
async fn wrong_redis_value_type_fails_only_its_request() {
    let fixture = CoalescingFixture::start(LONG).await;
    for algorithm in Algorithm::ALL {
        for max in ["20/h", "2000/h"] {
            let limit = new_limit(max, algorithm);
            fixture.redis.command(&["FLUSHDB"]);
            fixture.take("bad", &limit, 1).await.unwrap();
            fixture.take("worse", &limit, 1).await.unwrap();
            for key in fixture.redis.keys() {
                fixture.redis.command(&["DEL", &key]);
                if key.contains("bad") {
                    fixture.redis.command(&["LPUSH", &key, "x"])
                } else {
                    fixture.redis.command(&["SET", &key, "not ours"])
                };
            }
            let client = ["good", "bad", "good", "worse", "fine"];
            let values = client.map(|client| [Value::Text(client)]);
            let hits = values.each_ref().map(|client| fixture.hit(client, &limit, 1));
            let (first, second) = ([hits[0], hits[4]], [hits[1], hits[4]]);
            fixture.redis.pause();
            let requests: [&[Hit<'_>]; 7] =
                [&hits[4..], &first, &hits[1..2], &second, &hits[3..4], &hits[2..3], &hits[4..]];
            let mut takes: Vec<_> =
                requests.map(|hits| fixture.store.charge_async(hits).boxed_local()).into();
            for take in &mut takes {
                assert!(poll!(take).is_pending());
            }
            fixture.redis.resume();
            let taken = join_all(takes).await;
            let decisions: Vec<Option<bool>> =
                taken.iter().map(|taken| taken.as_ref().ok().map(|taken| taken.allowed)).collect();
            let fine = Some(true);
            assert_eq!(decisions, [fine, fine, None, None, None, fine, fine], "{limit}");
            assert_eq!(fixture.charged_units("good", &limit).await, 2, "{limit}");
            assert_eq!(fixture.charged_units("fine", &limit).await, 3, "{limit}");
            assert!(!fixture.store.is_breaker_open());
        }
    }
}

/// Tests requests with the same limits in one Redis value, which have a script of their own: several requests for a
/// client, a client without counters, a client with counters of other limits in the same value, and a value of the wrong
/// type.
#[tokio::test]
async fn coalesced_requests_with_several_limits_match_memory() {
    let fixture = CoalescingFixture::start(LONG).await;
    let memory = MemoryStore::with_clock(ManualClock::at(START), 1_000);
    let limits = [
        new_limit("3/min", Algorithm::SlidingCounter),
        new_limit("4/h", Algorithm::TokenBucket { burst: None, max_debt: None }),
        new_limit("5/d", Algorithm::FixedWindow { align: Align::Clock }),
        new_limit("9/w", Algorithm::SlidingCounter),
    ];
    let scopes = ["a", "b", "c", "d"].map(|id| Scope::new("several", "rule", id, &["client"]));
    let clients = ["new", "other", "bad"].map(|client| [Value::Text(client)]);
    let all_hits = clients.each_ref().map(|client| {
        let hit = |(scope, limit)| Hit::new(Key::new(scope, client), limit, 1);
        scopes.iter().zip(&limits).map(hit).collect::<Vec<_>>()
    });
    let [new, other, bad] = &all_hits;
    for hits in [&other[3..], &other[..1]] {
        fixture.store.charge_async(hits).await.unwrap();
        memory.charge_async(hits).await.unwrap();
    }
    let bad_key = "slidegate:several:rule:{client=bad}";
    fixture.redis.command(&["LPUSH", bad_key, "x"]);
    for is_reversed in [false, true] {
        let requests = [new, other, bad, new, other, new, other, new].map(|hits| {
            let mut hits = hits[..3].to_vec();
            if is_reversed {
                hits.reverse();
            }
            hits
        });
        fixture.redis.pause();
        let mut takes: Vec<_> =
            requests.iter().map(|hits| fixture.store.charge_async(hits).boxed_local()).collect();
        for take in &mut takes {
            assert!(poll!(take).is_pending());
        }
        fixture.redis.resume();
        for (nth, (taken, hits)) in join_all(takes).await.into_iter().zip(&requests).enumerate() {
            if nth == 2 {
                taken.unwrap_err();
                continue;
            }
            let (taken, expected) = (taken.unwrap(), memory.charge_async(hits).await.unwrap());
            assert_eq!(taken.allowed, expected.allowed, "{nth}");
            assert_eq!(taken.outcomes, expected.outcomes, "{nth}");
        }
    }
    fixture.redis.command(&["DEL", bad_key]);
    fixture.redis.assert_all_expire();
}

#[tokio::test]
async fn request_still_waiting_at_deadline_is_not_charged() {
    let fixture = CoalescingFixture::start(Duration::from_millis(300)).await;
    let limit = new_limit("1000/h", Algorithm::SlidingCounter);
    fixture.redis.pause();
    let mut takes: Vec<_> =
        (0..100).map(|_| fixture.take("all", &limit, 1).boxed_local()).collect();
    for take in &mut takes {
        assert!(poll!(take).is_pending());
    }
    // Some requests are canceled before the timeout.
    takes.truncate(60);
    let errors: Vec<StoreError> =
        join_all(takes).await.into_iter().map(|taken| taken.unwrap_err()).collect();
    assert!(matches!(errors[0], StoreError::TimedOut(_)), "the first request was sent");
    let not_sent = |error: &StoreError| matches!(error, StoreError::Unavailable(_));
    assert!(errors[1..].iter().all(not_sent), "{:?}", errors[1]);
    fixture.redis.resume();
    let mut charged = 0;
    poll_until("the store responds", LONG, async || match fixture.take("all", &limit, 0).await {
        Ok(taken) => {
            charged = 1_000 - taken.outcomes[0].remaining();
            true
        }
        Err(_) => false,
    })
    .await;
    assert!(charged <= 1, "{charged}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_concurrent_requests_get_exactly_limit_maximum() {
    let fixture = Arc::new(CoalescingFixture::start(LONG).await);
    for algorithm in Algorithm::ALL {
        fixture.redis.command(&["FLUSHDB"]);
        let before = fixture.script_call_count();
        let callers = (0..1_000).map(|nth| {
            let fixture = fixture.clone();
            tokio::spawn(async move {
                let (small, large) = (new_limit("150/h", algorithm), new_limit("400/d", algorithm));
                let client = [Value::Text(["a", "b"][nth % 2])];
                let hits = [fixture.hit(&client, &small, 1), fixture.hit(&client, &large, 1)];
                fixture.store.charge_async(&hits[..1 + nth % 3 % 2]).await.unwrap()
            })
        });
        let taken = join_all(callers).await;
        let allowed = taken.into_iter().filter(|taken| taken.as_ref().unwrap().allowed).count();
        assert_eq!(allowed, 300, "{algorithm:?}");
        let calls = fixture.script_call_count() - before;
        assert!(calls < 500, "{calls} calls");
    }
}
