//! Measures concurrent callers. Slidegate's store coalesces their requests: waiting requests share one script call. The
//! store is compared with scripts that are called once per request.

use std::error::Error;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use lab::key_distribution::KeyDistribution;
use lab::part::ReportPart;
use lab::table::MarkdownTable;
use lab::targets::{BenchTarget, TargetBound};
use redis::Cmd;
use slidegate::{Algorithm, Clock, SystemClock, Timestamp};
use slidegate_redis::{RedisStore, Settings};
use tokio::runtime::Runtime;

use crate::BenchScale;
use crate::caller_load::{CALLERS, CallerBackend, CallerLoad, LoadResult, run_callers, runtime};
use crate::rounds::median;
use crate::scripts::{
    BenchScript, DAY_S, SlidegateScripts, plain_key, two_keys_with_caller_clock,
    two_keys_with_redis_clock,
};
use crate::server::RedisServer;

const IDENTITY_COUNT: usize = 100_000;

/// The number of identities in the measurements with few identities.
const SMALL_IDENTITY_COUNT: usize = 10;

/// The maximum of each limit. Some identities have reached it before the measurement. The others do not reach it during
/// the measurement.
const MAX_UNITS_PER_WINDOW: u64 = 1_000_000;

/// The number of units that each identity is charged in the previous window, before the measurement.
const UNITS_CHARGED_IN_PREVIOUS_WINDOW: u64 = 300;

const REASON_FOR_CPU_RELATIVE_TO_SEPARATE_CALLS: &str = "the commands themselves: receiving 96 keys, an MGET of all \
    and a SET of half of them takes two fifths of the time of separate calls, without any decision; half of it is key \
    lookups (by a profile). A batch without decisions would reach 2.5. Tried without effect: SETRANGE, shorter \
    replies, one pack call for all replies, no garbage collection, an array of replies, code without tables for one limit. \
    For three limits, code without tables halves the instructions of a decision (78,200 to 37,700), of which receiving \
    a key takes 1,600, MGET 3,400, the slots 5,500, three decisions 11,500, the reply 5,700; but it makes separate calls \
    faster as well (89,800 to 59,000). Not kept: replies with a field less (-2,900), decisions without a function call \
    (-3,800).";

const MAX_P99_RELATIVE_TO_SEPARATE_CALLS: BenchTarget = BenchTarget {
    text: "200 coalesced callers, p99 relative to separate calls",
    bound: TargetBound::AtMost(0.9),
    limited_by: "the callers form two groups of about 97 that take turns, so a request waits for the call before its own. \
        The ratio of one row varies from 0.49 to 1.31 between quick runs of the same program. It is highest where \
        separate calls have nearly the same throughput. Tried: calls of at most 48 requests (0.85 to 1.30, fewer \
        decisions per CPU second), calls of up to 256 (0.66 to 1.09; no call has more than 99), and scripts with \
        fewer instructions for several limits.",
};

const MAX_CPU_RELATIVE_TO_TWO_KEY_SCRIPT: BenchTarget = BenchTarget {
    text: "200 callers, two-count window, CPU relative to the two-key script",
    bound: TargetBound::AtMost(0.45),
    limited_by: "the worst row varies between 0.41 and 0.46 between runs.",
};

/// Measures requests with one limit, and then requests with three limits.
pub fn run(scale: BenchScale, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    part.progress.add_steps(if scale.is_quick { 6 } else { 8 });
    part.add_text(format!(
        "### {CALLERS} concurrent callers\n\nThe callers are tasks of one program on one thread, each with one \
         request at a time. \"Coalesced\" is slidegate's store without the denial cache. \"Separate\" is the same \
         scripts with one call per request, all on one shared connection. The algorithm is sliding_counter, with \
         {IDENTITY_COUNT} identities or {SMALL_IDENTITY_COUNT}; about half of all requests are for identities that \
         have reached the limit. CPU is in microseconds per decision; latencies are in milliseconds."
    ));
    let runtime = runtime()?;
    let (mut table, mut two_keys) = (new_caller_comparison_table(), new_caller_comparison_table());
    measure_coalescing_with_one_limit(scale, &runtime, &mut table, &mut two_keys, part)?;
    if !scale.is_quick {
        measure_coalescing_with_three_limits(scale, &runtime, &mut table, part)?;
    }
    part.add_table(&table);
    part.add_text("Compared with the two-key script, with one call per request on one connection:");
    part.add_table(&two_keys);
    Ok(())
}

fn new_caller_comparison_table() -> MarkdownTable {
    MarkdownTable::new([
        "",
        "coalesced, us",
        "separate, us",
        "decisions per CPU second",
        "coalesced p50, ms",
        "separate p50, ms",
        "coalesced p99, ms",
        "separate p99, ms",
        "p99 ratio",
        "requests per call",
        "coalesced, per second",
        "separate, per second",
        "denied",
    ])
}

