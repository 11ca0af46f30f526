//! Measures `sliding_window`, which keeps a compacted log, compared with `sliding_counter`, which keeps two counts.
//!
//! Both are measured with one script call per request and with coalesced requests, each with the clock of the caller and
//! with the clock of Redis. The size of the value of a full key is also measured.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use lab::accuracy::MIDNIGHT_US;
use lab::arrivals::ArrivalPattern;
use lab::key_distribution::KeyDistribution;
use lab::part::ReportPart;
use lab::table::MarkdownTable;
use lab::targets::{BenchTarget, TargetBound};
use redis::Cmd;
use slidegate::{Algorithm, Clock, SystemClock, Timestamp};

use crate::BenchScale;
use crate::caller_load::{CALLERS, runtime};
use crate::coalescing::{
    ServerWithCallerAndRedisClockBackends, clock_name, compare_first_contender_with,
    measure_contenders_in_rounds,
};
use crate::request_sequence::{RequestSequence, UnitRequest};
use crate::rounds::{PIPELINED, SINGLE, ScriptServer, ScriptServerPair, TurnPlan, compare};
use crate::scripts::{BenchScript, SlidegateScripts};
use crate::server::RedisServer;

const ONE_HOUR: Duration = Duration::from_secs(3600);

/// The maximums of the limits in the measurement with one call per request.
const MAXES: [usize; 2] = [100, 1_000];

/// The maximum with the targets for the size of the value.
const MAX_WITH_SIZE_TARGET: usize = 1_000;

/// The time of the first request, by the clock of the caller. It is in the future, so that no key expires during a run.
const START_TIME: Timestamp = Timestamp::from_secs(1_800_000_000);

/// The average rates of the Poisson arrivals, relative to the limit.
const POISSON_LOADS: [u64; 2] = [1, 2];

/// The number of windows in which each identity sends requests at random times.
const POISSON_WINDOWS: u64 = 3;

/// The number of identities of the measurements in real time: with the clock of Redis, and with coalesced requests.
const REAL_TIME_IDENTITY_COUNT: usize = 10_000;

/// The maximum of the limit of the measurements in real time. The window is a day, so that no unit leaves during a run.
const REAL_TIME_MAX: u64 = 1_000_000;

/// The numbers of entries of an identity before the measurements in real time.
const REAL_TIME_ENTRIES: [u64; 2] = [1, 30];

/// The time between the charges of an identity before the measurements in real time. It is longer than a tick, and so
/// short that all charges are in the current window of `sliding_counter`.
const CHARGE_INTERVAL_US: u64 = 20_000;

const MAX_CPU_RELATIVE_TO_COUNTER: BenchTarget = BenchTarget {
    text: "sliding_window, one call per request, CPU relative to sliding_counter",
    bound: TargetBound::AtMost(1.25),
    limited_by: "with a max of 100 and pipelines of 16, the ratio is 1.25: every fourth charge begins a new entry and \
        writes the whole value.",
};

const MAX_COALESCED_CPU_RELATIVE_TO_COUNTER: BenchTarget = BenchTarget {
    text: "sliding_window, 200 coalesced callers, CPU relative to sliding_counter",
    bound: TargetBound::AtMost(1.25),
    limited_by: "with 30 entries, Lua interns values of 211 bytes. It hashes every seventh byte of them, so similar \
        values have the same hash and are compared with each other: by callgrind a fifth of all instructions, and a \
        tenth with one entry. With one entry the ratio is 1.14.",
};

const MAX_VALUE_BYTES: BenchTarget = BenchTarget {
    text: "sliding_window of 1,000, largest value of a full key, bytes",
    bound: TargetBound::AtMost(250.0),
    limited_by: "",
};

const MAX_VALUE_BYTES_WITH_POISSON_ARRIVALS: BenchTarget = BenchTarget {
    text: "sliding_window of 1,000, largest value of a key with Poisson arrivals, bytes",
    bound: MAX_VALUE_BYTES.bound,
    limited_by: "",
};

/// Measures both forms of calls, and adds the tables to the report.
pub fn run(scale: BenchScale, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    part.progress.add_steps(2 * MAXES.len() + POISSON_LOADS.len() + 4 * REAL_TIME_ENTRIES.len());
    part.add_text(format!(
        "### sliding_window and sliding_counter\n\nIn the rows with a max, the request rate is twice the limit, all keys \
         are full, and the caller sends its clock. All identities together have {} charges in a window. In the rows by \
         TIME, there are {REAL_TIME_IDENTITY_COUNT} identities, every other identity is full, and each identity has \
         this number of entries before the measurement. The sizes with Poisson arrivals are those after \
         {POISSON_WINDOWS} windows of requests at random times, at this rate relative to the limit.",
        scale.log_charges
    ));
    let mut costs = MarkdownTable::new([
        "",
        "pipeline",
        "sliding_window, us",
        "sliding_counter, us",
        "ratio",
        "denied",
    ]);
    let mut sizes = MarkdownTable::new(["bytes of the value of a key", "mean", "largest"]);
    for max in MAXES {
        measure_separate_calls(scale, max, &mut costs, &mut sizes, part)?;
    }
    for entries in REAL_TIME_ENTRIES {
        measure_separate_calls_with_redis_clock(scale, entries, &mut costs, part)?;
    }
    for load in POISSON_LOADS {
        measure_value_sizes_with_poisson_arrivals(scale, load, &mut sizes, part)?;
    }
    part.add_table(&costs);
    part.add_table(&sizes);
    measure_coalesced_calls(scale, part)
}

