//! Runs many concurrent callers as tasks of one program. Each caller waits for the response to its request before it
//! sends the next one.

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

/// Creates the tokio runtime of the callers. It has one worker thread, so that Redis has the other core of a machine
/// with two cores.
pub fn runtime() -> Result<Runtime, Box<dyn Error>> {
    Ok(Builder::new_multi_thread().worker_threads(1).enable_all().build()?)
}

/// The client through which the callers send their requests to Redis.
pub enum CallerBackend {
    /// Slidegate's store, which combines concurrent requests into shared script calls.
    Store { slidegate: Arc<SlidegateScripts>, store: RedisStore },
    /// A script that is called once per request. All calls use the same connection.
    SeparateCalls {
        script: Arc<dyn BenchScript>,
        connection: MultiplexedConnection,
        /// The clock whose time is sent with each request; `None` if Redis reads its own clock.
        clock: Option<SystemClock>,
    },
}

impl CallerBackend {
    /// Requests one unit of an identity. Returns `true` if the request is allowed.
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
                let command: Cmd = script.new_call_command(UnitRequest { identity, nth: 0, now });
                let reply: Value = match command.query_async(&mut connection.clone()).await {
                    Ok(reply) => reply,
                    Err(error) => panic!("a script: {error}"),
                };
                script.reply_allows_request(&reply)
            }
        }
    }
}

/// The load that all callers generate in one turn. The measured scripts take turns.
#[derive(Clone)]
pub struct CallerLoad {
    pub distribution: KeyDistribution,
    /// The number of requests of all callers together.
    pub requests: usize,
    /// The interval between two requests of a caller; `None` if each caller sends its next request right after the
    /// reply.
    pub interval: Option<Duration>,
    pub seed: u64,
}

/// The cost and the latencies of the requests of one turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadResult {
    /// The CPU time of the main threads of all Redis servers per request, in microseconds.
    pub cpu_us: f64,
    /// The median latency in milliseconds.
    pub p50_ms: f64,
    /// The 99th percentile of latencies in milliseconds.
    pub p99_ms: f64,
    /// The number of script calls that the servers executed.
    pub calls: f64,
    /// The number of requests of all callers.
    pub requests: f64,
    /// The share of denied requests, from 0 to 1.
    pub denied: f64,
    /// The number of requests per second.
    pub per_second: f64,
}

/// Returns the CPU time that all servers have used so far, in microseconds, and the number of script calls that they
/// have executed.
fn sum_cpu_time_and_script_calls(
    servers: &mut [RedisServer],
) -> Result<(f64, f64), Box<dyn Error>> {
    servers.iter_mut().try_fold((0.0, 0.0), |(cpu_us, calls), server| {
        Ok((cpu_us + server.cpu_us()?, calls + server.calls()?))
    })
}

/// Runs all callers until each of them has sent its share of the requests. Returns the measured cost and latencies.
pub fn run_callers(
    runtime: &Runtime,
    servers: &mut [RedisServer],
    backend: &Arc<CallerBackend>,
    load: &CallerLoad,
) -> Result<LoadResult, Box<dyn Error>> {
    let (before, started) = (sum_cpu_time_and_script_calls(servers)?, Instant::now());
    let callers: Vec<_> = (0..CALLERS)
        .map(|nth| runtime.spawn(send_requests_of_caller(nth, backend.clone(), load.clone())))
        .collect();
    let (mut denied, mut latencies) = (0, Vec::with_capacity(load.requests));
    for caller in callers {
        let (own_denied, own_latencies) = runtime.block_on(caller)?;
        denied += own_denied;
        latencies.extend(own_latencies);
    }
    let seconds = started.elapsed().as_secs_f64();
    let after = sum_cpu_time_and_script_calls(servers)?;
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

/// Sends the requests of one caller. Returns the number of denied requests, and the latency of each request.
async fn send_requests_of_caller(
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
