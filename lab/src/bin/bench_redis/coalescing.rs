//! Concurrent callers with coalesced requests, compared with one call per request.

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

const KEYS: usize = 100_000;

const FEW_KEYS: usize = 10;

/// The limit, which no identity reaches during a run, except identities that are full from the start.
const MAX: u64 = 1_000_000;

/// The charges in the previous window.
const PREVIOUS: u64 = 300;

const CPU_LIMITED_BY: &str = "the commands themselves: receiving 96 keys, an MGET of all and a SET of half of them \
    takes two fifths of the time of separate calls, without any decision; half of it is key lookups (by a profile). \
    A batch without decisions would reach 2.5. Tried without effect: SETRANGE, shorter replies, one pack call for \
    all replies, no garbage collection.";

const P99_RATIO: BenchTarget = BenchTarget {
    text: "200 coalesced callers, p99 relative to separate calls",
    bound: TargetBound::AtMost(1.0),
    limited_by: "",
};

const TWO_KEYS_CPU_RATIO: BenchTarget = BenchTarget {
    text: "200 callers, two-count window, CPU relative to the two-key script",
    bound: TargetBound::AtMost(0.45),
    limited_by: "the worst row varies between 0.41 and 0.46 between runs.",
};

/// Measures one limit, then three limits.
pub fn run(scale: BenchScale, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    part.progress.add_steps(if scale.is_quick { 6 } else { 8 });
    part.add_text(format!(
        "### {CALLERS} concurrent callers\n\nThe callers are tasks of one program on one thread, each with one \
         request at a time. \"Coalesced\" is slidegate's store without the denial cache. \"Separate\" is the same \
         scripts with one call per request, all on one shared connection. The algorithm is sliding_window, with \
         {KEYS} identities or {FEW_KEYS}; about half of all requests are for identities that have reached the limit. \
         CPU is in microseconds per decision; latencies are in milliseconds."
    ));
    let runtime = runtime()?;
    let (mut table, mut two_keys) = (callers_table(), callers_table());
    one_limit(scale, &runtime, &mut table, &mut two_keys, part)?;
    if !scale.is_quick {
        three_limits(scale, &runtime, &mut table, part)?;
    }
    part.add_table(&table);
    part.add_text("Compared with the two-key script, with one call per request on one connection:");
    part.add_table(&two_keys);
    Ok(())
}

