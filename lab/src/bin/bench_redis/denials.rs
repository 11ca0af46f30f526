//! Measures the effect of the denial cache, which repeats denials without a call to Redis. A few identities send
//! requests far above their limit.

use std::error::Error;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use lab::key_distribution::KeyDistribution;
use lab::part::ReportPart;
use lab::table::MarkdownTable;
use lab::targets::{BenchTarget, TargetBound};
use slidegate::{Algorithm, ManualClock, Timestamp};
use slidegate_redis::{RedisStore, Settings};
use tokio::runtime::Runtime;

use crate::BenchScale;
use crate::caller_load::{CALLERS, CallerBackend, CallerLoad, LoadResult, run_callers, runtime};
use crate::request_sequence::UnitRequest;
use crate::scripts::{BenchScript, SlidegateScripts};
use crate::server::RedisServer;

const IDENTITY_COUNT: usize = 10;

/// The start time of the measurement, in seconds since the Unix epoch. It is also the start of a window.
const START_TIME_S: u64 = 500_000 * 3600;

/// The measured request rates, as multiples of the limit. Each rate has a target: the minimum factor by which the
/// denial cache reduces the calls of Redis, and the text of the target.
const REQUEST_RATES_WITH_TARGETS: [(u64, f64, &str); 2] = [
    (20, 10.0, "denial cache, 95 % denied, reduction of calls"),
    (100, 40.0, "denial cache, 99 % denied, reduction of calls"),
];

const MAX_DECISIONS_CHANGED_BY_DENIAL_CACHE: BenchTarget = BenchTarget {
    text: "denial cache, different decisions",
    bound: TargetBound::AtMost(0.0),
    limited_by: "",
};

/// Measures one caller with a manual clock, and then many callers that send requests at a constant rate.
pub fn run(scale: BenchScale, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    part.progress.add_steps(9 + REQUEST_RATES_WITH_TARGETS.len());
    part.add_text(format!(
        "### Denial cache\n\n{IDENTITY_COUNT} identities send requests at a constant rate of 20 or 100 times the limit. One \
         caller has one request at a time, with a manual clock that advances between requests; {} requests are sent \
         after the windows are full. A store that caches denials for a second and a store that calls Redis each time \
         receive the same requests, each with a separate redis-server. The rows of 600/h have no target, since a \
         unit takes longer than a second to become available.",
        scale.denial_requests
    ));
    let runtime = runtime()?;
    let mut table = MarkdownTable::new([
        "",
        "denied",
        "requests",
        "calls without cache",
        "calls with cache",
        "reduction",
        "different decisions",
    ]);
    for algorithm in [
        Algorithm::SlidingCounter,
        Algorithm::SlidingLog,
        Algorithm::TokenBucket { burst: None, max_debt: None },
    ] {
        for (max, window, window_s) in [(100, "s", 1), (600, "min", 60), (600, "h", 3600)] {
            let case = DenialCacheBenchCase { algorithm, max, window, window_s };
            measure_denial_cache_with_one_caller(scale, &runtime, &case, &mut table, part)?;
        }
    }
    part.add_table(&table);
    measure_denial_cache_with_many_callers(scale, &runtime, part)
}

/// A limit with which the denial cache is measured.
struct DenialCacheBenchCase {
    algorithm: Algorithm,
    max: u64,
    window: &'static str,
    window_s: u64,
}

impl DenialCacheBenchCase {
    fn quota_text(&self) -> String {
        format!("{}/{}", self.max, self.window)
    }

    /// Returns an interval between requests, in microseconds. At this interval, all identities together use exactly
    /// their limits.
    fn request_interval_at_limit_us(&self) -> u64 {
        self.window_s * 1_000_000 / (self.max * IDENTITY_COUNT as u64)
    }
}

/// A store with a Redis server that only this store uses.
struct StoreWithOwnRedisServer {
    server: RedisServer,
    store: RedisStore,
}