/// Returns `true` if the identity has reached its limit before the measurement. This is the case for half of the
/// frequent identities and for half of the rare identities.
fn identity_has_reached_limit(identity: usize) -> bool {
    matches!(identity % 4, 0 | 3)
}

/// A Redis server with two clients. One client sends the time of the caller. For the other client, Redis reads its own
/// clock.
pub struct ServerWithCallerAndRedisClockBackends {
    pub server: RedisServer,
    with_caller_clock: Arc<CallerBackend>,
    with_redis_clock: Arc<CallerBackend>,
}

impl ServerWithCallerAndRedisClockBackends {
    fn backend_for_clock(&self, uses_caller_clock: bool) -> &Arc<CallerBackend> {
        if uses_caller_clock { &self.with_caller_clock } else { &self.with_redis_clock }
    }

    /// Starts a server with two clients that use slidegate's store, which coalesces requests.
    pub fn start_with_coalesced_calls(
        runtime: &Runtime,
        slidegate: &Arc<SlidegateScripts>,
    ) -> Result<Self, Box<dyn Error>> {
        let server = RedisServer::start()?;
        let _runtime_guard = runtime.enter();
        // So long that a slow machine causes high latencies instead of failures.
        let timeout = Duration::from_secs(5);
        let store = || {
            let settings =
                Settings { timeout, deny_cache_ttl: Duration::ZERO, ..Settings::default() };
            RedisStore::open(&server.address(), settings)
        };
        let backend =
            |store| Arc::new(CallerBackend::Store { slidegate: slidegate.clone(), store });
        let with_caller_clock = backend(store()?.with_clock(SystemClock::new()));
        let with_redis_clock = backend(store()?);
        Ok(Self { with_caller_clock, with_redis_clock, server })
    }

    /// Starts a server with two clients that call their script once per request, without coalescing.
    fn start_with_separate_calls(
        runtime: &Runtime,
        with_caller_clock: Arc<dyn BenchScript>,
        with_redis_clock: Arc<dyn BenchScript>,
    ) -> Result<Self, Box<dyn Error>> {
        let mut server = RedisServer::start()?;
        server.load(&with_caller_clock.lua_source())?;
        server.load(&with_redis_clock.lua_source())?;
        let connection = runtime.block_on(server.shared_connection())?;
        let backend = |script, clock| {
            Arc::new(CallerBackend::SeparateCalls { script, connection: connection.clone(), clock })
        };
        let (with_caller_clock, with_redis_clock) =
            (backend(with_caller_clock, Some(SystemClock::new())), backend(with_redis_clock, None));
        Ok(Self { server, with_caller_clock, with_redis_clock })
    }
}

fn measure_coalescing_with_one_limit(
    scale: BenchScale,
    runtime: &Runtime,
    table: &mut MarkdownTable,
    two_keys: &mut MarkdownTable,
    part: &mut ReportPart,
) -> Result<(), Box<dyn Error>> {
    let quota = format!("{MAX_UNITS_PER_WINDOW}/d");
    let slidegate = Arc::new(SlidegateScripts::new(&[&quota], Algorithm::SlidingCounter)?);
    let mut contenders = [
        ServerWithCallerAndRedisClockBackends::start_with_coalesced_calls(runtime, &slidegate)?,
        ServerWithCallerAndRedisClockBackends::start_with_separate_calls(
            runtime,
            slidegate.clone(),
            slidegate.clone(),
        )?,
        ServerWithCallerAndRedisClockBackends::start_with_separate_calls(
            runtime,
            Arc::new(two_keys_with_caller_clock(MAX_UNITS_PER_WINDOW)),
            Arc::new(two_keys_with_redis_clock(MAX_UNITS_PER_WINDOW)),
        )?,
    ];
    let now = SystemClock::new().now();
    for contender in &mut contenders[..2] {
        contender.server.load(&slidegate.single_limit_script())?;
        contender.server.send_all(new_initial_charge_commands(&slidegate, now, &[DAY_S]))?;
    }
    contenders[2].server.send_all(new_initial_two_key_commands(now))?;
    for (name, distribution) in [
        ("uniform", KeyDistribution::Uniform(IDENTITY_COUNT)),
        ("Zipf", KeyDistribution::zipf(IDENTITY_COUNT)),
        ("10 identities", KeyDistribution::Uniform(SMALL_IDENTITY_COUNT)),
    ] {
        for uses_caller_clock in [true, false] {
            let name = format!("{name}, {}", clock_name(uses_caller_clock));
            part.progress.begin_step(&format!("{name}: {CALLERS} callers"));
            let is_few = matches!(distribution, KeyDistribution::Uniform(SMALL_IDENTITY_COUNT));
            let rounds = measure_contenders_in_rounds(
                scale,
                runtime,
                &mut contenders,
                &distribution,
                uses_caller_clock,
            )?;
            let comparison = compare_first_contender_with(&rounds, 1);
            add_comparison_row(&name, &comparison, table);
            comparison.compare_with_targets(
                if is_few { CoalescingScenario::OneOfFew } else { CoalescingScenario::One },
                part,
            );
            let two_keys_comparison = compare_first_contender_with(&rounds, 2);
            add_comparison_row(&name, &two_keys_comparison, two_keys);
            part.record_target(
                &MAX_CPU_RELATIVE_TO_TWO_KEY_SCRIPT,
                1.0 / two_keys_comparison.cpu_ratio,
            );
        }
    }
    Ok(())
}

