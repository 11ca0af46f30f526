//! Measures `sliding_window`, which keeps a compacted log, compared with `sliding_counter`, which keeps two counts.
//!
//! Both are measured with one script call per request and with coalesced requests. The size of the value of a full key
//! is also measured.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use lab::key_distribution::KeyDistribution;
use lab::part::ReportPart;
use lab::table::MarkdownTable;
use lab::targets::{BenchTarget, TargetBound};
use redis::Cmd;
use slidegate::{Algorithm, Clock, SystemClock, Timestamp};

use crate::BenchScale;
use crate::caller_load::{CALLERS, runtime};
use crate::coalescing::{
    ServerWithCallerAndRedisClockBackends, compare_first_contender_with,
    measure_contenders_in_rounds,
};
use crate::request_sequence::RequestSequence;
use crate::rounds::{PIPELINED, SINGLE, ScriptServer, ScriptServerPair, TurnPlan, compare};
use crate::scripts::SlidegateScripts;
use crate::server::RedisServer;

const ONE_HOUR: Duration = Duration::from_secs(3600);

/// The maximums of the limits in the measurement with one call per request.
const MAXES: [usize; 2] = [100, 1_000];

/// The maximum with the target for the size of the value.
const MAX_WITH_SIZE_TARGET: usize = 1_000;

/// The number of identities of the measurement with coalesced requests.
const COALESCED_IDENTITY_COUNT: usize = 10_000;

/// The maximum of the limit of the measurement with coalesced requests.
const COALESCED_MAX: u64 = 1_000_000;

/// The time between the charges of an identity before the measurement with coalesced requests. It is longer than a
/// tick, and so short that all charges are in the current window of `sliding_counter`.
const CHARGE_INTERVAL_US: u64 = 20_000;

const MAX_CPU_RELATIVE_TO_COUNTER: BenchTarget = BenchTarget {
    text: "sliding_window, one call per request, CPU relative to sliding_counter",
    bound: TargetBound::AtMost(1.25),
    limited_by: "not profiled. With a pipeline of 1 the ratio is near the bound, because the network costs the same.",
};

const MAX_COALESCED_CPU_RELATIVE_TO_COUNTER: BenchTarget = BenchTarget {
    text: "sliding_window, 200 coalesced callers, CPU relative to sliding_counter",
    bound: TargetBound::AtMost(1.25),
    limited_by: "not profiled. A batch reads the values of both algorithms with one MGET, and only missing keys again with \
        their own GET. The values of sliding_window are longer.",
};

const MAX_VALUE_BYTES: BenchTarget = BenchTarget {
    text: "sliding_window of 1,000, largest value of a full key, bytes",
    bound: TargetBound::AtMost(250.0),
    limited_by: "",
};

/// Measures both forms of calls, and adds the tables to the report.
pub fn run(scale: BenchScale, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    part.progress.add_steps(2 * MAXES.len() + 2);
    part.add_text(format!(
        "### sliding_window and sliding_counter\n\nThe request rate is twice the limit, all keys are full, and the \
         caller sends its clock. All identities together have {} charges in a window.",
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
    let mut sizes = MarkdownTable::new(["bytes of the value of a full key", "mean", "largest"]);
    for max in MAXES {
        measure_separate_calls(scale, max, &mut costs, &mut sizes, part)?;
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
    let start = Timestamp::from_secs(1_800_000_000);
    let identities = charges / max;
    // Filled at half the rate, so that in the next hour charges leave the window at a constant rate.
    let filling = RequestSequence { identities, time: Some((start, 2 * step)), position: 0 };
    for contender in &mut contenders {
        contender.send(&filling, charges)?;
    }
    let time = Some((start.after(step * charges as u32), step));
    let mut sequence = RequestSequence { identities, time, position: charges as u64 };
    let name = format!("max {max}");
    for (pipeline, measured) in [(PIPELINED, scale.decisions), (SINGLE, scale.decisions / 2)] {
        let turn = TurnPlan { pipeline, warm_up: None, measured };
        let ratio = compare(scale, &name, &mut contenders, &mut sequence, turn, costs, part)?;
        part.record_target(&MAX_CPU_RELATIVE_TO_COUNTER, ratio);
    }
    let bytes = value_sizes(&mut contenders[0].server)?;
    let largest = bytes.iter().copied().max().unwrap_or(0);
    let mean = bytes.iter().sum::<usize>() as f64 / bytes.len() as f64;
    sizes.add_row([name, format!("{mean:.0}"), largest.to_string()]);
    if max == MAX_WITH_SIZE_TARGET {
        part.record_target(&MAX_VALUE_BYTES, largest as f64);
    }
    Ok(())
}

/// Returns the length of each value in bytes. All values must be strings.
fn value_sizes(server: &mut RedisServer) -> Result<Vec<usize>, Box<dyn Error>> {
    let keys: Vec<String> = server.query(redis::cmd("KEYS").arg("*"))?;
    keys.iter().map(|key| server.query(redis::cmd("STRLEN").arg(key))).collect()
}

fn measure_coalesced_calls(scale: BenchScale, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    let runtime = runtime()?;
    let scripts = new_scripts(&format!("{COALESCED_MAX}/d"))?.map(Arc::new);
    let mut table = MarkdownTable::new([
        "entries",
        "sliding_window, us",
        "sliding_counter, us",
        "ratio",
        "requests per call",
        "denied",
    ]);
    for entries in [1, 30] {
        part.progress.begin_step(&format!("{entries} entries: {CALLERS} callers"));
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
        let distribution = KeyDistribution::Uniform(COALESCED_IDENTITY_COUNT);
        let rounds =
            measure_contenders_in_rounds(scale, &runtime, &mut contenders, &distribution, true)?;
        let comparison = compare_first_contender_with(&rounds, 1);
        let (ratio, own, other) = (1.0 / comparison.cpu_ratio, comparison.own, comparison.other);
        part.record_target(&MAX_COALESCED_CPU_RELATIVE_TO_COUNTER, ratio);
        table.add_row([
            entries.to_string(),
            format!("{:.1}", own.cpu_us),
            format!("{:.1}", other.cpu_us),
            format!("{ratio:.2}x"),
            format!("{:.0}", own.requests / own.calls),
            format!("{:.2}, {:.2}", own.denied, other.denied),
        ]);
    }
    part.add_text(format!(
        "{CALLERS} concurrent callers, whose requests are coalesced, with {COALESCED_IDENTITY_COUNT} identities. Every \
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
    (0..COALESCED_IDENTITY_COUNT).flat_map(move |identity| {
        let units = match identity.is_multiple_of(2) {
            true => COALESCED_MAX.div_ceil(entries),
            false => COALESCED_MAX / 32 + 1,
        };
        (0..entries).map(move |nth| {
            let at = Timestamp::from_micros(now.as_micros() - (entries - nth) * CHARGE_INTERVAL_US);
            scripts.charge_command(identity, 0, units, at)
        })
    })
}