impl StoreWithOwnRedisServer {
    fn new(deny_cache_ttl: Duration, clock: &ManualClock) -> Result<Self, Box<dyn Error>> {
        let server = RedisServer::start()?;
        let settings = Settings { deny_cache_ttl, ..new_store_settings() };
        let store = RedisStore::open(&server.address(), settings)?.with_clock(clock.clone());
        Ok(Self { server, store })
    }
}

/// Returns store settings for the measurement. The timeout is long, for slow machines. Counters are kept for an
/// additional day, because Redis expires keys by real time while the manual clock hardly advances.
fn new_store_settings() -> Settings {
    let (timeout, expiry_margin) = (Duration::from_secs(5), Duration::from_secs(86_400));
    Settings { timeout, expiry_margin, ..Settings::default() }
}

fn measure_denial_cache_with_one_caller(
    scale: BenchScale,
    runtime: &Runtime,
    case: &DenialCacheBenchCase,
    table: &mut MarkdownTable,
    part: &mut ReportPart,
) -> Result<(), Box<dyn Error>> {
    let slidegate = SlidegateScripts::with_settings(
        &[&case.quota_text()],
        case.algorithm,
        &new_store_settings(),
    )?;
    let name = format!("{}, {}", case.algorithm.name(), case.quota_text());
    part.progress.begin_step(&format!("{name}: one caller"));
    for (request_ratio, min_reduction, text) in REQUEST_RATES_WITH_TARGETS {
        let _runtime_guard = runtime.enter();
        let clock = ManualClock::at(Timestamp::from_secs(START_TIME_S));
        let mut contenders = [
            StoreWithOwnRedisServer::new(Duration::ZERO, &clock)?,
            StoreWithOwnRedisServer::new(new_store_settings().deny_cache_ttl, &clock)?,
        ];
        for contender in &mut contenders {
            exhaust_all_limits(contender, &slidegate, case)?;
        }
        clock.advance(Duration::from_secs(2 * case.window_s));
        let before = [contenders[0].server.calls()?, contenders[1].server.calls()?];
        let step =
            Duration::from_nanos(case.request_interval_at_limit_us() * 1_000 / request_ratio);
        let (denied, differing) = runtime.block_on(compare_decisions_of_stores(
            &slidegate,
            &contenders,
            &clock,
            scale.denial_requests,
            step,
        ))?;
        let [without, with] = [0, 1].map(|at: usize| contenders[at].server.calls());
        let [without, with] = [without? - before[0], with? - before[1]];
        table.add_row([
            name.clone(),
            format!("{:.3}", denied as f64 / scale.denial_requests as f64),
            scale.denial_requests.to_string(),
            without.to_string(),
            with.to_string(),
            format!("{:.1}", without / with),
            differing.to_string(),
        ]);
        if case.window_s < 3600 {
            let target =
                BenchTarget { text, bound: TargetBound::AtLeast(min_reduction), limited_by: "" };
            part.record_target(&target, without / with);
        }
        part.record_target(&MAX_DECISIONS_CHANGED_BY_DENIAL_CACHE, differing as f64);
    }
    Ok(())
}

/// Charges all identities up to their limits at once, and then sends requests at the rate of the limits for two
/// windows.
fn exhaust_all_limits(
    contender: &mut StoreWithOwnRedisServer,
    slidegate: &SlidegateScripts,
    case: &DenialCacheBenchCase,
) -> Result<(), Box<dyn Error>> {
    contender.server.load(&slidegate.lua_source())?;
    let start = Timestamp::from_secs(START_TIME_S);
    let spent =
        (0..IDENTITY_COUNT).map(|identity| slidegate.charge_command(identity, 0, case.max, start));
    let requests = 2 * case.max * IDENTITY_COUNT as u64;
    let even = (0..requests).map(|nth| {
        let now = start.after(Duration::from_micros(nth * case.request_interval_at_limit_us()));
        slidegate.new_call_command(UnitRequest {
            identity: nth as usize % IDENTITY_COUNT,
            nth,
            now: Some(now),
        })
    });
    contender.server.send_all(spent.chain(even))
}