fn measure_coalescing_with_three_limits(
    scale: BenchScale,
    runtime: &Runtime,
    table: &mut MarkdownTable,
    part: &mut ReportPart,
) -> Result<(), Box<dyn Error>> {
    let quotas = ["min", "h", "d"].map(|window| format!("{MAX_UNITS_PER_WINDOW}/{window}"));
    let quotas = quotas.each_ref().map(String::as_str);
    let slidegate = Arc::new(SlidegateScripts::new(&quotas, Algorithm::SlidingCounter)?);
    let mut contenders = [
        ServerWithCallerAndRedisClockBackends::start_with_coalesced_calls(runtime, &slidegate)?,
        ServerWithCallerAndRedisClockBackends::start_with_separate_calls(
            runtime,
            slidegate.clone(),
            slidegate.clone(),
        )?,
    ];
    let now = SystemClock::new().now();
    for contender in &mut contenders {
        contender.server.load(&slidegate.single_limit_script())?;
        contender.server.send_all(new_initial_charge_commands(
            &slidegate,
            now,
            &[60, 3600, DAY_S],
        ))?;
    }
    for uses_caller_clock in [true, false] {
        let name = format!("three limits, uniform, {}", clock_name(uses_caller_clock));
        part.progress.begin_step(&format!("{name}: {CALLERS} callers"));
        let distribution = KeyDistribution::Uniform(IDENTITY_COUNT);
        let rounds = measure_contenders_in_rounds(
            scale,
            runtime,
            &mut contenders,
            &distribution,
            uses_caller_clock,
        )?;
        let comparison = compare_first_contender_with(&rounds, 1);
        add_comparison_row(&name, &comparison, table);
        comparison.compare_with_targets(CoalescingScenario::Three, part);
    }
    Ok(())
}

/// Returns the name of the clock in tables.
pub fn clock_name(uses_caller_clock: bool) -> &'static str {
    if uses_caller_clock { "caller's clock" } else { "TIME" }
}

/// Returns the commands that charge all identities before a measurement, in the previous window and in the current
/// window. Identities for which [`identity_has_reached_limit`] returns `true` are charged up to the limit with the
/// longest window.
fn new_initial_charge_commands(
    slidegate: &SlidegateScripts,
    now: Timestamp,
    windows_s: &[u64],
) -> impl Iterator<Item = Cmd> {
    let last = windows_s.len() - 1;
    (0..IDENTITY_COUNT).flat_map(move |identity| {
        windows_s.iter().enumerate().flat_map(move |(nth, window_s)| {
            let before = Timestamp::from_micros(now.as_micros() - window_s * 1_000_000);
            let units = if identity_has_reached_limit(identity) && nth == last {
                MAX_UNITS_PER_WINDOW
            } else {
                1
            };
            [
                slidegate.charge_command(identity, nth, UNITS_CHARGED_IN_PREVIOUS_WINDOW, before),
                slidegate.charge_command(identity, nth, units, now),
            ]
        })
    })
}

/// Returns commands with the same charges as [`new_initial_charge_commands`], for the two-key script, which keeps one
/// count per window in a separate key.
fn new_initial_two_key_commands(now: Timestamp) -> impl Iterator<Item = Cmd> {
    let number = now.as_micros() / (DAY_S * 1_000_000);
    (0..IDENTITY_COUNT).flat_map(move |identity| {
        let units = if identity_has_reached_limit(identity) { MAX_UNITS_PER_WINDOW } else { 1 };
        [(number - 1, UNITS_CHARGED_IN_PREVIOUS_WINDOW), (number, units)].map(|(number, count)| {
            let mut command = redis::cmd("SET");
            let key = format!("{}:{number}", plain_key(identity));
            command.arg(key).arg(count).arg("EX").arg(2 * DAY_S);
            command
        })
    })
}

