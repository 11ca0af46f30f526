//! Measures `sliding_log`, which keeps the time of every charge, compared with a script that keeps a sorted set.

use std::error::Error;
use std::time::Duration;

use lab::part::ReportPart;
use lab::table::MarkdownTable;
use lab::targets::{BenchTarget, TargetBound};
use slidegate::{Algorithm, Timestamp};

use crate::BenchScale;
use crate::pipeline_client::PipelineSettings;
use crate::request_sequence::{RequestSequence, UnitRequest};
use crate::rounds::{PIPELINED, SINGLE, ScriptServer, ScriptServerPair, TurnPlan, compare, table};
use crate::scripts::{BenchScript, PlainScript, SlidegateScripts};

/// The measured maximums of the limit, each with two targets for slidegate relative to the sorted set: the CPU time,
/// and the memory. `None`: there is no target for the memory.
const LIMIT_MAXIMUMS_WITH_TARGETS: [(usize, f64, Option<f64>); 4] =
    [(10, 1.0, None), (100, 0.75, Some(0.333)), (1_000, 0.75, Some(0.083)), (10_000, 1.0, None)];

const REASON_FOR_CPU_RELATIVE_TO_SORTED_SET: &str = "the ratio varies by 0.05 to 0.1 between runs. By callgrind a denial \
    takes 39,500 instructions and a charge to a full log 68,700 (before: 40,300 and 91,000), of which an empty script \
    takes 16,000, GETRANGE and SETRANGE 5,000 each, head and word are written separately. Tried: the wait is known \
    without a second decision (-15,000 per charge), reading expired charges without a function (-7,000). Not kept: reading \
    the whole value (-4,000 per charge, +4,600 per denial), writing the whole value (+3,700). Left: the newest charges in the \
    head, which would save most writes of words.";

const ONE_HOUR: Duration = Duration::from_secs(3600);

/// The window of the measurements in which Redis reads its own clock.
const WINDOW_WITH_REDIS_CLOCK: Duration = Duration::from_secs(4);

/// The number of requests of a turn in which Redis reads its own clock. The first half of them is sent before the
/// measurement.
const REQUESTS_PER_TURN_WITH_REDIS_CLOCK: usize = 40_000;

/// Measures the logs with each limit, and adds the tables to the report.
pub fn run(scale: BenchScale, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    part.progress.add_steps(2 * scale.log_maxes.len() + 1);
    part.add_text(format!(
        "### sliding_log and the sorted set\n\nThe sorted set runs ZREMRANGEBYSCORE, ZCARD, then ZADD and EXPIRE, or \
         ZRANGE on a denial; its members have 12 bytes. The request rate is twice the limit; all logs together have \
         {} charges. With the caller's clock an hour passes in {} requests; by TIME windows have 4 s and requests a \
         constant rate of 10,000/s.",
        scale.log_charges,
        2 * scale.log_charges
    ));
    let (mut costs, mut memory) = (table(), new_memory_table());
    let is_selected = |(max, _, _): &(usize, _, _)| scale.log_maxes.contains(max);
    for (max, cpu_bound, memory_bound) in
        LIMIT_MAXIMUMS_WITH_TARGETS.into_iter().filter(is_selected)
    {
        let text = cpu_target_text(max);
        let target = BenchTarget {
            text,
            bound: TargetBound::AtMost(cpu_bound),
            limited_by: REASON_FOR_CPU_RELATIVE_TO_SORTED_SET,
        };
        let ratio = measure_sliding_log_with_caller_clock(
            scale,
            max,
            &mut costs,
            &mut memory,
            memory_bound,
            part,
        )?;
        part.record_target(&target, ratio);
        if scale.slow_rounds > 0 {
            let ratio = measure_sliding_log_with_redis_clock(scale, max, &mut costs, part)?;
            part.record_target(&target, ratio);
        }
    }
    part.add_table(&costs);
    part.add_table(&memory);
    Ok(())
}

fn cpu_target_text(max: usize) -> &'static str {
    match max {
        10 => "log of 10, CPU relative to the sorted set",
        100 => "log of 100, CPU relative to the sorted set",
        1_000 => "log of 1,000, CPU relative to the sorted set",
        _ => "log of 10,000, CPU relative to the sorted set",
    }
}

fn memory_target_text(max: usize) -> &'static str {
    match max {
        100 => "log of 100, memory relative to the sorted set",
        _ => "log of 1,000, memory relative to the sorted set",
    }
}

fn new_memory_table() -> MarkdownTable {
    MarkdownTable::new([
        "bytes, full logs",
        "slidegate, per key",
        "per entry",
        "sorted set, per key",
        "per entry",
        "ratio",
    ])
}

