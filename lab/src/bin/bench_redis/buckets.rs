//! Three limits of one identity beside a hash of buckets.

use std::error::Error;
use std::time::Duration;

use lab::part::Part;
use lab::table::Table;
use lab::targets::{Aim, Bound};
use redis::Cmd;
use slidegate::{Algorithm, Clock, SystemClock, Timestamp};

use crate::Scope;
use crate::counter::{grown, memory_row, memory_table};
use crate::course::{Ask, Course};
use crate::rounds::{PIPELINED, SINGLE, Seat, Seats, Turn, compare, table};
use crate::side::{Plain, Slidegate, plain_key};

const KEYS: usize = 100_000;

const QUOTAS: [&str; 3] = ["10/s", "600/min", "10000/h"];

/// Window and precision in seconds, and max.
type Limits = [(u64, u64, u64); 3];

/// As in the article, where only the longest window slides.
const ONE_SLIDES: Limits = [(1, 1, 10), (60, 60, 600), (3600, 60, 10_000)];

/// Where the minute does, too.
const TWO_SLIDE: Limits = [(1, 1, 10), (60, 5, 600), (3600, 60, 10_000)];

const CPU: Aim = Aim {
    text: "three limits beside the hash of buckets, CPU",
    bound: Bound::AtMost(0.35),
    limited_by: "half of all calls are denied, which the hash does after four to six HGETs; three decisions in Lua, each \
        with its arguments unpacked, take two to three times as long as one. It is one GET and one SET. For windows that \
        all slide, as slidegate's do, compare \"two slide\".",
};

/// Measures young and old identities with the caller's clock, and old ones with Redis's.
pub fn run(scope: Scope, part: &mut Part) -> Result<(), Box<dyn Error>> {
    part.progress.expect(if scope.is_short { 2 } else { 7 });
    part.say(format!(
        "### Three limits of one identity beside a hash of buckets\n\n10/s, 600/min and 10000/h; the hash has buckets of a second, a minute (or 5 s, so that two windows slide) and a minute; limits \
         as JSON; HGET, HGET and HDEL of what has left, HINCRBY and HSET of each limit, EXPIRE. {KEYS} identities; every other one is full, by the \
         minute or the hour (with TIME: by the hour). Young ones have been asking for 2 minutes, old ones for an hour."
    ));
    let (mut costs, mut memory) = (table(), memory_table());
    let half_past = Timestamp::from_secs(500_000 * 3600 + 1805);
    for (age, minutes, limits, told) in [
        ("young", 2, ONE_SLIDES, true),
        ("old", 60, ONE_SLIDES, true),
        ("old, two slide", 60, TWO_SLIDE, true),
        ("old", 60, ONE_SLIDES, false),
    ]
    .into_iter()
    .take(if scope.is_short { 1 } else { 4 })
    {
        let (clock, start) = match told {
            true => ("caller's clock", half_past),
            false => ("TIME", SystemClock::new().now()),
        };
        let case = Case { name: format!("{age}, {clock}"), minutes, limits, start, told };
        measure(scope, &case, &mut costs, &mut memory, part)?;
    }
    part.table(&costs);
    part.table(&memory);
    Ok(())
}

struct Case {
    name: String,
    /// Since when identities have been asking.
    minutes: u64,
    limits: Limits,
    start: Timestamp,
    /// Whether callers tell the time.
    told: bool,
}

impl Case {
    /// Which limit an identity has come to the end of.
    fn full(&self, who: usize) -> Option<usize> {
        match who % 4 {
            0 => Some(2),
            2 => Some(if self.told { 1 } else { 2 }),
            _ => None,
        }
    }
}

fn measure(
    scope: Scope,
    case: &Case,
    costs: &mut Table,
    memory: &mut Table,
    part: &mut Part,
) -> Result<(), Box<dyn Error>> {
    let slidegate = Slidegate::new(&QUOTAS, Algorithm::SlidingWindow)?;
    let json = case.limits.map(|(window, precision, max)| format!("[{window},{max},{precision}]"));
    let json = format!("[{}]", json.join(","));
    let plain = Plain::new(include_str!("plain/buckets.lua"), |ask: Ask| {
        let now_s = ask.now.map_or(String::new(), |now| (now.as_micros() / 1_000_000).to_string());
        vec![json.clone(), now_s, "1".to_owned()]
    });
    let mut seats = [Seat::new(&slidegate)?, Seat::new(&plain)?];
    seats[0].server.load(&slidegate.script_of_one())?;
    let bytes = fill(&mut seats, &slidegate, case)?;
    memory_row(&format!("{}, used_memory", case.name), bytes, memory);

    // All asks are within half a minute, so no minute ends.
    let step = Duration::from_micros(30_000_000 / (3 * scope.rounds * scope.decisions) as u64);
    let time = case.told.then_some((case.start, step));
    let mut course = Course { who: KEYS, time, passed: 0 };
    let turn = Turn { pace: PIPELINED, before: None, measured: scope.decisions };
    let ratio = compare(scope, &case.name, &mut seats, &mut course, turn, costs, part)?;
    part.hold(&CPU, ratio);
    if case.told {
        let turn = Turn { pace: SINGLE, measured: scope.decisions / 2, ..turn };
        compare(scope, &case.name, &mut seats, &mut course, turn, costs, part)?;
    }
    Ok(())
}

/// Brings every identity into both; by how many bytes each side grows for one.
fn fill(
    seats: &mut Seats<'_>,
    slidegate: &Slidegate,
    case: &Case,
) -> Result<[f64; 2], Box<dyn Error>> {
    let start_s = case.start.as_micros() / 1_000_000;
    let own = (0..KEYS).flat_map(|who| {
        (0..case.limits.len()).flat_map(move |nth| {
            let (window, _, max) = case.limits[nth];
            let now = if case.full(who) == Some(nth) { max } else { 1 };
            let before = Timestamp::from_secs(start_s - window);
            let before =
                (case.minutes >= 60 || nth < 2).then(|| slidegate.spend(who, nth, 1, before));
            before.into_iter().chain([slidegate.spend(who, nth, now, case.start)])
        })
    });
    let plain = (0..KEYS).map(|who| history(who, start_s, case));
    let [own_seat, plain_seat] = seats;
    Ok([grown(own_seat, own)?, grown(plain_seat, plain)?])
}

/// The hash of an identity that has asked once a minute.
fn history(who: usize, now_s: u64, case: &Case) -> Cmd {
    let mut command = redis::cmd("HSET");
    command.arg(plain_key(who));
    for (nth, (window, precision, max)) in case.limits.into_iter().enumerate() {
        let (running, held) = (now_s / precision, window / precision);
        let name = format!("{window}:{precision}:");
        let buckets = (case.minutes * 60 / precision).min(held);
        let older = buckets - 1;
        let newest = if case.full(who) == Some(nth) { max - older } else { 1 };
        command.arg(format!("{name}o")).arg(running - held + 1);
        command.arg(&name).arg(newest + older);
        command.arg(format!("{name}{running}")).arg(newest);
        for bucket in running - older..running {
            command.arg(format!("{name}{bucket}")).arg(1);
        }
    }
    command
}
