//! Processes that send the same calls and settlements at the same time. Some of them are killed.

use std::env;
use std::process::{Child, Command};

use slidegate::clock::{Clock, WallClock};
use slidegate::store::{ChargeOnceResult, SettleResult};
use slidegate::{Store, Timestamp};
use slidegate_redis::RedisStore;

use super::fixture::{TestRequest, identity, settings, settlement};
use crate::server::{Redis, wait_until};

const PROCESS_COUNT: u64 = 8;

/// The number of calls that each process sends, and the units that each call reserves and then settles to.
const CALLS: u8 = 90;
const RESERVED_UNITS: u64 = 10;
const ACTUAL_UNITS: u64 = 3;

/// Environment variables with the address and the clock skew for a started process.
const ADDRESS_ENV_VAR: &str = "SLIDEGATE_CALLS_ADDRESS";
const SKEW_ENV_VAR: &str = "SLIDEGATE_CALLS_SKEW_US";

/// Counters in Redis: the processes that are ready, and the calls that they have settled.
const READY_KEY: &str = "ready";
const PROGRESS_KEY: &str = "progress";

/// The machine's clock with a constant offset.
struct SkewedClock(i64);

impl Clock for SkewedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(WallClock.now().as_micros().saturating_add_signed(self.0))
    }
}

/// The program of the processes that the test below starts. This function is not a test itself.
///
/// Every process sends every call and its settlement, all in the same order, so that each call is sent by all processes
/// at about the same time.
#[tokio::test]
#[ignore = "started by another test"]
async fn apply_calls_in_racing_process() {
    let Ok(address) = env::var(ADDRESS_ENV_VAR) else { return };
    let skew: i64 = env::var(SKEW_ENV_VAR).unwrap().parse().unwrap();
    let store = RedisStore::open(&address, settings()).unwrap().with_clock(SkewedClock(skew));
    let request = TestRequest::new(1);
    let hits = request.hits(RESERVED_UNITS);
    let mut redis = redis::Client::open(address).unwrap().get_connection().unwrap();
    let mut increment = |key: &str, by: u64| -> u64 {
        redis::cmd("INCRBY").arg(key).arg(by).query(&mut redis).unwrap()
    };
    request.used(&store).await;
    increment(READY_KEY, 1);
    wait_until("all processes are ready", || increment(READY_KEY, 0) >= PROCESS_COUNT);
    for call in 1..=CALLS {
        let result = match store.charge_once_async(&hits, &identity(call)).await.unwrap() {
            ChargeOnceResult::Decided(result)
            | ChargeOnceResult::Repeated { result: Some(result), .. } => result,
            other => panic!("{other:?}"),
        };
        assert!(result.allowed);
        let settlement = settlement(call, &result.receipt, ACTUAL_UNITS);
        let settled = store.settle_async(&settlement).await.unwrap();
        assert!(matches!(settled, SettleResult::Settled | SettleResult::Repeated), "{settled:?}");
        increment(PROGRESS_KEY, 1);
    }
}

/// Eight processes whose clocks differ by up to 400 ms send the same calls. Three of them are killed, each at another
/// time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_racing_and_killed_processes_are_applied_once() {
    let redis = Redis::start();
    let start = |nth: i64| {
        Command::new(env::current_exe().unwrap())
            .args(["--exact", "calls::races::apply_calls_in_racing_process", "--ignored"])
            .env(ADDRESS_ENV_VAR, redis.address())
            .env(SKEW_ENV_VAR, ((nth * 2 - 7) * 200_000 / 7).to_string())
            .spawn()
            .unwrap()
    };
    let mut processes: Vec<Child> = (0..PROCESS_COUNT as i64).map(start).collect();
    let mut connection = redis.connection();
    for progress in [100, 200, 300] {
        wait_until("the processes have settled calls", || {
            let settled = redis::cmd("GET").arg(PROGRESS_KEY).query::<Option<u64>>(&mut connection);
            settled.unwrap() >= Some(progress)
        });
        let mut killed = processes.remove(0);
        killed.kill().unwrap();
        killed.wait().unwrap();
    }
    for mut process in processes {
        assert!(process.wait().unwrap().success());
    }
    let store = RedisStore::open(&redis.address(), settings()).unwrap();
    let expected = ACTUAL_UNITS * u64::from(CALLS);
    assert_eq!(TestRequest::new(1).used(&store).await, [expected; 6]);
}
