//! Measures 200 concurrent callers. Slidegate's store coalesces their requests: waiting requests share one script call.
//! It is compared with scripts that are called once per request, on one shared connection.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use lab::program::BenchRun;
use lab::results::median;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use slidegate::clock::{Clock, SystemClock};
use slidegate::{Algorithm, Timestamp};
use slidegate_redis::{RedisSettings, RedisStore};
use tokio::runtime::{Builder, Runtime};

use crate::redis_server::RedisServer;
use crate::scripts::{
    BenchScript, DAY_S, SlidegateScripts, UnitRequest, plain_key, two_keys_with_caller_clock,
    two_keys_with_redis_clock,
};

const CALLERS: usize = 200;

/// The maximum of each limit. Half of the identities have reached it before a measurement. The others do not reach it.
const MAX: u64 = 1_000_000;

/// The units that each identity was charged in the previous window.
const UNITS_IN_PREVIOUS_WINDOW: u64 = 300;

/// The time between the charges of an identity before a measurement of `sliding_window`. It is longer than a tick.
const CHARGE_INTERVAL_US: u64 = 20_000;

/// The client through which the callers send their requests.
enum Client {
    /// Slidegate's store.
    Store(Arc<SlidegateScripts>, RedisStore),
    /// A script that is called once per request. Without a clock, Redis reads its own.
    SeparateCalls(Box<dyn BenchScript>, MultiplexedConnection, Option<SystemClock>),
}

impl Client {
    /// Requests one unit of an identity. Returns `true` if the request is allowed.
    async fn request_unit(&self, identity: usize) -> bool {
        match self {
            Self::Store(slidegate, store) => match slidegate.take_from_store(store, identity).await
            {
                Ok(allowed) => allowed,
                Err(error) => panic!("slidegate's store: {error}"),
            },
            Self::SeparateCalls(script, connection, clock) => {
                let now = clock.as_ref().map(Clock::now);
                let command = script.new_call_command(UnitRequest { identity, nth: 0, now });
                match command.query_async::<Value>(&mut connection.clone()).await {
                    Ok(reply) => script.reply_allows_request(&reply),
                    Err(error) => panic!("a script: {error}"),
                }
            }
        }
    }
}

/// A compared client with its own Redis server, with the clock of the caller and with the clock of Redis.
struct Contender {
    name: &'static str,
    server: RedisServer,
    /// The clients: with the clock of the caller, and with the clock of Redis.
    clients: [Arc<Client>; 2],
}

/// The clocks in the names of rows, in the order of the clients.
const CLOCKS: [&str; 2] = ["caller's clock", "TIME"];

impl Contender {
    /// Starts a server with clients that use slidegate's store without the denial cache.
    fn with_store(
        name: &'static str,
        runtime: &Runtime,
        scripts: &Arc<SlidegateScripts>,
    ) -> Result<Self, Box<dyn Error>> {
        let mut server = RedisServer::start()?;
        let _guard = runtime.enter();
        // The timeout is so long that a slow machine causes high latencies instead of failures.
        let timeout = Duration::from_secs(5);
        let settings = || RedisSettings {
            timeout,
            deny_cache_ttl: Duration::ZERO,
            ..RedisSettings::default()
        };
        let store = || RedisStore::open(&server.url(), settings());
        let client = |store| Arc::new(Client::Store(scripts.clone(), store));
        let clients = [client(store()?.with_clock(SystemClock::new())), client(store()?)];
        server.load_script(&scripts.single_limit_script())?;
        Ok(Self { name, server, clients })
    }

    /// Starts a server with clients that call these scripts once per request.
    fn with_separate_calls(
        name: &'static str,
        runtime: &Runtime,
        scripts: [Box<dyn BenchScript>; 2],
    ) -> Result<Self, Box<dyn Error>> {
        let mut server = RedisServer::start()?;
        for script in &scripts {
            server.load_script(&script.lua_source())?;
        }
        let connection = runtime.block_on(server.shared_connection())?;
        let [with_caller_clock, with_redis_clock] = scripts;
        let client =
            |script, clock| Arc::new(Client::SeparateCalls(script, connection.clone(), clock));
        let clients =
            [client(with_caller_clock, Some(SystemClock::new())), client(with_redis_clock, None)];
        Ok(Self { name, server, clients })
    }
}

/// The result of one turn, in which all callers send their requests through one contender.
#[derive(Clone, Copy)]
struct TurnResult {
    /// The CPU time of Redis per decision, in microseconds.
    cpu_us: f64,
    per_second: f64,
    p99_ms: f64,
}