fn new_scripts(quota: &str) -> Result<[SlidegateScripts; 2], Box<dyn Error>> {
    Ok([
        SlidegateScripts::new(&[quota], Algorithm::default())?,
        SlidegateScripts::new(&[quota], Algorithm::SlidingCounter)?,
    ])
}

fn measure_separate_calls(
    scale: BenchScale,
    max: usize,
    costs: &mut MarkdownTable,
    sizes: &mut MarkdownTable,
    part: &mut ReportPart,
) -> Result<(), Box<dyn Error>> {
    let [window, counter] = new_scripts(&format!("{max}/h"))?;
    let mut contenders: ScriptServerPair<'_> =
        [ScriptServer::new(&window)?, ScriptServer::new(&counter)?];
    let charges = scale.log_charges;
    let step = ONE_HOUR / (2 * charges) as u32;
    let identities = charges / max;
    // Filled at half the rate, so that in the next hour charges leave the window at a constant rate.
    let filling = RequestSequence { identities, time: Some((START_TIME, 2 * step)), position: 0 };
    for contender in &mut contenders {
        contender.send(&filling, charges)?;
    }
    let time = Some((START_TIME.after(step * charges as u32), step));
    let mut sequence = RequestSequence { identities, time, position: charges as u64 };
    let name = format!("max {max}");
    for (pipeline, measured) in [(PIPELINED, scale.decisions), (SINGLE, scale.decisions / 2)] {
        let turn = TurnPlan { pipeline, warm_up: None, measured };
        let ratio = compare(scale, &name, &mut contenders, &mut sequence, turn, costs, part)?;
        part.record_target(&MAX_CPU_RELATIVE_TO_COUNTER, ratio);
    }
    let largest = add_value_sizes_row(name, &mut contenders[0].server, sizes)?;
    if max == MAX_WITH_SIZE_TARGET {
        part.record_target(&MAX_VALUE_BYTES, largest);
    }
    Ok(())
}

/// Adds a row with the lengths of all values in bytes, which must be strings. Returns the largest length.
fn add_value_sizes_row(
    name: String,
    server: &mut RedisServer,
    sizes: &mut MarkdownTable,
) -> Result<f64, Box<dyn Error>> {
    let keys: Vec<String> = server.query(redis::cmd("KEYS").arg("*"))?;
    let length = |key: &String| server.query(redis::cmd("STRLEN").arg(key));
    let bytes: Vec<usize> = keys.iter().map(length).collect::<Result<_, _>>()?;
    let largest = bytes.iter().copied().max().unwrap_or(0);
    let mean = bytes.iter().sum::<usize>() as f64 / bytes.len() as f64;
    sizes.add_row([name, format!("{mean:.0}"), largest.to_string()]);
    Ok(largest as f64)
}

/// Measures both scripts with the clock of Redis, after each identity has been charged `entries` times.
fn measure_separate_calls_with_redis_clock(
    scale: BenchScale,
    entries: u64,
    costs: &mut MarkdownTable,
    part: &mut ReportPart,
) -> Result<(), Box<dyn Error>> {
    let [window, counter] = new_scripts(&format!("{REAL_TIME_MAX}/d"))?;
    let mut contenders: ScriptServerPair<'_> =
        [ScriptServer::new(&window)?, ScriptServer::new(&counter)?];
    let now = SystemClock::new().now();
    for (contender, scripts) in contenders.iter_mut().zip([&window, &counter]) {
        contender.server.send_all(new_initial_charge_commands(scripts, entries, now))?;
    }
    let mut sequence =
        RequestSequence { identities: REAL_TIME_IDENTITY_COUNT, time: None, position: 0 };
    let name = format!("entries: {entries}, TIME");
    for (pipeline, measured) in [(PIPELINED, scale.decisions), (SINGLE, scale.decisions / 2)] {
        let turn = TurnPlan { pipeline, warm_up: None, measured };
        let ratio = compare(scale, &name, &mut contenders, &mut sequence, turn, costs, part)?;
        part.record_target(&MAX_CPU_RELATIVE_TO_COUNTER, ratio);
    }
    Ok(())
}

