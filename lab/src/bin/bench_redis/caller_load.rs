//! Many concurrent callers as tasks of one program. Each caller has one request at a time.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use lab::key_distribution::KeyDistribution;
use quanta::Instant;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use slidegate::{Clock, SystemClock};
use slidegate_redis::RedisStore;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{MissedTickBehavior, interval_at};

use crate::request_sequence::UnitRequest;
use crate::scripts::{BenchScript, SlidegateScripts};
use crate::server::RedisServer;

/// The number of concurrent callers.
pub const CALLERS: usize = 200;

/// Returns the runtime of the callers. It has one thread, so that on two cores Redis has the other core.
pub fn runtime() -> Result<Runtime, Box<dyn Error>> {
    Ok(Builder::new_multi_thread().worker_threads(1).enable_all().build()?)
}

/// The Redis client of the callers.
pub enum CallerBackend {
    /// slidegate's store.
    Store { slidegate: Arc<SlidegateScripts>, store: RedisStore },
    /// One script call per request, all on one connection.
    SeparateCalls {
        script: Arc<dyn BenchScript>,
        connection: MultiplexedConnection,
        /// The caller's clock; `None` for Redis's clock.
        clock: Option<SystemClock>,
    },
}

impl CallerBackend {
    /// Charges one unit to an identity. Returns whether it is admitted.
    pub async fn take(&self, identity: usize) -> bool {
        match self {
            Self::Store { slidegate, store } => {
                match slidegate.take_from_store(store, identity).await {
                    Ok(admitted) => admitted,
                    Err(error) => panic!("slidegate's store: {error}"),
                }
            }
            Self::SeparateCalls { script, connection, clock } => {
                let now = clock.as_ref().map(Clock::now);
                let command: Cmd = script.command(UnitRequest { identity, nth: 0, now });
                let reply: Value = match command.query_async(&mut connection.clone()).await {
                    Ok(reply) => reply,
                    Err(error) => panic!("a script: {error}"),
                };
                script.is_admitted(&reply)
            }
        }
    }
}

/// The requests of all callers in a turn.
#[derive(Clone)]
pub struct CallerLoad {
    pub distribution: KeyDistribution,
    /// The number of requests of all callers together.
    pub requests: usize,
    /// The interval between the requests of a caller; `None` to send the next request after each reply.
    pub interval: Option<Duration>,
    pub seed: u64,
}

/// The result of a turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadResult {
    /// CPU time of the main threads of all servers per request, in microseconds.
    pub cpu_us: f64,
    /// The median latency in milliseconds.
    pub p50_ms: f64,
    /// The 99th percentile of latencies in milliseconds.
    pub p99_ms: f64,
    /// The number of script calls.
    pub calls: f64,
    /// The number of requests.
    pub requests: f64,
    /// The share of denied requests.
    pub denied: f64,
    /// Requests per second.
    pub per_second: f64,
}

/// Returns the CPU time of all servers in microseconds, and the number of script calls.
fn server_usage(servers: &mut [RedisServer]) -> Result<(f64, f64), Box<dyn Error>> {
    servers.iter_mut().try_fold((0.0, 0.0), |(cpu_us, calls), server| {
        Ok((cpu_us + server.cpu_us()?, calls + server.calls()?))
    })
}

/// Runs all callers until they have sent their requests.
pub fn run_callers(
    runtime: &Runtime,
    servers: &mut [RedisServer],
    backend: &Arc<CallerBackend>,
    load: &CallerLoad,
) -> Result<LoadResult, Box<dyn Error>> {
    let (before, started) = (server_usage(servers)?, Instant::now());
    let callers: Vec<_> = (0..CALLERS)
        .map(|nth| runtime.spawn(run_caller(nth, backend.clone(), load.clone())))
        .collect();
    let (mut denied, mut latencies) = (0, Vec::with_capacity(load.requests));
    for caller in callers {
        let (own_denied, own_latencies) = runtime.block_on(caller)?;
        denied += own_denied;
        latencies.extend(own_latencies);
    }
    let seconds = started.elapsed().as_secs_f64();
    let after = server_usage(servers)?;
    let (cpu_us, calls) = (after.0 - before.0, after.1 - before.1);
    latencies.sort_unstable();
    let ms = |percent: usize| latencies[(latencies.len() - 1) * percent / 100].as_secs_f64() * 1e3;
    let requests = latencies.len() as f64;
    Ok(LoadResult {
        cpu_us: cpu_us / requests,
        p50_ms: ms(50),
        p99_ms: ms(99),
        calls,
        requests,
        denied: denied as f64 / requests,
        per_second: requests / seconds,
    })
}

/// Runs one caller. Returns the number of denials, and the latency of each request.
async fn run_caller(
    nth: usize,
    backend: Arc<CallerBackend>,
    load: CallerLoad,
) -> (usize, Vec<Duration>) {
    let CallerLoad { distribution, requests, interval, seed } = load;
    let mut rng = fastrand::Rng::with_seed(seed * CALLERS as u64 + nth as u64);
    let mut ticks = interval.map(|interval| {
        let first = tokio::time::Instant::now() + interval.mul_f64(nth as f64 / CALLERS as f64);
        let mut ticks = interval_at(first, interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        ticks
    });
    let (mut denied, mut latencies) = (0, Vec::with_capacity(requests / CALLERS));
    for _ in 0..requests / CALLERS {
        if let Some(ticks) = &mut ticks {
            ticks.tick().await;
        }
        let started = Instant::now();
        denied += usize::from(!backend.take(distribution.sample(&mut rng)).await);
        latencies.push(started.elapsed());
    }
    (denied, latencies)
}
