//! Many callers at once, as tasks of one program: each asks, waits for the answer, and asks again.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use lab::draw::Draw;
use quanta::Instant;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use slidegate::{Clock, SystemClock};
use slidegate_redis::RedisStore;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{MissedTickBehavior, interval_at};

use crate::course::Ask;
use crate::server::Server;
use crate::side::{Side, Slidegate};

/// How many callers.
pub const CALLERS: usize = 200;

/// What runs the callers: one thread, so that on two cores Redis has one of its own.
pub fn runtime() -> Result<Runtime, Box<dyn Error>> {
    Ok(Builder::new_multi_thread().worker_threads(1).enable_all().build()?)
}

/// How callers ask.
pub enum Asker {
    /// By slidegate's store.
    Store { slidegate: Arc<Slidegate>, store: RedisStore },
    /// By one call for each ask, all over one connection.
    EachAlone {
        side: Arc<dyn Side>,
        connection: MultiplexedConnection,
        /// None is Redis's own.
        clock: Option<SystemClock>,
    },
}

impl Asker {
    /// Whether one unit is admitted.
    pub async fn take(&self, who: usize) -> bool {
        match self {
            Self::Store { slidegate, store } => match slidegate.take_by(store, who).await {
                Ok(admitted) => admitted,
                Err(error) => panic!("slidegate's store: {error}"),
            },
            Self::EachAlone { side, connection, clock } => {
                let now = clock.as_ref().map(Clock::now);
                let command: Cmd = side.take(Ask { who, nth: 0, now });
                let answer: Value = match command.query_async(&mut connection.clone()).await {
                    Ok(answer) => answer,
                    Err(error) => panic!("a script: {error}"),
                };
                side.admits(&answer)
            }
        }
    }
}

/// What callers do in a turn.
#[derive(Clone)]
pub struct Errand {
    pub draw: Draw,
    /// Asks of all callers together.
    pub asks: usize,
    /// From one ask of a caller to its next; none: as soon as it is answered.
    pub every: Option<Duration>,
    pub seed: u64,
}

/// What a turn came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Course {
    /// Of the main threads of all servers, for one ask.
    pub cpu_us: f64,
    /// The half, and 99 in a hundred, were answered within these, in milliseconds.
    pub p50_ms: f64,
    pub p99_ms: f64,
    /// Script calls.
    pub calls: f64,
    pub asks: f64,
    pub denied: f64,
    pub per_second: f64,
}

/// CPU time of all servers in microseconds, and script calls.
fn spent(servers: &mut [Server]) -> Result<(f64, f64), Box<dyn Error>> {
    servers.iter_mut().try_fold((0.0, 0.0), |(cpu_us, calls), server| {
        Ok((cpu_us + server.cpu_us()?, calls + server.calls()?))
    })
}

/// Lets all callers ask.
pub fn turn(
    runtime: &Runtime,
    servers: &mut [Server],
    asker: &Arc<Asker>,
    errand: &Errand,
) -> Result<Course, Box<dyn Error>> {
    let (before, started) = (spent(servers)?, Instant::now());
    let callers: Vec<_> =
        (0..CALLERS).map(|nth| runtime.spawn(caller(nth, asker.clone(), errand.clone()))).collect();
    let (mut denied, mut waits) = (0, Vec::with_capacity(errand.asks));
    for caller in callers {
        let (own_denied, own_waits) = runtime.block_on(caller)?;
        denied += own_denied;
        waits.extend(own_waits);
    }
    let seconds = started.elapsed().as_secs_f64();
    let after = spent(servers)?;
    let (cpu_us, calls) = (after.0 - before.0, after.1 - before.1);
    waits.sort_unstable();
    let ms = |percent: usize| waits[(waits.len() - 1) * percent / 100].as_secs_f64() * 1e3;
    let asks = waits.len() as f64;
    Ok(Course {
        cpu_us: cpu_us / asks,
        p50_ms: ms(50),
        p99_ms: ms(99),
        calls,
        asks,
        denied: denied as f64 / asks,
        per_second: asks / seconds,
    })
}

/// How many asks of a caller were denied, and how long each took.
async fn caller(nth: usize, asker: Arc<Asker>, errand: Errand) -> (usize, Vec<Duration>) {
    let Errand { draw, asks, every, seed } = errand;
    let mut rng = fastrand::Rng::with_seed(seed * CALLERS as u64 + nth as u64);
    let mut ticks = every.map(|every| {
        let first = tokio::time::Instant::now() + every.mul_f64(nth as f64 / CALLERS as f64);
        let mut ticks = interval_at(first, every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        ticks
    });
    let (mut denied, mut waits) = (0, Vec::with_capacity(asks / CALLERS));
    for _ in 0..asks / CALLERS {
        if let Some(ticks) = &mut ticks {
            ticks.tick().await;
        }
        let started = Instant::now();
        denied += usize::from(!asker.take(draw.who(&mut rng)).await);
        waits.push(started.elapsed());
    }
    (denied, waits)
}
