//! Made arrivals: an even pace, Poisson, bursts.

use std::error::Error;
use std::time::Duration;

use lab::accuracy::{Tally, judge};
use lab::arrivals::{LOADS, PATTERNS, Pattern};
use lab::part::{Effort, Part};
use lab::table::Table;
use slidegate::{Algorithm, Limit};

use crate::limits;
use crate::pool::{self, Kind, shown};

const MAX: u64 = 100;

const WINDOW: Duration = Duration::from_secs(10);

/// Windows for which each key asks.
const WINDOWS: u64 = 200;

const HOW: &str = "\
### Against an exact log

Each algorithm decides, and beside it an exact log keeps what that algorithm has allowed. At each request the log tells \
what would have been right: to allow it if no more than max are then allowed in the window that ends now. Nothing here \
is a time: the clock is set by hand and chance is seeded, so every run has the same figures. Each request costs one unit.

- **allowed**: how many of all requests the algorithm let pass.
- **false allows**: let pass, though the window was full; **false denies**: denied, though there was room. Both of all \
requests.
- **off by**: how far from the limit the wrong ones were on average, of max: what was beyond max, or the room that there \
was. (Under more requests than it holds a limit stands at its max all the time. An algorithm that counts one unit too many \
then denies wrongly, request after request, and yet **allowed** is nearly what the log allows.)
- **wrong near the limit**: of those requests alone that are within 20 % of the limit (the exact count, this request \
included, is between 0.8 max and 1.2 max), how many were decided wrongly, either way. Far from the limit all are right.
- **worst window**: the most that was allowed in any window, of max; **bound**: the most that can be, by any traffic, as \
[ALGORITHMS.md](ALGORITHMS.md) proves.

Of the five, `sliding_log` and `sliding_buckets` promise never more than max. The others trade that for less memory \
(`sliding_window`), for windows of the calendar (`fixed_window`), or for bursts on top of a steady rate (`token_bucket`, \
whose burst is by design, and counts as false allows here all the same).";

/// Measures all patterns.
pub fn run(effort: Effort, part: &mut Part) -> Result<Vec<Kind>, Box<dyn Error>> {
    let keys = effort.pick(50, 5);
    part.progress.expect(PATTERNS.len());
    part.say(HOW);
    part.say(format!(
        "In the next three tables the limit is {MAX} per {} s. {keys} keys ask through {WINDOWS} windows at each of four \
         paces: {} times what the limit holds. Each begins at another place of its window.",
        WINDOW.as_secs(),
        LOADS.map(|load| load.to_string()).join(", "),
    ));
    let (mut kinds, mut by_load) = (Vec::new(), of_loads());
    for pattern in PATTERNS {
        part.progress.step(pattern.name());
        let all = measure(pattern, keys)?;
        let mut pools = pool::empty();
        for (pool, (limit, tallies)) in pools.iter_mut().zip(&all) {
            tallies.iter().try_for_each(|tally| pool.add(limit, tally))?;
            if limit.algorithm() == Algorithm::default() {
                add(&mut by_load, pattern, tallies);
            }
        }
        part.say(heading(pattern));
        pool::tell(part, &pools);
        kinds.push(Kind { name: pattern.name(), pools });
    }
    part.say(
        "#### The default by pace\n\nWrong decisions of `sliding_window` among all requests, and among those within \
         20 % of the limit, by how much is asked beside what the limit holds.",
    );
    part.table(&by_load);
    Ok(kinds)
}

fn heading(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::Even => "#### Even pace\n\nEach request comes as long after the one before.",
        Pattern::Poisson => {
            "#### Poisson\n\nEach request comes on its own, by chance, as those of many clients do."
        }
        Pattern::Bursts => {
            "#### Bursts\n\nSpells of four times the pace and spells of silence, of random lengths: a quarter of a \
             window and three quarters on average."
        }
    }
}

/// What each limit came to, load by load.
type ByLoad = Vec<(Limit, [Tally; LOADS.len()])>;

fn measure(pattern: Pattern, keys: u64) -> Result<ByLoad, Box<dyn Error>> {
    let window_us = WINDOW.as_micros() as u64;
    let limits = limits(MAX, WINDOW)?.into_iter();
    let mut all: ByLoad = limits.map(|limit| (limit, Default::default())).collect();
    for (nth, load) in LOADS.into_iter().enumerate() {
        for key in 0..keys {
            let arrivals = pattern.arrivals(window_us, load * MAX as f64, WINDOWS, key);
            for (limit, tallies) in &mut all {
                tallies[nth] += judge(limit, key, &arrivals)?;
            }
        }
    }
    Ok(all)
}

fn of_loads() -> Table {
    let loads = LOADS.map(|load| format!("{load}x: all"));
    let columns = loads.into_iter().flat_map(|load| [load, "near".to_owned()]);
    Table::new(["arrivals".to_owned()].into_iter().chain(columns))
}

fn add(table: &mut Table, pattern: Pattern, tallies: &[Tally]) {
    let cells =
        tallies.iter().flat_map(|tally| [tally.wrong_percent(), tally.near_wrong_percent()]);
    table.row([pattern.name().to_owned()].into_iter().chain(cells.map(shown)));
}