fn callers_table() -> MarkdownTable {
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

/// Returns whether an identity has reached its limit. The share is equal for frequent and rare identities.
fn is_full(identity: usize) -> bool {
    matches!(identity % 4, 0 | 3)
}

/// Callers of one server, by the caller's clock and by Redis's clock.
struct ClockedBackends {
    server: RedisServer,
    with_caller_clock: Arc<CallerBackend>,
    with_redis_clock: Arc<CallerBackend>,
}

impl ClockedBackends {
    fn backend(&self, uses_caller_clock: bool) -> &Arc<CallerBackend> {
        if uses_caller_clock { &self.with_caller_clock } else { &self.with_redis_clock }
    }

    /// Creates callers that use slidegate's store.
    fn coalesced(
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

    /// Creates callers that use these scripts, with one call per request.
    fn separate(
        runtime: &Runtime,
        with_caller_clock: Arc<dyn BenchScript>,
        with_redis_clock: Arc<dyn BenchScript>,
    ) -> Result<Self, Box<dyn Error>> {
        let mut server = RedisServer::start()?;
        server.load(&with_caller_clock.script())?;
        server.load(&with_redis_clock.script())?;
        let connection = runtime.block_on(server.shared_connection())?;
        let backend = |script, clock| {
            Arc::new(CallerBackend::SeparateCalls { script, connection: connection.clone(), clock })
        };
        let (with_caller_clock, with_redis_clock) =
            (backend(with_caller_clock, Some(SystemClock::new())), backend(with_redis_clock, None));
        Ok(Self { server, with_caller_clock, with_redis_clock })
    }
}

fn one_limit(
    scale: BenchScale,
    runtime: &Runtime,
    table: &mut MarkdownTable,
    two_keys: &mut MarkdownTable,
    part: &mut ReportPart,
) -> Result<(), Box<dyn Error>> {
    let quota = format!("{MAX}/d");
    let slidegate = Arc::new(SlidegateScripts::new(&[&quota], Algorithm::SlidingWindow)?);
    let mut contenders = [
        ClockedBackends::coalesced(runtime, &slidegate)?,
        ClockedBackends::separate(runtime, slidegate.clone(), slidegate.clone())?,
        ClockedBackends::separate(
            runtime,
            Arc::new(two_keys_with_caller_clock(MAX)),
            Arc::new(two_keys_with_redis_clock(MAX)),
        )?,
    ];
    let now = SystemClock::new().now();
    for contender in &mut contenders[..2] {
        contender.server.load(&slidegate.single_limit_script())?;
        contender.server.send_all(charge_commands(&slidegate, now, &[DAY_S]))?;
    }
    contenders[2].server.send_all(plain_charge_commands(now))?;
    for (name, distribution) in [
        ("uniform", KeyDistribution::Uniform(KEYS)),
        ("Zipf", KeyDistribution::zipf(KEYS)),
        ("10 identities", KeyDistribution::Uniform(FEW_KEYS)),
    ] {
        for uses_caller_clock in [true, false] {
            let name = format!("{name}, {}", clock_name(uses_caller_clock));
            part.progress.begin_step(&format!("{name}: {CALLERS} callers"));
            let is_few = matches!(distribution, KeyDistribution::Uniform(FEW_KEYS));
            let rounds =
                run_rounds(scale, runtime, &mut contenders, &distribution, uses_caller_clock)?;
            let comparison = compare_rounds(&rounds, 1);
            add_comparison_row(&name, &comparison, table);
            comparison
                .record_targets(if is_few { Scenario::OneOfFew } else { Scenario::One }, part);
            let two_keys_comparison = compare_rounds(&rounds, 2);
            add_comparison_row(&name, &two_keys_comparison, two_keys);
            part.record_target(&TWO_KEYS_CPU_RATIO, 1.0 / two_keys_comparison.cpu_ratio);
        }
    }
    Ok(())
}

fn three_limits(
    scale: BenchScale,
    runtime: &Runtime,
    table: &mut MarkdownTable,
    part: &mut ReportPart,
) -> Result<(), Box<dyn Error>> {
    let quotas = ["min", "h", "d"].map(|window| format!("{MAX}/{window}"));
    let quotas = quotas.each_ref().map(String::as_str);
    let slidegate = Arc::new(SlidegateScripts::new(&quotas, Algorithm::SlidingWindow)?);
    let mut contenders = [
        ClockedBackends::coalesced(runtime, &slidegate)?,
        ClockedBackends::separate(runtime, slidegate.clone(), slidegate.clone())?,
    ];
    let now = SystemClock::new().now();
    for contender in &mut contenders {
        contender.server.load(&slidegate.single_limit_script())?;
        contender.server.send_all(charge_commands(&slidegate, now, &[60, 3600, DAY_S]))?;
    }
    for uses_caller_clock in [true, false] {
        let name = format!("three limits, uniform, {}", clock_name(uses_caller_clock));
        part.progress.begin_step(&format!("{name}: {CALLERS} callers"));
        let distribution = KeyDistribution::Uniform(KEYS);
        let rounds = run_rounds(scale, runtime, &mut contenders, &distribution, uses_caller_clock)?;
        let comparison = compare_rounds(&rounds, 1);
        add_comparison_row(&name, &comparison, table);
        comparison.record_targets(Scenario::Three, part);
    }
    Ok(())
}

fn clock_name(uses_caller_clock: bool) -> &'static str {
    if uses_caller_clock { "caller's clock" } else { "TIME" }
}

/// Returns commands that charge all identities in the previous window and in the current one. In the current window,
/// full identities reach the limit with the longest window.
fn charge_commands(
    slidegate: &SlidegateScripts,
    now: Timestamp,
    windows_s: &[u64],
) -> impl Iterator<Item = Cmd> {
    let last = windows_s.len() - 1;
    (0..KEYS).flat_map(move |identity| {
        windows_s.iter().enumerate().flat_map(move |(nth, window_s)| {
            let before = Timestamp::from_micros(now.as_micros() - window_s * 1_000_000);
            let units = if is_full(identity) && nth == last { MAX } else { 1 };
            [
                slidegate.charge_command(identity, nth, PREVIOUS, before),
                slidegate.charge_command(identity, nth, units, now),
            ]
        })
    })
}

/// Returns the commands of [`charge_commands`] for the two-key script.
fn plain_charge_commands(now: Timestamp) -> impl Iterator<Item = Cmd> {
    let number = now.as_micros() / (DAY_S * 1_000_000);
    (0..KEYS).flat_map(move |identity| {
        let units = if is_full(identity) { MAX } else { 1 };
        [(number - 1, PREVIOUS), (number, units)].map(|(number, count)| {
            let mut command = redis::cmd("SET");
            let key = format!("{}:{number}", plain_key(identity));
            command.arg(key).arg(count).arg("EX").arg(2 * DAY_S);
            command
        })
    })
}

/// Runs rounds in which all contenders take turns.
fn run_rounds(
    scale: BenchScale,
    runtime: &Runtime,
    contenders: &mut [ClockedBackends],
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
            let backend = contender.backend(uses_caller_clock).clone();
            results[at] =
                run_callers(runtime, slice::from_mut(&mut contender.server), &backend, &load)?;
        }
        rounds.push(results);
    }
    Ok(rounds.split_off(1))
}

/// The limits and identities of a measurement.
#[derive(Clone, Copy)]
enum Scenario {
    One,
    OneOfFew,
    Three,
}

impl Scenario {
    fn target_text(self) -> &'static str {
        match self {
            Self::One => {
                "200 coalesced callers, decisions per CPU second relative to separate calls"
            }
            Self::OneOfFew => "200 coalesced callers, 10 identities, the same",
            Self::Three => "200 coalesced callers, three limits, the same",
        }
    }
}

/// The first contender compared with another one: medians of the rounds, and of their ratios.
struct Comparison {
    own: LoadResult,
    other: LoadResult,
    /// Decisions per CPU second, relative to the other contender.
    cpu_ratio: f64,
    /// The 99th percentile of latencies, relative to the other contender.
    p99_ratio: f64,
}

impl Comparison {
    fn record_targets(&self, scenario: Scenario, part: &mut ReportPart) {
        let text = scenario.target_text();
        let target =
            BenchTarget { text, bound: TargetBound::AtLeast(2.0), limited_by: CPU_LIMITED_BY };
        part.record_target(&target, self.cpu_ratio);
        part.record_target(&P99_RATIO, self.p99_ratio);
    }
}

fn compare_rounds(rounds: &[Vec<LoadResult>], other: usize) -> Comparison {
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
    Comparison {
        own: result(0),
        other: result(other),
        cpu_ratio: median_of(&|round| round[other].cpu_us / round[0].cpu_us),
        p99_ratio: median_of(&|round| round[0].p99_ms / round[other].p99_ms),
    }
}

fn add_comparison_row(name: &str, comparison: &Comparison, table: &mut MarkdownTable) {
    let Comparison { own, other, cpu_ratio, p99_ratio } = comparison;
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