fn measure_sliding_log_with_caller_clock(
    scale: BenchScale,
    max: usize,
    costs: &mut MarkdownTable,
    memory: &mut MarkdownTable,
    memory_bound: Option<f64>,
    part: &mut ReportPart,
) -> Result<f64, Box<dyn Error>> {
    let slidegate = SlidegateScripts::new(&[&format!("{max}/h")], Algorithm::SlidingLog)?;
    let plain =
        PlainScript::new(include_str!("plain/log.lua"), move |UnitRequest { nth, now, .. }| {
            let now_ms = now.map_or(0, Timestamp::as_micros) / 1_000;
            let window_ms = ONE_HOUR.as_millis();
            vec![
                now_ms.to_string(),
                window_ms.to_string(),
                max.to_string(),
                "3610".into(),
                new_sorted_set_member(nth),
            ]
        });
    let charges = scale.log_charges;
    let step = ONE_HOUR / (2 * charges) as u32;
    let start = Timestamp::from_secs(1_800_000_000);
    let identities = charges / max;
    // Filled at half the rate, so that in the next hour charges leave the window at a constant rate.
    let filling = RequestSequence { identities, time: Some((start, 2 * step)), position: 0 };
    let mut contenders = [ScriptServer::new(&slidegate)?, ScriptServer::new(&plain)?];
    for contender in &mut contenders {
        contender.send(&filling, charges)?;
    }
    let mut sequence = RequestSequence {
        identities,
        time: Some((start.after(step * charges as u32), step)),
        position: charges as u64,
    };

    let name = format!("max {max}, caller's clock");
    let turn = TurnPlan { pipeline: PIPELINED, warm_up: None, measured: scale.decisions };
    let ratio = compare(scale, &name, &mut contenders, &mut sequence, turn, costs, part)?;
    if max == 100 {
        let turn = TurnPlan { pipeline: SINGLE, measured: scale.decisions / 2, ..turn };
        compare(scale, &name, &mut contenders, &mut sequence, turn, costs, part)?;
    }

    let [own, sorted_set] = mean_bytes_per_key(&mut contenders, sequence.identities)?;
    let per_entry = |bytes: f64| format!("{:.1}", bytes / max as f64);
    memory.add_row([
        format!("max {max}"),
        format!("{own:.0}"),
        per_entry(own),
        format!("{sorted_set:.0}"),
        per_entry(sorted_set),
        format!("{:.3}x", own / sorted_set),
    ]);
    if let Some(bound) = memory_bound {
        let text = memory_target_text(max);
        let target = BenchTarget { text, bound: TargetBound::AtMost(bound), limited_by: "" };
        part.record_target(&target, own / sorted_set);
    }
    Ok(ratio)
}

/// Returns the mean `MEMORY USAGE` of a key on each server, in bytes.
fn mean_bytes_per_key(
    contenders: &mut ScriptServerPair<'_>,
    keys: usize,
) -> Result<[f64; 2], Box<dyn Error>> {
    let [own, plain] = contenders;
    Ok([own.server.memory_usage()? / keys as f64, plain.server.memory_usage()? / keys as f64])
}

fn measure_sliding_log_with_redis_clock(
    scale: BenchScale,
    max: usize,
    costs: &mut MarkdownTable,
    part: &mut ReportPart,
) -> Result<f64, Box<dyn Error>> {
    let slidegate = SlidegateScripts::new(
        &[&format!("{max}/{}s", WINDOW_WITH_REDIS_CLOCK.as_secs())],
        Algorithm::SlidingLog,
    )?;
    let plain =
        PlainScript::new(include_str!("plain/log_time.lua"), move |UnitRequest { nth, .. }| {
            vec![
                WINDOW_WITH_REDIS_CLOCK.as_micros().to_string(),
                max.to_string(),
                "14".into(),
                new_sorted_set_member(nth),
            ]
        });
    let scripts: [&dyn BenchScript; 2] = [&slidegate, &plain];
    let [own, sorted_set] = scripts.map(ScriptServer::new);
    let mut contenders = [own?, sorted_set?];
    let mut sequence = RequestSequence {
        identities: REQUESTS_PER_TURN_WITH_REDIS_CLOCK / 2 / max,
        time: None,
        position: 0,
    };
    let per_second = REQUESTS_PER_TURN_WITH_REDIS_CLOCK as u64 / WINDOW_WITH_REDIS_CLOCK.as_secs();
    let pipeline = PipelineSettings { per_second: Some(per_second), ..PIPELINED };
    let filling = PipelineSettings { per_second: Some(per_second / 2), ..PIPELINED };
    let turn = TurnPlan {
        pipeline,
        warm_up: Some((filling, REQUESTS_PER_TURN_WITH_REDIS_CLOCK / 2)),
        measured: REQUESTS_PER_TURN_WITH_REDIS_CLOCK / 2,
    };
    let scale = BenchScale { rounds: scale.slow_rounds, ..scale };
    compare(scale, &format!("max {max}, TIME"), &mut contenders, &mut sequence, turn, costs, part)
}

/// Returns a member for the sorted set, which is unique for each request.
fn new_sorted_set_member(nth: u64) -> String {
    format!("r-{nth:010x}")
}