/// Sends the same requests to a store without the denial cache and to a store with it. Returns the number of requests
/// that the first store denied, and the number of requests on which the two stores decided differently.
async fn compare_decisions_of_stores(
    slidegate: &SlidegateScripts,
    [without, with]: &[StoreWithOwnRedisServer; 2],
    clock: &ManualClock,
    requests: usize,
    step: Duration,
) -> Result<(usize, usize), Box<dyn Error>> {
    let mut rng = fastrand::Rng::with_seed(1);
    let (mut denied, mut differing) = (0, 0);
    for _ in 0..requests {
        let identity = rng.usize(0..IDENTITY_COUNT);
        let admitted = slidegate.take_from_store(&without.store, identity).await?;
        let same = slidegate.take_from_store(&with.store, identity).await? == admitted;
        denied += usize::from(!admitted);
        differing += usize::from(!same);
        clock.advance(step);
    }
    Ok((denied, differing))
}

/// Measures many concurrent callers that send requests at a constant rate, with and without the denial cache. In both
/// cases, waiting requests share script calls.
fn measure_denial_cache_with_many_callers(
    scale: BenchScale,
    runtime: &Runtime,
    part: &mut ReportPart,
) -> Result<(), Box<dyn Error>> {
    part.add_text(format!(
        "{CALLERS} concurrent callers in real time, by TIME, sliding_counter of 20/s: requests are coalesced without \
         the cache, too. These rows have no target."
    ));
    let mut table = MarkdownTable::new([
        "",
        "denied",
        "requests",
        "calls without cache",
        "calls with cache",
        "reduction",
        "CPU without cache, us",
        "CPU with cache, us",
        "reduction",
    ]);
    let slidegate = Arc::new(SlidegateScripts::new(&["20/s"], Algorithm::SlidingCounter)?);
    for (request_ratio, _, _) in REQUEST_RATES_WITH_TARGETS {
        let per_second = 20 * IDENTITY_COUNT as u64 * request_ratio;
        part.progress.begin_step(&format!("{CALLERS} callers, {per_second} requests per second"));
        let interval = Duration::from_secs(1) * CALLERS as u32 / per_second as u32;
        let results = [Duration::ZERO, new_store_settings().deny_cache_ttl].map(|deny_cache_ttl| {
            let _runtime_guard = runtime.enter();
            let mut server = RedisServer::start()?;
            let store = RedisStore::open(
                &server.address(),
                Settings { deny_cache_ttl, ..new_store_settings() },
            )?;
            let backend = Arc::new(CallerBackend::Store { slidegate: slidegate.clone(), store });
            let load = |seconds: u64, seed| CallerLoad {
                distribution: KeyDistribution::Uniform(IDENTITY_COUNT),
                requests: (per_second * seconds) as usize,
                interval: Some(interval),
                seed,
            };
            run_callers(runtime, slice::from_mut(&mut server), &backend, &load(2, 0))?;
            run_callers(
                runtime,
                slice::from_mut(&mut server),
                &backend,
                &load(scale.denial_seconds, 1),
            )
        });
        let [without, with]: [Result<LoadResult, Box<dyn Error>>; 2] = results;
        let (without, with) = (without?, with?);
        table.add_row([
            format!("{per_second} requests per second"),
            format!("{:.3}, {:.3}", without.denied, with.denied),
            format!("{:.0}", without.requests),
            format!("{:.0}", without.calls),
            format!("{:.0}", with.calls),
            format!("{:.1}", without.calls / with.calls),
            format!("{:.2}", without.cpu_us),
            format!("{:.2}", with.cpu_us),
            format!("{:.1}", without.cpu_us / with.cpu_us),
        ]);
    }
    part.add_table(&table);
    Ok(())
}
