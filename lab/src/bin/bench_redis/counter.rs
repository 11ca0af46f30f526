//! The two-count window beside the two-key script.

use std::error::Error;
use std::time::Duration;

use lab::part::Part;
use lab::table::Table;
use lab::targets::{Aim, Bound};
use redis::Cmd;
use slidegate::{Algorithm, Clock, SystemClock, Timestamp};

use crate::Scope;
use crate::course::Course;
use crate::rounds::{PIPELINED, SINGLE, Seat, Seats, Turn, compare, table};
use crate::side::{Side, Slidegate, plain_key};
use crate::two_keys::{self, DAY_S};

const KEYS: usize = 100_000;

/// Far more than is asked for, of those who are not full.
const MAX: u64 = 1_000;

/// What was charged in the window before.
const PREVIOUS: u64 = 300;

const MEMORY: Aim = Aim {
    text: "two-count window beside two keys, memory",
    bound: Bound::AtMost(0.7),
    limited_by: "",
};

const CALLER_CLOCK: Aim = Aim {
    text: "two-count window beside two keys, caller's clock, CPU",
    bound: Bound::AtMost(0.65),
    limited_by: "between runs the ratio moves by 0.05.",
};

const REDIS_CLOCK: Aim = Aim {
    text: "two-count window beside two keys, TIME, CPU",
    bound: Bound::AtMost(0.85),
    limited_by: "",
};

/// Measures with the caller's clock, then with Redis's.
pub fn run(scope: Scope, part: &mut Part) -> Result<(), Box<dyn Error>> {
    part.progress.expect(4);
    part.say(format!(
        "### sliding_window beside two keys\n\nGET, GET, then INCRBY and EXPIRE. {KEYS} identities with a count in this window and in the one before; every \
         other one is full."
    ));
    let (mut costs, mut memory) = (table(), memory_table());
    caller_clock(scope, &mut costs, &mut memory, part)?;
    redis_clock(scope, &mut costs, part)?;
    part.table(&costs);
    part.table(&memory);
    Ok(())
}

/// The head of what [`memory_row`] adds to.
pub fn memory_table() -> Table {
    Table::new(["bytes per identity", "slidegate", "plain", "ratio"])
}

/// Adds what an identity takes in all; gives the ratio.
pub fn memory_row(name: &str, bytes: [f64; 2], table: &mut Table) -> f64 {
    let [own, plain] = bytes;
    let ratio = own / plain;
    table.row([
        name.to_owned(),
        format!("{own:.0}"),
        format!("{plain:.0}"),
        format!("{ratio:.2}x"),
    ]);
    ratio
}

fn caller_clock(
    scope: Scope,
    costs: &mut Table,
    memory: &mut Table,
    part: &mut Part,
) -> Result<(), Box<dyn Error>> {
    let noon = Timestamp::from_secs(20_000 * DAY_S + DAY_S / 2);
    let plain = two_keys::told(MAX);
    let slidegate = Slidegate::new(&[&format!("{MAX}/d")], Algorithm::SlidingWindow)?;
    let mut seats = [Seat::new(&slidegate)?, Seat::new(&plain)?];
    let mut course = Course { who: KEYS, time: Some((noon, Duration::from_micros(1))), passed: 0 };
    let grown = fill(&mut seats, &slidegate, noon)?;
    let ratio = memory_row("two counts, used_memory", grown, memory);
    part.hold(&MEMORY, ratio);
    let usage = [seats[0].server.memory_usage()?, seats[1].server.memory_usage()?];
    memory_row("two counts, MEMORY USAGE", usage.map(|bytes| bytes / KEYS as f64), memory);

    let turn = Turn { pace: PIPELINED, before: None, measured: scope.decisions };
    let name = "caller's clock";
    let ratio = compare(scope, name, &mut seats, &mut course, turn, costs, part)?;
    part.hold(&CALLER_CLOCK, ratio);
    let turn = Turn { pace: SINGLE, measured: scope.decisions / 2, ..turn };
    compare(scope, name, &mut seats, &mut course, turn, costs, part)?;
    Ok(())
}

fn redis_clock(scope: Scope, costs: &mut Table, part: &mut Part) -> Result<(), Box<dyn Error>> {
    let plain = two_keys::by_time(MAX);
    let slidegate = Slidegate::new(&[&format!("{MAX}/d")], Algorithm::SlidingWindow)?;
    let mut seats = [Seat::new(&slidegate)?, Seat::new(&plain)?];
    let mut course = Course { who: KEYS, time: None, passed: 0 };
    fill(&mut seats, &slidegate, SystemClock::new().now())?;
    let turn = Turn { pace: PIPELINED, before: None, measured: scope.decisions };
    let ratio = compare(scope, "TIME", &mut seats, &mut course, turn, costs, part)?;
    part.hold(&REDIS_CLOCK, ratio);
    let turn = Turn { pace: SINGLE, measured: scope.decisions / 2, ..turn };
    compare(scope, "TIME", &mut seats, &mut course, turn, costs, part)?;
    Ok(())
}

/// Brings every identity into both; by how many bytes each side grows for one.
fn fill(
    seats: &mut Seats<'_>,
    slidegate: &Slidegate,
    now: Timestamp,
) -> Result<[f64; 2], Box<dyn Error>> {
    let current = |who: usize| if who.is_multiple_of(2) { MAX } else { 1 };
    let day_before = Timestamp::from_micros(now.as_micros() - DAY_S * 1_000_000);
    let own = (0..KEYS).flat_map(|who| {
        let before = slidegate.spend(who, 0, PREVIOUS, day_before);
        [before, slidegate.spend(who, 0, current(who), now)]
    });
    let number = now.as_micros() / (DAY_S * 1_000_000);
    let plain =
        (0..KEYS).flat_map(|who| [set(who, number - 1, PREVIOUS), set(who, number, current(who))]);
    let [own_seat, plain_seat] = seats;
    let grown = [grown(own_seat, own)?, grown(plain_seat, plain)?];
    assert_eq!(slidegate.script_of_one(), slidegate.script(), "what fills is what is measured");
    Ok(grown)
}

/// As INCRBY and EXPIRE would.
fn set(who: usize, window: u64, count: u64) -> Cmd {
    let mut command = redis::cmd("SET");
    command.arg(format!("{}:{window}", plain_key(who))).arg(count).arg("EX").arg(2 * DAY_S);
    command
}

/// By how many bytes a server grows for each of the identities.
pub fn grown(seat: &mut Seat<'_>, fill: impl Iterator<Item = Cmd>) -> Result<f64, Box<dyn Error>> {
    let before = seat.server.used_memory()?;
    seat.server.send_all(fill)?;
    Ok((seat.server.used_memory()? - before) / KEYS as f64)
}