/// Measures the sizes of the values after requests at random times. `load` is their average rate relative to the limit.
///
/// Such a key has gaps between its requests, so more entries end before they are full.
fn measure_value_sizes_with_poisson_arrivals(
    scale: BenchScale,
    load: u64,
    sizes: &mut MarkdownTable,
    part: &mut ReportPart,
) -> Result<(), Box<dyn Error>> {
    let name = format!("max {MAX_WITH_SIZE_TARGET}, Poisson arrivals, {load}x");
    part.progress.begin_step(&name);
    let quota = format!("{MAX_WITH_SIZE_TARGET}/h");
    let scripts = SlidegateScripts::new(&[&quota], Algorithm::default())?;
    let mut contender = ScriptServer::new(&scripts)?;
    let (window_us, rate) =
        (ONE_HOUR.as_micros() as u64, (load as usize * MAX_WITH_SIZE_TARGET) as f64);
    let mut requests: Vec<(u64, usize)> = (0..scale.log_charges / MAX_WITH_SIZE_TARGET)
        .flat_map(|identity| {
            let pattern = ArrivalPattern::Poisson;
            let times_us = pattern.arrivals(window_us, rate, POISSON_WINDOWS, identity as u64);
            times_us.into_iter().map(move |at_us| (at_us, identity))
        })
        .collect();
    requests.sort_unstable();
    contender.server.send_all(requests.into_iter().map(|(at_us, identity)| {
        let now = START_TIME.after(Duration::from_micros(at_us - MIDNIGHT_US));
        scripts.new_call_command(UnitRequest { identity, nth: 0, now: Some(now) })
    }))?;
    let largest = add_value_sizes_row(name, &mut contender.server, sizes)?;
    part.record_target(&MAX_VALUE_BYTES_WITH_POISSON_ARRIVALS, largest);
    Ok(())
}

fn measure_coalesced_calls(scale: BenchScale, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    let runtime = runtime()?;
    let scripts = new_scripts(&format!("{REAL_TIME_MAX}/d"))?.map(Arc::new);
    let mut table = MarkdownTable::new([
        "entries",
        "clock",
        "sliding_window, us",
        "sliding_counter, us",
        "ratio",
        "requests per call",
        "denied",
    ]);
    for entries in REAL_TIME_ENTRIES {
        let now = SystemClock::new().now();
        let mut contenders = Vec::new();
        for script in &scripts {
            let mut contender = ServerWithCallerAndRedisClockBackends::start_with_coalesced_calls(
                &runtime, script,
            )?;
            contender.server.load(&script.single_limit_script())?;
            contender.server.send_all(new_initial_charge_commands(script, entries, now))?;
            contenders.push(contender);
        }
        let distribution = KeyDistribution::Uniform(REAL_TIME_IDENTITY_COUNT);
        for uses_caller_clock in [true, false] {
            let clock = clock_name(uses_caller_clock);
            part.progress.begin_step(&format!("{entries} entries, {clock}: {CALLERS} callers"));
            let rounds = measure_contenders_in_rounds(
                scale,
                &runtime,
                &mut contenders,
                &distribution,
                uses_caller_clock,
            )?;
            let comparison = compare_first_contender_with(&rounds, 1);
            let (ratio, own, other) =
                (1.0 / comparison.cpu_ratio, comparison.own, comparison.other);
            part.record_target(&MAX_COALESCED_CPU_RELATIVE_TO_COUNTER, ratio);
            table.add_row([
                entries.to_string(),
                clock.to_owned(),
                format!("{:.1}", own.cpu_us),
                format!("{:.1}", other.cpu_us),
                format!("{ratio:.2}x"),
                format!("{:.0}", own.requests / own.calls),
                format!("{:.2}, {:.2}", own.denied, other.denied),
            ]);
        }
    }
    part.add_text(format!(
        "{CALLERS} concurrent callers, whose requests are coalesced, with {REAL_TIME_IDENTITY_COUNT} identities. Every \
         other identity is full. Before the measurement, each identity has this number of entries."
    ));
    part.add_table(&table);
    Ok(())
}

/// Returns the commands that charge all identities before a measurement. Each charge is in its own entry. Every other
/// identity is then full. The others have enough units for the measurement.
fn new_initial_charge_commands(
    scripts: &SlidegateScripts,
    entries: u64,
    now: Timestamp,
) -> impl Iterator<Item = Cmd> {
    (0..REAL_TIME_IDENTITY_COUNT).flat_map(move |identity| {
        let units = match identity.is_multiple_of(2) {
            true => REAL_TIME_MAX.div_ceil(entries),
            false => REAL_TIME_MAX / 32 + 1,
        };
        (0..entries).map(move |nth| {
            let at = Timestamp::from_micros(now.as_micros() - (entries - nth) * CHARGE_INTERVAL_US);
            scripts.charge_command(identity, 0, units, at)
        })
    })
}
