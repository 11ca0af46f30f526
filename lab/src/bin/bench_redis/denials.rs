//! Measures the calls that the denial cache saves. Ten identities send requests far above their limit.

use std::error::Error;
use std::time::Duration;

use lab::program::BenchRun;
use slidegate::{Algorithm, ManualClock, Timestamp};
use slidegate_redis::{RedisSettings, RedisStore};
use tokio::runtime::Builder;

use crate::redis_server::RedisServer;
use crate::scripts::{BenchScript, SlidegateScripts, UnitRequest};

const IDENTITIES: usize = 10;

/// The time of the first charges: the start of a window.
const START: Timestamp = Timestamp::from_secs(500_000 * 3_600);

/// Measures one caller with a manual clock, which advances between requests. Records the number of requests per call.
pub fn run(run: &mut BenchRun) -> Result<(), Box<dyn Error>> {
    for algorithm in [
        Algorithm::SlidingCounter,
        Algorithm::SlidingLog,
        Algorithm::TokenBucket { burst: None, max_debt: None },
    ] {
        for (quota, max, window_s) in [("100/s", 100, 1), ("600/min", 600, 60)] {
            for (request_ratio, column) in [(20, "95 % denied"), (100, "99 % denied")] {
                let interval_at_limit_us = window_s * 1_000_000 / (max * IDENTITIES as u64);
                let case = Case { quota, max, window_s, interval_at_limit_us, request_ratio };
                let requests = run.effort.full_or_quick(10_000, 2_000);
                let calls = case.count_calls(algorithm, requests)?;
                let row = format!("{}, {quota}", algorithm.name());
                run.record(["redis-denial-cache", &row, column], requests as f64 / calls);
            }
        }
    }
    Ok(())
}

struct Case {
    quota: &'static str,
    max: u64,
    window_s: u64,
    /// The interval between requests of all identities at which they use exactly their limits.
    interval_at_limit_us: u64,
    /// The request rate relative to the limit.
    request_ratio: u64,
}

impl Case {
    /// Fills the windows of all identities, and then sends requests. Returns the number of script calls.
    fn count_calls(&self, algorithm: Algorithm, requests: usize) -> Result<f64, Box<dyn Error>> {
        // The timeout is long, for slow machines. Redis expires keys by real time, while the manual clock hardly
        // advances, so counters are kept for an additional day.
        let (timeout, expiry_margin) = (Duration::from_secs(5), Duration::from_secs(86_400));
        let settings = RedisSettings { timeout, expiry_margin, ..RedisSettings::default() };
        let scripts = SlidegateScripts::with_settings(&[self.quota], algorithm, &settings)?;
        let mut server = RedisServer::start()?;
        server.load_script(&scripts.lua_source())?;
        let spent =
            (0..IDENTITIES).map(|identity| scripts.charge_command(identity, 0, self.max, START));
        let evenly_spread = (0..2 * self.max * IDENTITIES as u64).map(|nth| {
            let now = START.after(Duration::from_micros(nth * self.interval_at_limit_us));
            let identity = nth as usize % IDENTITIES;
            scripts.new_call_command(UnitRequest { identity, nth, now: Some(now) })
        });
        server.send_commands(spent.chain(evenly_spread))?;

        let runtime = Builder::new_current_thread().enable_all().build()?;
        let _guard = runtime.enter();
        let clock = ManualClock::at(START.after(Duration::from_secs(2 * self.window_s)));
        let store = RedisStore::open(&server.url(), settings)?.with_clock(clock.clone());
        let before = server.calls()?;
        let step = Duration::from_nanos(self.interval_at_limit_us * 1_000 / self.request_ratio);
        let mut rng = fastrand::Rng::with_seed(1);
        runtime.block_on(async {
            for _ in 0..requests {
                scripts.take_from_store(&store, rng.usize(0..IDENTITIES)).await?;
                clock.advance(step);
            }
            Ok::<_, Box<dyn Error>>(())
        })?;
        Ok(server.calls()? - before)
    }
}
