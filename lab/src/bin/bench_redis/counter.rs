//! Measures `sliding_counter`, which keeps the counts of two windows in one key, compared with a script that keeps each
//! count in a separate key.

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

const IDENTITY_COUNT: usize = 100_000;

/// The maximum of each limit. Every other identity has reached it before the measurement. The others do not reach it
/// during the measurement.
const MAX_UNITS_PER_WINDOW: u64 = 1_000;

/// The number of units that each identity is charged in the previous window, before the measurement.
const UNITS_CHARGED_IN_PREVIOUS_WINDOW: u64 = 300;

const MAX_MEMORY_RELATIVE_TO_TWO_KEY_SCRIPT: BenchTarget = BenchTarget {
    text: "two-count window, memory relative to the two-key script",
    bound: TargetBound::AtMost(0.7),
    limited_by: "",
};

const MAX_RELATIVE_CPU_WITH_CALLER_CLOCK: BenchTarget = BenchTarget {
    text: "two-count window, caller's clock, CPU relative to the two-key script",
    bound: TargetBound::AtMost(0.65),
    limited_by: "the ratio varies by 0.05 between runs.",
};

const MAX_CPU_RELATIVE_TO_TWO_KEY_SCRIPT_WITH_REDIS_CLOCK: BenchTarget = BenchTarget {
    text: "two-count window, TIME, CPU relative to the two-key script",
    bound: TargetBound::AtMost(0.85),
    limited_by: "",
};

/// Measures both scripts with the clock of the caller, and then with the clock of Redis.
pub fn run(scale: BenchScale, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    part.progress.add_steps(4);
    part.add_text(format!(
        "### sliding_counter and the two-key script\n\nThe two-key script runs GET, GET, then INCRBY and EXPIRE. \
         {IDENTITY_COUNT} identities have a count in the current and in the previous window; every other identity is full."
    ));
    let (mut costs, mut memory) = (table(), memory_table());
    measure_counter_with_caller_clock(scale, &mut costs, &mut memory, part)?;
    measure_counter_with_redis_clock(scale, &mut costs, part)?;
    part.add_table(&costs);
    part.add_table(&memory);
    Ok(())
}

/// Creates the table to which [`memory_row`] adds rows.
pub fn memory_table() -> MarkdownTable {
    MarkdownTable::new(["bytes per identity", "slidegate", "plain", "ratio"])
}

/// Adds a row to the table with the bytes per identity of slidegate and of the plain script. Returns their ratio.
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

fn measure_counter_with_caller_clock(
    scale: BenchScale,
    costs: &mut MarkdownTable,
    memory: &mut MarkdownTable,
    part: &mut ReportPart,
) -> Result<(), Box<dyn Error>> {
    let noon = Timestamp::from_secs(20_000 * DAY_S + DAY_S / 2);
    let plain = two_keys_with_caller_clock(MAX_UNITS_PER_WINDOW);
    let slidegate =
        SlidegateScripts::new(&[&format!("{MAX_UNITS_PER_WINDOW}/d")], Algorithm::SlidingCounter)?;
    let mut contenders = [ScriptServer::new(&slidegate)?, ScriptServer::new(&plain)?];
    let mut sequence = RequestSequence {
        identities: IDENTITY_COUNT,
        time: Some((noon, Duration::from_micros(1))),
        position: 0,
    };
    let bytes_per_identity = charge_all_identities(&mut contenders, &slidegate, noon)?;
    let ratio = memory_row("two counts, used_memory", bytes_per_identity, memory);
    part.record_target(&MAX_MEMORY_RELATIVE_TO_TWO_KEY_SCRIPT, ratio);
    let usage = [contenders[0].server.memory_usage()?, contenders[1].server.memory_usage()?];
    memory_row(
        "two counts, MEMORY USAGE",
        usage.map(|bytes| bytes / IDENTITY_COUNT as f64),
        memory,
    );

    let turn = TurnPlan { pipeline: PIPELINED, warm_up: None, measured: scale.decisions };
    let name = "caller's clock";
    let ratio = compare(scale, name, &mut contenders, &mut sequence, turn, costs, part)?;
    part.record_target(&MAX_RELATIVE_CPU_WITH_CALLER_CLOCK, ratio);
    let turn = TurnPlan { pipeline: SINGLE, measured: scale.decisions / 2, ..turn };
    compare(scale, name, &mut contenders, &mut sequence, turn, costs, part)?;
    Ok(())
}

