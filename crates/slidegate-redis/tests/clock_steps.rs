//! Tests of the expiry of keys after a client's clock has stepped back.

use std::time::Duration;

use slidegate::clock::Clock;
use slidegate::store::{Hit, Key, Scope, Value};
use slidegate::testkit::conformance::ALL_ALGORITHMS;
use slidegate::{Algorithm, Limit, ManualClock, Store, Timestamp};
use slidegate_redis::{RedisSettings, RedisStore};

use crate::server::{LONG, Redis};

const WINDOW_MS: i64 = 2_000;

/// A store with a clock that the test sets, and the scopes of two limits of one rule.
struct Fixture {
    redis: Redis,
    clock: ManualClock,
    store: RedisStore,
    scopes: [Scope; 2],
}

impl Fixture {
    fn start() -> Self {
        let (redis, clock) = (Redis::start(), ManualClock::at(Timestamp::from_secs(1_750_000_000)));
        let settings = RedisSettings {
            timeout: LONG,
            deny_cache_ttl: Duration::ZERO,
            ..RedisSettings::default()
        };
        let store = RedisStore::open(&redis.address(), settings).unwrap().with_clock(clock.clone());
        let scopes = ["first", "second"].map(|limit| Scope::new("d", "r", limit, &["key"]));
        Self { redis, clock, store, scopes }
    }

    /// Charges a unit to each limit if it fits. Returns whether it was charged.
    async fn take(&self, limits: &[Limit]) -> bool {
        let values = [Value::Text("ann")];
        let hits = self.scopes.iter().zip(limits);
        let hits: Vec<Hit<'_>> =
            hits.map(|(scope, limit)| Hit::new(Key::new(scope, &values), limit, 1)).collect();
        self.store.charge_async(&hits).await.unwrap().allowed
    }

    /// Lets time pass on the clock, and for the expiry of all keys.
    fn advance(&self, ms: i64) {
        self.clock.advance(Duration::from_millis(ms as u64));
        for key in self.redis.keys() {
            let left_ms = self.redis.ttl_ms(&key) - ms;
            self.redis.command(&["PEXPIRE", &key, &left_ms.max(1).to_string()]);
        }
    }
}

fn limit(algorithm: Algorithm) -> Limit {
    match algorithm {
        Algorithm::Concurrent => Limit::concurrent(1, Duration::from_secs(2)).unwrap(),
        algorithm => Limit::new("1/2s".parse().unwrap(), algorithm).unwrap(),
    }
}

/// Tests that each unit is counted for a window, as its key does not expire before.
#[tokio::test]
async fn units_are_counted_for_window_after_step_back() {
    for algorithm in ALL_ALGORITHMS {
        for limits in [vec![limit(algorithm)], vec![limit(algorithm); 2]] {
            let fixture = Fixture::start();
            assert!(fixture.take(&limits).await);
            let hour = Duration::from_secs(3_600);
            let before = fixture.clock.now().as_micros();
            fixture.clock.set(Timestamp::from_micros(before - hour.as_micros() as u64));
            let mut charged_ms = 0;
            for now_ms in (0..60_000).step_by(500) {
                if fixture.take(&limits).await {
                    let count = limits.len();
                    let since_ms = now_ms - charged_ms;
                    // The first unit may have been charged long after the start of its window.
                    let is_fixed = matches!(algorithm, Algorithm::FixedWindow { .. });
                    let is_window_over = since_ms >= WINDOW_MS || (is_fixed && charged_ms == 0);
                    assert!(is_window_over, "{algorithm}, {count} limits: {since_ms} ms");
                    charged_ms = now_ms;
                }
                fixture.advance(500);
            }
            assert!(charged_ms > 50_000, "{algorithm}: the last unit fitted at {charged_ms} ms");
        }
    }
}
