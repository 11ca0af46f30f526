//! Permits of limits on requests in flight, in a real server.

use std::env;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use slidegate::clock::{Clock, WallClock};
use slidegate::store::{Adjustment, Hit, Key, PermitChange, Receipt, Scope, Value};
use slidegate::testkit::permits::permits_stay_below_max;
use slidegate::{Limit, ManualClock, Store, Timestamp};
use slidegate_redis::{RedisSettings, RedisStore};

use crate::server::Redis;
use crate::server::cluster::Cluster;

const TTL: Duration = Duration::from_secs(60);

fn settings(prefix: &str) -> RedisSettings {
    RedisSettings {
        prefix: format!("{prefix}:"),
        timeout: Duration::from_secs(3),
        // Keys expire by the clock of Redis, and the clock of the tests may not advance.
        expiry_margin: Duration::from_secs(1_000_000),
        max_clock_skew: Duration::ZERO,
        ..RedisSettings::default()
    }
}

async fn assert_permits_stay_below_max(address: &str, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let clock = ManualClock::default();
        let store = RedisStore::open(address, settings(&format!("permits-{seed}"))).unwrap();
        permits_stay_below_max(&store.with_clock(clock.clone()), &clock, seed).await;
    }
}

#[tokio::test]
async fn live_permits_stay_below_max() {
    let redis = Redis::start();
    assert_permits_stay_below_max(&redis.address(), 0..40).await;
}

/// The counters of a tenant and of its users are in several slots.
#[tokio::test]
async fn live_permits_stay_below_max_in_cluster() {
    let cluster = Cluster::start();
    assert_permits_stay_below_max(&cluster.address(), 0..10).await;
}

/// A limit with one key.
struct InFlight {
    scope: Scope,
    limit: Limit,
}

impl InFlight {
    fn new(max: u64) -> Self {
        let scope = Scope::new("test", "streams", "in-flight", &["user"]);
        Self { scope, limit: Limit::concurrent(max, TTL).unwrap() }
    }

    fn hit(&self) -> Hit<'_> {
        Hit::new(Key::new(&self.scope, &[Value::Text("ann")]), &self.limit, 1)
    }

    async fn acquire(&self, store: &RedisStore) -> Option<Receipt> {
        let result = store.charge_async(&[self.hit()]).await.unwrap();
        for charge in result.receipt.charges() {
            assert_eq!(store.counter_id(&self.hit()).as_ref(), Some(&charge.counter));
        }
        result.allowed.then_some(result.receipt)
    }
}

#[tokio::test]
async fn denial_is_not_cached() {
    let redis = Redis::start();
    let store = RedisStore::open(&redis.address(), settings("cache")).unwrap();
    let other = RedisStore::open(&redis.address(), settings("cache")).unwrap();
    let in_flight = InFlight::new(1);
    for _ in 0..3 {
        let permit = in_flight.acquire(&store).await.expect("a free permit");
        assert!(in_flight.acquire(&store).await.is_none());
        assert!(other.change_permit_async(&permit, PermitChange::Release).await.unwrap());
    }
    assert_eq!(store.stats().deny_cache_hits, 0);
}

/// The clocks of two clients differ by less than the maximum.
#[tokio::test]
async fn client_with_clock_ahead_does_not_take_held_permit() {
    let redis = Redis::start();
    let skew = Duration::from_millis(900);
    let settings = || RedisSettings { max_clock_skew: Duration::from_secs(1), ..settings("skew") };
    let [slow, fast] = [ManualClock::default(), ManualClock::default()];
    let open = |clock: &ManualClock| {
        RedisStore::open(&redis.address(), settings()).unwrap().with_clock(clock.clone())
    };
    let (slow_store, fast_store) = (open(&slow), open(&fast));
    let set_time = |at: Duration| {
        slow.set(Timestamp::from_secs(1_750_000_000).after(at));
        fast.set(slow.now().after(skew));
    };
    let in_flight = InFlight::new(1);
    set_time(Duration::ZERO);
    let permit = in_flight.acquire(&slow_store).await.expect("a free permit");
    set_time(TTL - Duration::from_micros(1));
    assert!(in_flight.acquire(&fast_store).await.is_none(), "the holder has it for 1 us more");
    assert!(slow_store.change_permit_async(&permit, PermitChange::Renew).await.unwrap());
    set_time(2 * TTL - Duration::from_micros(2));
    assert!(in_flight.acquire(&fast_store).await.is_none());
    set_time(2 * TTL + Duration::from_millis(100));
    assert!(in_flight.acquire(&fast_store).await.is_some(), "it has expired for both");
    assert!(!slow_store.change_permit_async(&permit, PermitChange::Renew).await.unwrap());
}