fn measure_counter_with_redis_clock(
    scale: BenchScale,
    costs: &mut MarkdownTable,
    part: &mut ReportPart,
) -> Result<(), Box<dyn Error>> {
    let plain = two_keys_with_redis_clock(MAX_UNITS_PER_WINDOW);
    let slidegate =
        SlidegateScripts::new(&[&format!("{MAX_UNITS_PER_WINDOW}/d")], Algorithm::SlidingCounter)?;
    let mut contenders = [ScriptServer::new(&slidegate)?, ScriptServer::new(&plain)?];
    let mut sequence = RequestSequence { identities: IDENTITY_COUNT, time: None, position: 0 };
    charge_all_identities(&mut contenders, &slidegate, SystemClock::new().now())?;
    let turn = TurnPlan { pipeline: PIPELINED, warm_up: None, measured: scale.decisions };
    let ratio = compare(scale, "TIME", &mut contenders, &mut sequence, turn, costs, part)?;
    part.record_target(&MAX_CPU_RELATIVE_TO_TWO_KEY_SCRIPT_WITH_REDIS_CLOCK, ratio);
    let turn = TurnPlan { pipeline: SINGLE, measured: scale.decisions / 2, ..turn };
    compare(scale, "TIME", &mut contenders, &mut sequence, turn, costs, part)?;
    Ok(())
}

/// Charges all identities on both servers. Returns the bytes per identity of each server.
fn charge_all_identities(
    contenders: &mut ScriptServerPair<'_>,
    slidegate: &SlidegateScripts,
    now: Timestamp,
) -> Result<[f64; 2], Box<dyn Error>> {
    let current =
        |identity: usize| if identity.is_multiple_of(2) { MAX_UNITS_PER_WINDOW } else { 1 };
    let day_before = Timestamp::from_micros(now.as_micros() - DAY_S * 1_000_000);
    let own = (0..IDENTITY_COUNT).flat_map(|identity| {
        let before =
            slidegate.charge_command(identity, 0, UNITS_CHARGED_IN_PREVIOUS_WINDOW, day_before);
        [before, slidegate.charge_command(identity, 0, current(identity), now)]
    });
    let number = now.as_micros() / (DAY_S * 1_000_000);
    let plain = (0..IDENTITY_COUNT).flat_map(|identity| {
        [
            new_set_count_command(identity, number - 1, UNITS_CHARGED_IN_PREVIOUS_WINDOW),
            new_set_count_command(identity, number, current(identity)),
        ]
    });
    let [own_server, plain_server] = contenders;
    let bytes_per_identity =
        [bytes_per_identity(own_server, own)?, bytes_per_identity(plain_server, plain)?];
    assert_eq!(
        slidegate.single_limit_script(),
        slidegate.lua_source(),
        "filling and measuring use the same script"
    );
    Ok(bytes_per_identity)
}

/// Returns the SET command for the count of an identity in the window with the number `window`. Like the INCRBY and
/// EXPIRE of the script, the command sets the count and the expiry of the key.
fn new_set_count_command(identity: usize, window: u64, count: u64) -> Cmd {
    let mut command = redis::cmd("SET");
    command.arg(format!("{}:{window}", plain_key(identity))).arg(count).arg("EX").arg(2 * DAY_S);
    command
}

/// Sends these commands to a server. Returns the growth of the memory of the server in bytes, divided by the number of
/// identities.
pub fn bytes_per_identity(
    contender: &mut ScriptServer<'_>,
    fill: impl Iterator<Item = Cmd>,
) -> Result<f64, Box<dyn Error>> {
    let before = contender.server.used_memory()?;
    contender.server.send_all(fill)?;
    Ok((contender.server.used_memory()? - before) / IDENTITY_COUNT as f64)
}
