//! Tests of calendar limits in Redis: clocks that differ around the boundary of a period, and the expiry of keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use slidegate::clock::Clock;
use slidegate::limit::Weekday;
use slidegate::store::{Edit, Hit, Key, Scope};
use slidegate::{Calendar, Limit, ManualClock, MemoryStore, Period, Store, SyncStore, Timestamp};
use slidegate_redis::{RedisSettings, RedisStore};

use crate::server::{LONG, Redis};

/// An expiry margin so long that no key expires in a test.
const LONG_EXPIRY_MARGIN: Duration = Duration::from_secs(1_000_000);

/// The clock of an instance, which is read first, and another clock that decides, as the clock of Redis does.
#[derive(Clone, Default)]
struct TwoClocks {
    instance_us: Arc<AtomicU64>,
    deciding_us: Arc<AtomicU64>,
}

impl TwoClocks {
    fn set(&self, instance: Timestamp, deciding: Timestamp) {
        self.instance_us.store(instance.as_micros(), Ordering::Relaxed);
        self.deciding_us.store(deciding.as_micros(), Ordering::Relaxed);
    }
}

impl Clock for TwoClocks {
    fn now(&self) -> Timestamp {
        let instance_us = self.instance_us.swap(0, Ordering::Relaxed);
        Timestamp::from_micros(match instance_us {
            0 => self.deciding_us.load(Ordering::Relaxed),
            time_us => time_us,
        })
    }
}

fn new_store(
    redis: &Redis,
    prefix: &str,
    expiry_margin: Duration,
    clock: impl Clock,
) -> RedisStore {
    let settings = RedisSettings {
        prefix: format!("{prefix}:"),
        timeout: LONG,
        expiry_margin,
        deny_cache_ttl: Duration::ZERO,
        ..RedisSettings::default()
    };
    RedisStore::open(&redis.address(), settings).unwrap().with_clock(clock)
}

fn draw_calendar(rng: &mut Rng) -> Calendar {
    let zones =
        ["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/Sao_Paulo", "Pacific/Apia"];
    let calendar = Calendar::new(Period::ALL[rng.usize(..5)]);
    let calendar = calendar.with_time_zone(zones[rng.usize(..5)]).unwrap();
    let starts = ["06:00", "15 02:30", "02:30", "11-30", "04-06 12:00"];
    let calendar = calendar.with_week_start(Weekday::Sunday);
    calendar.with_start(starts[rng.usize(..5)]).unwrap_or(calendar)
}

/// The clock of Redis decides in which period a request is, and when the period ends: a store whose clock differs by
/// less than half a period decides like a store in memory with the clock of Redis.
#[tokio::test]
async fn period_is_that_of_deciding_clock() {
    let redis = Redis::start();
    let (mut rng, mut in_other_period) = (Rng::with_seed(1), 0);
    for seed in 0..60 {
        let calendar = draw_calendar(&mut rng);
        let limit = Limit::calendar(rng.u64(1..9), calendar).unwrap();
        let (clocks, clock) = (TwoClocks::default(), ManualClock::default());
        let store = new_store(&redis, &seed.to_string(), LONG_EXPIRY_MARGIN, clocks.clone());
        let memory_store = MemoryStore::with_clock(clock.clone(), 1_000);
        let scope = Scope::new("d", "r", "l", &["key"]);
        let values = ["a".into()];
        let mut now = Timestamp::from_secs(1_300_000_000 + rng.u64(..800_000_000));
        for step in 0..40 {
            let end = calendar.period_at(now).end;
            now = match rng.u32(..4) {
                0 => end,
                1 => Timestamp::from_micros(end.as_micros() - 1 - rng.u64(..1_000_000)),
                2 => Timestamp::from_micros(now.as_micros() + rng.u64(..1_000_000)),
                _ => end.after(Duration::from_micros(rng.u64(..1_000_000))),
            };
            let shortest_us = 82_000_000_000;
            let skew_us = rng.u64(..shortest_us / 2);
            let instance_us = now.as_micros() + skew_us - shortest_us / 4;
            let instance = Timestamp::from_micros(instance_us);
            in_other_period += u32::from(calendar.period_at(instance) != calendar.period_at(now));
            clocks.set(instance, now);
            clock.set(now);
            let hit = Hit::new(Key::new(&scope, &values), &limit, rng.u64(1..4));
            let context = format!("{limit}, seed {seed}, step {step}: {now}, instance {instance}");
            if rng.u32(..5) == 0 {
                let refunded = store.edit_async(&[hit], Edit::Refund).await.unwrap();
                assert_eq!(refunded, memory_store.edit(&[hit], Edit::Refund), "{context}: refund");
                continue;
            }
            // Also the scripts of several hits.
            let other = Limit::calendar(100, Calendar::new(Period::Year)).unwrap();
            let other_hit = Hit { limit: &other, ..hit };
            let hits = [hit, if rng.bool() { other_hit } else { other_hit.in_observe_mode() }];
            let hits = &hits[..rng.usize(1..=2)];
            let decided = store.charge_async(hits).await.unwrap();
            let expected = memory_store.charge(hits);
            assert_eq!(decided.outcomes, expected.outcomes, "{context}");
            assert_eq!(decided.allowed, expected.allowed, "{context}");
        }
    }
    assert!(in_other_period > 500, "{in_other_period}");
}

/// A key is kept until the end of the period and the margin, and no longer, even if it is charged often.
#[tokio::test]
async fn key_expires_after_end_of_period() {
    let redis = Redis::start();
    let clock = ManualClock::at(Timestamp::from_secs(1_773_000_000));
    let store = new_store(&redis, "ttl", Duration::from_secs(60), clock.clone());
    let calendar = Calendar::new(Period::Month).with_time_zone("Europe/Berlin").unwrap();
    let limit = Limit::calendar(1_000, calendar).unwrap();
    let scope = Scope::new("d", "r", "l", &["key"]);
    let values = ["a".into()];
    let hit = Hit::new(Key::new(&scope, &values), &limit, 1);
    for _ in 0..3 {
        let end = calendar.period_at(clock.now()).end;
        assert!(store.charge_async(&[hit]).await.unwrap().allowed);
        // Only the first charge of a period sets the expiry.
        clock.advance(Duration::from_secs(1_000));
        assert!(store.charge_async(&[hit]).await.unwrap().allowed);
        let keys = redis.keys();
        assert_eq!(keys.len(), 1, "{keys:?}");
        let first_charge_us = clock.now().as_micros() - 1_000_000_000;
        let expected_ms = ((end.as_micros() - first_charge_us) / 1_000 + 60_000) as i64;
        let ttl_ms = redis.ttl_ms(&keys[0]);
        assert!((expected_ms - 60_000..=expected_ms).contains(&ttl_ms), "{ttl_ms} {expected_ms}");
        clock.set(end);
    }
}
