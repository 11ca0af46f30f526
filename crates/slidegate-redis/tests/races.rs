//! Tests of several processes that charge one key concurrently. In total, a strict algorithm must allow exactly as many
//! units as the maximum of the limit.

use std::env;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use slidegate::clock::{Clock, SystemClock};
use slidegate::store::{Hit, Key, Scope, Value};
use slidegate::testkit::properties::max_units_in_window;
use slidegate::{Algorithm, Limit, Quota, Store, Timestamp};
use slidegate_redis::{RedisSettings, RedisStore};

use crate::server::{LONG, Redis, poll_until};

const PROCESS_COUNT: usize = 8;
const CONNECTIONS_PER_PROCESS: usize = 50;

/// Requests per connection. All connections together request eight times the maximum of the limit.
const REQUESTS_PER_CONNECTION: usize = 20;

const MAX_UNITS: u64 = 1_000;

/// A window so long that no unit leaves it during the test.
const ONE_DAY_WINDOW: Duration = Duration::from_secs(24 * 3_600);

/// Environment variables with the address, the algorithm and the clock skew for a started process.
const REDIS_ADDRESS_ENV_VAR: &str = "SLIDEGATE_RACES_ADDRESS";
const ALGORITHM_NUMBER_ENV_VAR: &str = "SLIDEGATE_RACES_ALGORITHM";
const CLOCK_SKEW_ENV_VAR: &str = "SLIDEGATE_RACES_SKEW_US";

/// Prefix of the line with which a process reports its allowed units.
const ALLOWED_UNITS_LINE_PREFIX: &str = "allowed in all: ";

/// The machine's clock with a constant offset.
struct SkewedClock {
    clock: SystemClock,
    micros: i64,
}

impl Clock for SkewedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.clock.now().as_micros().saturating_add_signed(self.micros))
    }
}

fn new_limit_with_algorithm_number(number: usize) -> Limit {
    Limit::new(Quota::new(MAX_UNITS, ONE_DAY_WINDOW).unwrap(), Algorithm::ALL[number]).unwrap()
}

/// The program of the processes that the tests below start. This function is not a test itself.
#[tokio::test]
#[ignore = "started by the other tests"]
async fn charge_units_in_racing_process() {
    let Ok(address) = env::var(REDIS_ADDRESS_ENV_VAR) else { return };
    let limit = new_limit_with_algorithm_number(
        env::var(ALGORITHM_NUMBER_ENV_VAR).unwrap().parse().unwrap(),
    );
    let skew: Option<i64> = env::var(CLOCK_SKEW_ENV_VAR).ok().map(|skew| skew.parse().unwrap());
    let stores: Vec<RedisStore> = (0..CONNECTIONS_PER_PROCESS)
        .map(|_| {
            let settings = RedisSettings {
                timeout: LONG,
                deny_cache_ttl: Duration::ZERO,
                ..RedisSettings::default()
            };
            let store = RedisStore::open(&address, settings).unwrap();
            match skew {
                Some(micros) => store.with_clock(SkewedClock { clock: SystemClock::new(), micros }),
                None => store,
            }
        })
        .collect();
    let scope = Scope::new("races", "rule", "limit", &["client"]);
    let key = Key::new(&scope, &[Value::Text("all")]);
    for store in &stores {
        let hit = Hit::new(key, &limit, 1);
        store.peek_async(&[hit]).await.unwrap();
    }
    wait_for_all_processes(&address).await;
    let mut takers = tokio::task::JoinSet::new();
    for store in stores {
        let scope = scope.clone();
        takers.spawn(async move {
            let key = Key::new(&scope, &[Value::Text("all")]);
            let hit = Hit::new(key, &limit, 1);
            let mut allowed = 0;
            for _ in 0..REQUESTS_PER_CONNECTION {
                allowed += u64::from(store.charge_async(&[hit]).await.unwrap().allowed);
            }
            allowed
        });
    }
    println!("{ALLOWED_UNITS_LINE_PREFIX}{}", takers.join_all().await.iter().sum::<u64>());
}

/// Waits until all processes are ready.
async fn wait_for_all_processes(address: &str) {
    let client = redis::Client::open(address).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let name = format!("ready:{}", std::process::id());
    let set = redis::cmd("SET").arg(name).arg("").arg("EX").arg(60).to_owned();
    set.exec_async(&mut connection).await.unwrap();
    poll_until("all processes are ready", LONG, async || {
        let ready: Vec<String> =
            redis::cmd("KEYS").arg("ready:*").query_async(&mut connection).await.unwrap();
        ready.len() == PROCESS_COUNT
    })
    .await;
}

fn spawn_racing_process(redis: &Redis, number: usize, skew: Option<i64>) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", "races::charge_units_in_racing_process", "--ignored", "--nocapture"])
        .env(REDIS_ADDRESS_ENV_VAR, redis.address())
        .env(ALGORITHM_NUMBER_ENV_VAR, number.to_string())
        .stdout(Stdio::piped());
    if let Some(skew) = skew {
        command.env(CLOCK_SKEW_ENV_VAR, skew.to_string());
    }
    command.spawn().unwrap()
}

/// Runs concurrent processes that charge one key. Returns the total number of units that they were allowed.
fn run_racing_processes(number: usize, is_skewed: bool) -> u64 {
    let redis = Redis::with_args(&["--maxclients", "2000"]);
    // From 200 ms slow to 200 ms fast.
    let skew = |nth: usize| (nth as i64 * 2 - 7) * 200_000 / 7;
    let processes: Vec<Child> = (0..PROCESS_COUNT)
        .map(|nth| spawn_racing_process(&redis, number, is_skewed.then(|| skew(nth))))
        .collect();
    let count = |child: Child| {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        let allowed = text.lines().find_map(|line| line.split_once(ALLOWED_UNITS_LINE_PREFIX));
        allowed.unwrap().1.parse::<u64>().unwrap()
    };
    let allowed = processes.into_iter().map(count).sum();
    let min_calls =
        (PROCESS_COUNT * CONNECTIONS_PER_PROCESS * (REQUESTS_PER_CONNECTION + 1)) as u64;
    let called = redis.calls_of("evalsha") + redis.calls_of("eval");
    assert!(called >= min_calls, "{called} calls: all requests must reach Redis");
    redis.assert_all_expire();
    allowed
}

/// Asserts that each algorithm allows the processes the right number of units. A strict algorithm must allow exactly
/// the maximum of the limit. Another algorithm must allow at least the maximum, and at most its own upper bound.
fn assert_racing_processes_get_limit_maximum(is_skewed: bool) {
    for (number, algorithm) in Algorithm::ALL.iter().enumerate() {
        let allowed = run_racing_processes(number, is_skewed);
        let most = match algorithm {
            Algorithm::SlidingLog | Algorithm::SlidingBuckets { .. } => MAX_UNITS,
            _ => max_units_in_window(&new_limit_with_algorithm_number(number)),
        };
        assert!((MAX_UNITS..=most).contains(&allowed), "{algorithm:?}: {allowed}, at most {most}");
    }
}

#[test]
fn processes_on_redis_clock_get_limit_maximum() {
    assert_racing_processes_get_limit_maximum(false);
}

#[test]
fn processes_with_skewed_clocks_get_limit_maximum() {
    assert_racing_processes_get_limit_maximum(true);
}
