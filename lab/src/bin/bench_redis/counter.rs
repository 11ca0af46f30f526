//! The two-count window, compared with the two-key script.

use std::error::Error;
use std::time::Duration;

use lab::part::ReportPart;
use lab::table::MarkdownTable;
use lab::targets::{BenchTarget, TargetBound};
use redis::Cmd;
use slidegate::{Algorithm, Clock, SystemClock, Timestamp};

use crate::BenchScale;
use crate::request_sequence::RequestSequence;
use crate::rounds::{PIPELINED, SINGLE, ScriptServer, ScriptServerPair, TurnPlan, compare, table};
use crate::scripts::{
    BenchScript, DAY_S, SlidegateScripts, plain_key, two_keys_with_caller_clock,
    two_keys_with_redis_clock,
};

const KEYS: usize = 100_000;

/// The limit, which no identity reaches during a run, except identities that are full from the start.
const MAX: u64 = 1_000;

/// The charges in the previous window.
const PREVIOUS: u64 = 300;

const MEMORY_RATIO: BenchTarget = BenchTarget {
    text: "two-count window, memory relative to the two-key script",
    bound: TargetBound::AtMost(0.7),
    limited_by: "",
};

const CALLER_CLOCK_CPU_RATIO: BenchTarget = BenchTarget {
    text: "two-count window, caller's clock, CPU relative to the two-key script",
    bound: TargetBound::AtMost(0.65),
    limited_by: "the ratio varies by 0.05 between runs.",
};

const REDIS_CLOCK_CPU_RATIO: BenchTarget = BenchTarget {
    text: "two-count window, TIME, CPU relative to the two-key script",
    bound: TargetBound::AtMost(0.85),
    limited_by: "",
};

/// Measures with the caller's clock, then with Redis's clock.
pub fn run(scale: BenchScale, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    part.progress.add_steps(4);
    part.add_text(format!(
        "### sliding_window and the two-key script\n\nThe two-key script runs GET, GET, then INCRBY and EXPIRE. \
         {KEYS} identities have a count in the current and in the previous window; every other identity is full."
    ));
    let (mut costs, mut memory) = (table(), memory_table());
    caller_clock(scale, &mut costs, &mut memory, part)?;
    redis_clock(scale, &mut costs, part)?;
    part.add_table(&costs);
    part.add_table(&memory);
    Ok(())
}

/// Creates the table for [`memory_row`].
pub fn memory_table() -> MarkdownTable {
    MarkdownTable::new(["bytes per identity", "slidegate", "plain", "ratio"])
}

/// Adds a row with the bytes per identity. Returns the ratio.
pub fn memory_row(name: &str, bytes: [f64; 2], table: &mut MarkdownTable) -> f64 {
    let [own, plain] = bytes;
    let ratio = own / plain;
    table.add_row([
        name.to_owned(),
        format!("{own:.0}"),
        format!("{plain:.0}"),
        format!("{ratio:.2}x"),
    ]);
    ratio
}

fn caller_clock(
    scale: BenchScale,
    costs: &mut MarkdownTable,
    memory: &mut MarkdownTable,
    part: &mut ReportPart,
) -> Result<(), Box<dyn Error>> {
    let noon = Timestamp::from_secs(20_000 * DAY_S + DAY_S / 2);
    let plain = two_keys_with_caller_clock(MAX);
    let slidegate = SlidegateScripts::new(&[&format!("{MAX}/d")], Algorithm::SlidingWindow)?;
    let mut contenders = [ScriptServer::new(&slidegate)?, ScriptServer::new(&plain)?];
    let mut sequence = RequestSequence {
        identities: KEYS,
        time: Some((noon, Duration::from_micros(1))),
        position: 0,
    };
    let bytes_per_identity = fill(&mut contenders, &slidegate, noon)?;
    let ratio = memory_row("two counts, used_memory", bytes_per_identity, memory);
    part.record_target(&MEMORY_RATIO, ratio);
    let usage = [contenders[0].server.memory_usage()?, contenders[1].server.memory_usage()?];
    memory_row("two counts, MEMORY USAGE", usage.map(|bytes| bytes / KEYS as f64), memory);

    let turn = TurnPlan { pipeline: PIPELINED, warm_up: None, measured: scale.decisions };
    let name = "caller's clock";
    let ratio = compare(scale, name, &mut contenders, &mut sequence, turn, costs, part)?;
    part.record_target(&CALLER_CLOCK_CPU_RATIO, ratio);
    let turn = TurnPlan { pipeline: SINGLE, measured: scale.decisions / 2, ..turn };
    compare(scale, name, &mut contenders, &mut sequence, turn, costs, part)?;
    Ok(())
}

