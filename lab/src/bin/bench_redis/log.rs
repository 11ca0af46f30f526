//! The exact log beside the sorted set.

use std::error::Error;
use std::time::Duration;

use lab::part::Part;
use lab::table::Table;
use lab::targets::{Aim, Bound};
use slidegate::{Algorithm, Timestamp};

use crate::Scope;
use crate::course::{Ask, Course};
use crate::driver::StoreKind;
use crate::rounds::{PIPELINED, SINGLE, Seat, Seats, Turn, compare, table};
use crate::side::{Plain, Side, Slidegate};

/// Each max, and the most that CPU and memory may be of the sorted set's.
const LIMITS: [(usize, f64, Option<f64>); 4] =
    [(10, 1.0, None), (100, 0.8, Some(0.333)), (1_000, 0.8, Some(0.083)), (10_000, 1.0, None)];

const CPU_LIMITED_BY: &str = "between runs the ratio moves by 0.05 to 0.1. Not profiled.";

const HOUR: Duration = Duration::from_secs(3600);

/// Where Redis tells the time, windows are short, and asks are as many as make half of them denied.
const SHORT: Duration = Duration::from_secs(4);
const SHORT_ASKS: usize = 40_000;

/// Measures logs of each max.
pub fn run(scope: Scope, part: &mut Part) -> Result<(), Box<dyn Error>> {
    part.progress.expect(2 * scope.log_maxes.len() + 1);
    part.say(format!(
        "### sliding_log beside the sorted set\n\nZREMRANGEBYSCORE, ZCARD, then ZADD and EXPIRE, or ZRANGE on a denial; members of 12 bytes. Asked twice as \
         much as fits, {} charges in all logs together. With the caller's clock an hour passes in {} asks; by TIME \
         windows are of 4 s, asked at an even pace of 10,000/s.",
        scope.log_charges,
        2 * scope.log_charges
    ));
    let (mut costs, mut memory) = (table(), memory_table());
    let asked = |(max, _, _): &(usize, _, _)| scope.log_maxes.contains(max);
    for (max, cpu_aim, memory_aim) in LIMITS.into_iter().filter(asked) {
        let text = cpu_text(max);
        let aim = Aim { text, bound: Bound::AtMost(cpu_aim), limited_by: CPU_LIMITED_BY };
        let ratio = caller_clock(scope, max, &mut costs, &mut memory, memory_aim, part)?;
        part.hold(&aim, ratio);
        if scope.slow_rounds > 0 {
            let ratio = redis_clock(scope, max, &mut costs, part)?;
            part.hold(&aim, ratio);
        }
    }
    part.table(&costs);
    part.table(&memory);
    Ok(())
}

fn cpu_text(max: usize) -> &'static str {
    match max {
        10 => "log of 10 beside the sorted set, CPU",
        100 => "log of 100 beside the sorted set, CPU",
        1_000 => "log of 1,000 beside the sorted set, CPU",
        _ => "log of 10,000 beside the sorted set, CPU",
    }
}

fn memory_text(max: usize) -> &'static str {
    match max {
        100 => "log of 100 beside the sorted set, memory",
        _ => "log of 1,000 beside the sorted set, memory",
    }
}

fn memory_table() -> Table {
    Table::new([
        "bytes, full logs",
        "slidegate, per key",
        "per entry",
        "sorted set, per key",
        "per entry",
        "ratio",
    ])
}

fn caller_clock(
    scope: Scope,
    max: usize,
    costs: &mut Table,
    memory: &mut Table,
    memory_aim: Option<f64>,
    part: &mut Part,
) -> Result<f64, Box<dyn Error>> {
    let slidegate = Slidegate::new(&[&format!("{max}/h")], Algorithm::SlidingLog)?;
    let plain = Plain::new(include_str!("plain/log.lua"), move |Ask { nth, now, .. }| {
        let now_ms = now.map_or(0, Timestamp::as_micros) / 1_000;
        let window_ms = HOUR.as_millis();
        vec![now_ms.to_string(), window_ms.to_string(), max.to_string(), "3610".into(), member(nth)]
    });
    let charges = scope.log_charges;
    let step = HOUR / (2 * charges) as u32;
    let start = Timestamp::from_secs(1_800_000_000);
    let who = charges / max;
    // Filled at half the pace, so that in the hour after it charges leave at an even pace.
    let filling = Course { who, time: Some((start, 2 * step)), passed: 0 };
    let mut seats = [Seat::new(&slidegate)?, Seat::new(&plain)?];
    for seat in &mut seats {
        seat.ask(&filling, charges)?;
    }
    let mut course = Course {
        who,
        time: Some((start.after(step * charges as u32), step)),
        passed: charges as u64,
    };

    let name = format!("max {max}, caller's clock");
    let turn = Turn { pace: PIPELINED, before: None, measured: scope.decisions };
    let ratio = compare(scope, &name, &mut seats, &mut course, turn, costs, part)?;
    if max == 100 {
        let turn = Turn { pace: SINGLE, measured: scope.decisions / 2, ..turn };
        compare(scope, &name, &mut seats, &mut course, turn, costs, part)?;
    }

    let [own, sorted_set] = per_key(&mut seats, course.who)?;
    let per_entry = |bytes: f64| format!("{:.1}", bytes / max as f64);
    memory.row([
        format!("max {max}"),
        format!("{own:.0}"),
        per_entry(own),
        format!("{sorted_set:.0}"),
        per_entry(sorted_set),
        format!("{:.3}x", own / sorted_set),
    ]);
    if let Some(aim) = memory_aim {
        let text = memory_text(max);
        let aim = Aim { text, bound: Bound::AtMost(aim), limited_by: "" };
        part.hold(&aim, own / sorted_set);
    }
    Ok(ratio)
}

/// What MEMORY USAGE says of a key, in the mean.
fn per_key(seats: &mut Seats<'_>, keys: usize) -> Result<[f64; 2], Box<dyn Error>> {
    let [own, plain] = seats;
    Ok([own.server.memory_usage()? / keys as f64, plain.server.memory_usage()? / keys as f64])
}

fn redis_clock(
    scope: Scope,
    max: usize,
    costs: &mut Table,
    part: &mut Part,
) -> Result<f64, Box<dyn Error>> {
    let slidegate =
        Slidegate::new(&[&format!("{max}/{}s", SHORT.as_secs())], Algorithm::SlidingLog)?;
    let plain = Plain::new(include_str!("plain/log_time.lua"), move |Ask { nth, .. }| {
        vec![SHORT.as_micros().to_string(), max.to_string(), "14".into(), member(nth)]
    });
    let sides: [&dyn Side; 2] = [&slidegate, &plain];
    let [own, sorted_set] = sides.map(Seat::new);
    let mut seats = [own?, sorted_set?];
    let mut course = Course { who: SHORT_ASKS / 2 / max, time: None, passed: 0 };
    let per_second = SHORT_ASKS as u64 / SHORT.as_secs();
    let pace = StoreKind { per_second: Some(per_second), ..PIPELINED };
    let filling = StoreKind { per_second: Some(per_second / 2), ..PIPELINED };
    let turn = Turn { pace, before: Some((filling, SHORT_ASKS / 2)), measured: SHORT_ASKS / 2 };
    let scope = Scope { rounds: scope.slow_rounds, ..scope };
    compare(scope, &format!("max {max}, TIME"), &mut seats, &mut course, turn, costs, part)
}

/// A member that is no other's.
fn member(nth: u64) -> String {
    format!("r-{nth:010x}")
}