#[tokio::test]
async fn key_expires_after_permits() {
    let redis = Redis::start();
    let settings = RedisSettings { expiry_margin: Duration::from_secs(1), ..settings("expiry") };
    let store = RedisStore::open(&redis.address(), settings).unwrap();
    let in_flight = InFlight::new(3);
    let permit = in_flight.acquire(&store).await.expect("a free permit");
    let keys: Vec<String> = redis.try_command(&["KEYS", "*"]).unwrap();
    let ttl_ms = || redis.try_command::<u64>(&["PTTL", &keys[0]]).unwrap();
    assert!((60_000..=61_000).contains(&ttl_ms()), "{}", ttl_ms());
    // A release keeps the id of the newest permit, so that no later permit gets it, and the time of the last change.
    assert!(store.change_permit_async(&permit, PermitChange::Release).await.unwrap());
    assert_eq!(redis.try_command::<u64>(&["ZCARD", &keys[0]]).unwrap(), 2);
    assert!(ttl_ms() > 50_000);
    store.adjust_async(&permit, Adjustment::Revert).await.unwrap();
    assert!(!store.change_permit_async(&permit, PermitChange::Release).await.unwrap());
}

/// The machine's clock with a constant offset.
struct SkewedClock(i64);

impl Clock for SkewedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(WallClock.now().as_micros().saturating_add_signed(self.0))
    }
}

/// Environment variables with the address and the clock skew for a started process.
const ADDRESS_ENV_VAR: &str = "SLIDEGATE_PERMITS_ADDRESS";
const SKEW_ENV_VAR: &str = "SLIDEGATE_PERMITS_SKEW_US";

/// The permits of the racing processes, and their time to live.
const RACE_PERMITS: u64 = 3;
const RACE_TTL: Duration = Duration::from_secs(2);

/// The time for which the racing processes run, longer than the time to live.
const RACE_TIME: Duration = Duration::from_secs(6);

/// The program of the processes that the test below starts. This function is not a test itself.
///
/// A process enters itself in the sorted set `holders` while it has a permit, with the earliest time at which the permit
/// may expire. It asserts that there are never more holders whose permits are live than the limit allows.
#[tokio::test]
#[ignore = "started by another test"]
async fn hold_permits_in_racing_process() {
    let Ok(address) = env::var(ADDRESS_ENV_VAR) else { return };
    let skew: i64 = env::var(SKEW_ENV_VAR).unwrap().parse().unwrap();
    let settings = RedisSettings { timeout: Duration::from_secs(30), ..RedisSettings::default() };
    let store = RedisStore::open(&address, settings).unwrap().with_clock(SkewedClock(skew));
    let limit = Limit::concurrent(RACE_PERMITS, RACE_TTL).unwrap();
    let in_flight = InFlight { limit, ..InFlight::new(RACE_PERMITS) };
    let mut redis = redis::Client::open(address).unwrap().get_connection().unwrap();
    let (end, mut held) = (WallClock.now().after(RACE_TIME), 0);
    for nth in 0.. {
        if WallClock.now() > end {
            break;
        }
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut redis).unwrap();
        let expires_us = seconds * 1_000_000 + micros + RACE_TTL.as_micros() as u64;
        let Some(permit) = in_flight.acquire(&store).await else {
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        };
        let holder = format!("{}:{nth}", std::process::id());
        let count_holders = "redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2]) \
            local time = redis.call('TIME') \
            return redis.call('ZCOUNT', KEYS[1], time[1] * 1000000 + time[2], '+inf')";
        let mut command = redis::cmd("EVAL");
        command.arg(count_holders).arg(1).arg("holders").arg(expires_us).arg(&holder);
        let holders: u64 = command.query(&mut redis).unwrap();
        assert!(holders <= RACE_PERMITS, "{holders} holders");
        held += 1;
        tokio::time::sleep(Duration::from_millis(nth % 5)).await;
        redis::cmd("ZREM").arg("holders").arg(holder).exec(&mut redis).unwrap();
        assert!(store.change_permit_async(&permit, PermitChange::Release).await.unwrap());
    }
    assert!(held > 10, "{held} permits");
}

/// Eight processes whose clocks differ by up to 400 ms share a limit. Three of them are killed, some while they hold a
/// permit.
#[test]
fn processes_with_skewed_clocks_never_hold_more_than_max() {
    let redis = Redis::start();
    let start = |nth: i64| {
        Command::new(env::current_exe().unwrap())
            .args(["--exact", "permits::hold_permits_in_racing_process", "--ignored"])
            .env(ADDRESS_ENV_VAR, redis.address())
            .env(SKEW_ENV_VAR, ((nth * 2 - 7) * 200_000 / 7).to_string())
            .spawn()
            .unwrap()
    };
    let mut processes: Vec<Child> = (0..8).map(start).collect();
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(700));
        let mut killed = processes.remove(0);
        killed.kill().unwrap();
        killed.wait().unwrap();
    }
    for mut process in processes {
        assert!(process.wait().unwrap().success());
    }
    // The permits of the killed processes have expired, with the difference between the clocks.
    thread::sleep(RACE_TTL + Duration::from_secs(1));
    let keys: Vec<String> = redis.try_command(&["KEYS", "slidegate:*"]).unwrap();
    let (seconds, micros): (u64, u64) = redis.try_command(&["TIME"]).unwrap();
    let now_us = (seconds * 1_000_000 + micros).to_string();
    for key in keys {
        let live: u64 = redis.try_command(&["ZCOUNT", &key, &now_us, "+inf"]).unwrap();
        assert_eq!(live, 0);
    }
}