fn redis_clock(
    scale: BenchScale,
    costs: &mut MarkdownTable,
    part: &mut ReportPart,
) -> Result<(), Box<dyn Error>> {
    let plain = two_keys_with_redis_clock(MAX);
    let slidegate = SlidegateScripts::new(&[&format!("{MAX}/d")], Algorithm::SlidingWindow)?;
    let mut contenders = [ScriptServer::new(&slidegate)?, ScriptServer::new(&plain)?];
    let mut sequence = RequestSequence { identities: KEYS, time: None, position: 0 };
    fill(&mut contenders, &slidegate, SystemClock::new().now())?;
    let turn = TurnPlan { pipeline: PIPELINED, warm_up: None, measured: scale.decisions };
    let ratio = compare(scale, "TIME", &mut contenders, &mut sequence, turn, costs, part)?;
    part.record_target(&REDIS_CLOCK_CPU_RATIO, ratio);
    let turn = TurnPlan { pipeline: SINGLE, measured: scale.decisions / 2, ..turn };
    compare(scale, "TIME", &mut contenders, &mut sequence, turn, costs, part)?;
    Ok(())
}

/// Fills both servers with all identities. Returns the bytes per identity of each server.
fn fill(
    contenders: &mut ScriptServerPair<'_>,
    slidegate: &SlidegateScripts,
    now: Timestamp,
) -> Result<[f64; 2], Box<dyn Error>> {
    let current = |identity: usize| if identity.is_multiple_of(2) { MAX } else { 1 };
    let day_before = Timestamp::from_micros(now.as_micros() - DAY_S * 1_000_000);
    let own = (0..KEYS).flat_map(|identity| {
        let before = slidegate.charge_command(identity, 0, PREVIOUS, day_before);
        [before, slidegate.charge_command(identity, 0, current(identity), now)]
    });
    let number = now.as_micros() / (DAY_S * 1_000_000);
    let plain = (0..KEYS).flat_map(|identity| {
        [set(identity, number - 1, PREVIOUS), set(identity, number, current(identity))]
    });
    let [own_server, plain_server] = contenders;
    let bytes_per_identity =
        [bytes_per_identity(own_server, own)?, bytes_per_identity(plain_server, plain)?];
    assert_eq!(
        slidegate.single_limit_script(),
        slidegate.script(),
        "filling and measuring use the same script"
    );
    Ok(bytes_per_identity)
}

/// Returns the command with the effect of INCRBY and EXPIRE.
fn set(identity: usize, window: u64, count: u64) -> Cmd {
    let mut command = redis::cmd("SET");
    command.arg(format!("{}:{window}", plain_key(identity))).arg(count).arg("EX").arg(2 * DAY_S);
    command
}

/// Fills a server with these commands. Returns the growth of its memory per identity, in bytes.
pub fn bytes_per_identity(
    contender: &mut ScriptServer<'_>,
    fill: impl Iterator<Item = Cmd>,
) -> Result<f64, Box<dyn Error>> {
    let before = contender.server.used_memory()?;
    contender.server.send_all(fill)?;
    Ok((contender.server.used_memory()? - before) / KEYS as f64)
}