/// Runs rounds in which the contenders take turns. Returns the results of each round, one for each contender.
pub fn measure_contenders_in_rounds(
    scale: BenchScale,
    runtime: &Runtime,
    contenders: &mut [ServerWithCallerAndRedisClockBackends],
    distribution: &KeyDistribution,
    uses_caller_clock: bool,
) -> Result<Vec<Vec<LoadResult>>, Box<dyn Error>> {
    let mut rounds = Vec::new();
    // The first round loads scripts and opens connections.
    for nth in 0..=scale.caller_rounds {
        let distribution = distribution.clone();
        let load = CallerLoad {
            distribution,
            requests: scale.caller_requests,
            interval: None,
            seed: nth as u64,
        };
        let mut results = vec![LoadResult::default(); contenders.len()];
        // The first contender changes from round to round.
        for at in 0..contenders.len() {
            let at = (at + nth) % contenders.len();
            let contender = &mut contenders[at];
            let backend = contender.backend_for_clock(uses_caller_clock).clone();
            results[at] =
                run_callers(runtime, slice::from_mut(&mut contender.server), &backend, &load)?;
        }
        rounds.push(results);
    }
    Ok(rounds.split_off(1))
}

/// A kind of measurement: one limit with many identities, one limit with few identities, or three limits.
#[derive(Clone, Copy)]
enum CoalescingScenario {
    One,
    OneOfFew,
    Three,
}

impl CoalescingScenario {
    fn benchmark_target_name(self) -> &'static str {
        match self {
            Self::One => {
                "200 coalesced callers, decisions per CPU second relative to separate calls"
            }
            Self::OneOfFew => "200 coalesced callers, 10 identities, the same",
            Self::Three => "200 coalesced callers, three limits, the same",
        }
    }
}

/// The results of the first contender and of another contender, and their ratios. Each ratio is computed per round. All
/// values are medians of the rounds.
pub struct CallerComparison {
    pub own: LoadResult,
    pub other: LoadResult,
    /// The number of decisions per CPU second of the first contender, divided by the same number of the other
    /// contender.
    pub cpu_ratio: f64,
    /// The 99th percentile of the latencies of the first contender, divided by the same percentile of the other
    /// contender.
    p99_ratio: f64,
}

impl CallerComparison {
    fn compare_with_targets(&self, scenario: CoalescingScenario, part: &mut ReportPart) {
        let text = scenario.benchmark_target_name();
        let target = BenchTarget {
            text,
            bound: TargetBound::AtLeast(2.0),
            limited_by: REASON_FOR_CPU_RELATIVE_TO_SEPARATE_CALLS,
        };
        part.record_target(&target, self.cpu_ratio);
        part.record_target(&MAX_P99_RELATIVE_TO_SEPARATE_CALLS, self.p99_ratio);
    }
}

pub fn compare_first_contender_with(rounds: &[Vec<LoadResult>], other: usize) -> CallerComparison {
    let median_of =
        |value: &dyn Fn(&[LoadResult]) -> f64| median(rounds.iter().map(|round| value(round)));
    let result = |at: usize| LoadResult {
        cpu_us: median_of(&|round| round[at].cpu_us),
        p50_ms: median_of(&|round| round[at].p50_ms),
        p99_ms: median_of(&|round| round[at].p99_ms),
        calls: median_of(&|round| round[at].calls),
        requests: median_of(&|round| round[at].requests),
        denied: median_of(&|round| round[at].denied),
        per_second: median_of(&|round| round[at].per_second),
    };
    CallerComparison {
        own: result(0),
        other: result(other),
        cpu_ratio: median_of(&|round| round[other].cpu_us / round[0].cpu_us),
        p99_ratio: median_of(&|round| round[0].p99_ms / round[other].p99_ms),
    }
}

fn add_comparison_row(name: &str, comparison: &CallerComparison, table: &mut MarkdownTable) {
    let CallerComparison { own, other, cpu_ratio, p99_ratio } = comparison;
    let [own_rate, other_rate] = [own, other].map(|result| format!("{:.0}", result.per_second));
    table.add_row([
        name.to_owned(),
        format!("{:.1}", own.cpu_us),
        format!("{:.1}", other.cpu_us),
        format!("{cpu_ratio:.2}x"),
        format!("{:.2}", own.p50_ms),
        format!("{:.2}", other.p50_ms),
        format!("{:.2}", own.p99_ms),
        format!("{:.2}", other.p99_ms),
        format!("{p99_ratio:.2}x"),
        format!("{:.0}", own.requests / own.calls),
        own_rate,
        other_rate,
        format!("{:.2}, {:.2}", own.denied, other.denied),
    ]);
}