/// Runs all callers, each with one request at a time. Half of the decisions must be denials.
fn run_turn(
    runtime: &Runtime,
    server: &mut RedisServer,
    client: &Arc<Client>,
    (identities, requests, seed): (usize, usize, u64),
) -> Result<TurnResult, Box<dyn Error>> {
    let (before_us, started) = (server.cpu_us()?, Instant::now());
    let callers: Vec<_> = (0..CALLERS)
        .map(|nth| {
            let client = client.clone();
            runtime.spawn(async move {
                let mut rng = fastrand::Rng::with_seed(seed * CALLERS as u64 + nth as u64);
                let mut results = Vec::with_capacity(requests / CALLERS);
                for _ in 0..requests / CALLERS {
                    let started = Instant::now();
                    let is_allowed = client.request_unit(rng.usize(0..identities)).await;
                    results.push((is_allowed, started.elapsed()));
                }
                results
            })
        })
        .collect();
    let (mut latencies_us, mut allowed) = (Histogram::<u64>::new(3)?, 0);
    for caller in callers {
        for (is_allowed, latency) in runtime.block_on(caller)? {
            allowed += usize::from(is_allowed);
            latencies_us.record(latency.as_micros() as u64)?;
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let decisions = latencies_us.len() as f64;
    let share = allowed as f64 / decisions;
    if !(0.4..0.6).contains(&share) {
        return Err(format!("{share} of the requests are allowed").into());
    }
    Ok(TurnResult {
        cpu_us: (server.cpu_us()? - before_us) / decisions,
        per_second: decisions / seconds,
        p99_ms: latencies_us.value_at_quantile(0.99) as f64 / 1e3,
    })
}

/// Measures the contenders in turns, with the clock at this index of [`CLOCKS`]. Returns the results of each contender,
/// one for each round.
fn take_turns(
    run: &BenchRun,
    runtime: &Runtime,
    contenders: &mut [Contender],
    identities: usize,
    clock: usize,
) -> Result<Vec<Vec<TurnResult>>, Box<dyn Error>> {
    let requests = run.effort.full_or_quick(20_000, 6_000);
    let mut results = vec![Vec::new(); contenders.len()];
    // The first round loads scripts and opens connections, so its results are dropped.
    for round in 0..=run.effort.full_or_quick(7, 3) {
        for (contender, results) in contenders.iter_mut().zip(&mut results) {
            let Contender { server, clients, .. } = contender;
            let result = run_turn(runtime, server, &clients[clock], (identities, requests, round))?;
            if round > 0 {
                results.push(result);
            }
        }
    }
    Ok(results)
}

/// The runtime of the callers has one thread, so that Redis has the other core of a machine with two cores.
fn new_runtime() -> Result<Runtime, Box<dyn Error>> {
    Ok(Builder::new_multi_thread().worker_threads(1).enable_all().build()?)
}

/// Measures `sliding_counter` with one limit and with three limits.
pub fn measure_one_and_three_limits(run: &mut BenchRun) -> Result<(), Box<dyn Error>> {
    let runtime = new_runtime()?;
    let (identities, count) = run.effort.full_or_quick((100_000, "100,000"), (10_000, "10,000"));
    for (name, windows) in [
        ("one limit", &[("d", DAY_S)][..]),
        ("three limits", &[("min", 60), ("h", 3_600), ("d", DAY_S)]),
    ] {
        let quotas: Vec<String> =
            windows.iter().map(|(window, _)| format!("{MAX}/{window}")).collect();
        let quotas: Vec<&str> = quotas.iter().map(String::as_str).collect();
        let new_scripts = || SlidegateScripts::new(&quotas, Algorithm::SlidingCounter);
        let slidegate = Arc::new(new_scripts()?);
        let separate: [Box<dyn BenchScript>; 2] =
            [Box::new(new_scripts()?), Box::new(new_scripts()?)];
        let mut contenders = vec![
            Contender::with_store("coalesced", &runtime, &slidegate)?,
            Contender::with_separate_calls("separate calls", &runtime, separate)?,
        ];
        let now = SystemClock::new().now();
        for contender in &mut contenders {
            contender.server.load_script(&slidegate.single_limit_script())?;
            contender
                .server
                .send_commands(new_charge_commands(&slidegate, identities, now, windows))?;
        }
        let mut loads = vec![(format!("{name}, {count} identities"), identities)];
        if let [_] = windows {
            let two_keys: [Box<dyn BenchScript>; 2] = [
                Box::new(two_keys_with_caller_clock(MAX)),
                Box::new(two_keys_with_redis_clock(MAX)),
            ];
            let mut two_keys =
                Contender::with_separate_calls("two-key script", &runtime, two_keys)?;
            two_keys.server.send_commands(new_two_key_commands(identities, now))?;
            contenders.push(two_keys);
            loads.push((format!("{name}, 10 identities"), 10));
        }
        for (name, identities) in loads {
            for (nth, clock) in CLOCKS.into_iter().enumerate() {
                let row = format!("{name}, {clock}");
                let results = take_turns(run, &runtime, &mut contenders, identities, nth)?;
                for (contender, rounds) in contenders.iter().zip(results) {
                    let value = |get: fn(&TurnResult) -> f64| median(rounds.iter().map(get));
                    run.record(
                        ["redis-callers-rate", &row, contender.name],
                        value(|turn| turn.per_second),
                    );
                    run.record(
                        ["redis-callers-cpu", &row, contender.name],
                        value(|turn| turn.cpu_us),
                    );
                    run.record(
                        ["redis-callers-p99", &row, contender.name],
                        value(|turn| turn.p99_ms),
                    );
                }
            }
        }
    }
    Ok(())
}

/// Compares `sliding_window` with `sliding_counter`, both coalesced. Before the measurement, each identity was charged
/// 1 or 30 times, each time in an entry of its own.
pub fn measure_sliding_window(run: &mut BenchRun) -> Result<(), Box<dyn Error>> {
    const IDENTITIES: usize = 10_000;
    let runtime = new_runtime()?;
    for entries in [1, 30] {
        let mut contenders = Vec::new();
        for algorithm in [Algorithm::default(), Algorithm::SlidingCounter] {
            let scripts = Arc::new(SlidegateScripts::new(&[&format!("{MAX}/d")], algorithm)?);
            let mut contender = Contender::with_store(algorithm.name(), &runtime, &scripts)?;
            let now_us = SystemClock::new().now().as_micros();
            contender.server.send_commands((0..IDENTITIES).flat_map(|identity| {
                let is_full = has_reached_limit(identity);
                let units = if is_full { MAX.div_ceil(entries) } else { MAX / 32 + 1 };
                let scripts = scripts.clone();
                (0..entries).map(move |nth| {
                    let at = Timestamp::from_micros(now_us - (entries - nth) * CHARGE_INTERVAL_US);
                    scripts.charge_command(identity, 0, units, at)
                })
            }))?;
            contenders.push(contender);
        }
        for (nth, clock) in CLOCKS.into_iter().enumerate() {
            let row = format!("{entries} entries, {clock}");
            let results = take_turns(run, &runtime, &mut contenders, IDENTITIES, nth)?;
            for (contender, rounds) in contenders.iter().zip(results) {
                let cpu_us = median(rounds.iter().map(|turn| turn.cpu_us));
                run.record(["redis-window-cpu", &row, contender.name], cpu_us);
            }
        }
    }
    Ok(())
}

/// Returns `true` if the identity has reached its limit before a measurement: half of all, and half of the first ten.
fn has_reached_limit(identity: usize) -> bool {
    matches!(identity % 4, 0 | 3)
}

/// Returns the commands that charge all identities in the previous and in the current window of each limit. Half of the
/// identities are charged up to the limit with the longest window.
fn new_charge_commands(
    slidegate: &SlidegateScripts,
    identities: usize,
    now: Timestamp,
    windows: &[(&str, u64)],
) -> impl Iterator<Item = Cmd> {
    (0..identities).flat_map(move |identity| {
        windows.iter().enumerate().flat_map(move |(nth, (_, window_s))| {
            let before = Timestamp::from_micros(now.as_micros() - window_s * 1_000_000);
            let is_full = has_reached_limit(identity) && nth == windows.len() - 1;
            let units = if is_full { MAX } else { 1 };
            [
                slidegate.charge_command(identity, nth, UNITS_IN_PREVIOUS_WINDOW, before),
                slidegate.charge_command(identity, nth, units, now),
            ]
        })
    })
}

/// Returns commands with the same charges for the two-key script, which keeps one count per window in a separate key.
fn new_two_key_commands(identities: usize, now: Timestamp) -> impl Iterator<Item = Cmd> {
    let number = now.as_micros() / (DAY_S * 1_000_000);
    (0..identities).flat_map(move |identity| {
        let units = if has_reached_limit(identity) { MAX } else { 1 };
        [(number - 1, UNITS_IN_PREVIOUS_WINDOW), (number, units)].map(|(number, count)| {
            let key = format!("{}:{number}", plain_key(identity));
            redis::cmd("SET").arg(key).arg(count).arg("EX").arg(2 * DAY_S).clone()
        })
    })
}
