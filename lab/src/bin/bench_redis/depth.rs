//! How many decisions a second one Redis makes, by how many asks a connection sends before it reads the answers.

use std::error::Error;

use lab::chart::{Line, Lines};
use lab::part::Part;
use lab::table::Table;
use redis::{Cmd, Value};
use slidegate::Algorithm;

use crate::Scope;
use crate::course::{Ask, Course};
use crate::driver::StoreKind;
use crate::rounds::{Cost, Seat, Turn, median};
use crate::side::{Side, Slidegate, plain_key};
use crate::two_keys;

const KEYS: usize = 100_000;

const DEPTHS: [usize; 4] = [1, 4, 16, 64];

/// One INCR: the least that a count in Redis costs.
struct Incr;

impl Side for Incr {
    fn script(&self) -> String {
        "return 0".to_owned()
    }

    fn take(&self, ask: Ask) -> Cmd {
        let mut command = redis::cmd("INCR");
        command.arg(plain_key(ask.who));
        command
    }

    fn admits(&self, _: &Value) -> bool {
        true
    }
}

/// Measures slidegate's window, the two-key script and INCR.
pub fn run(scope: Scope, part: &mut Part) -> Result<(), Box<dyn Error>> {
    part.progress.expect(DEPTHS.len());
    let (slidegate, plain) =
        (Slidegate::new(&["1000000/d"], Algorithm::SlidingWindow)?, two_keys::by_time(1_000_000));
    let mut seats = [Seat::new(&slidegate)?, Seat::new(&plain)?, Seat::new(&Incr)?];
    let names = ["sliding_window", "two keys", "INCR"];
    let mut table = Table::new([
        "pipeline",
        "sliding_window, decisions/s",
        "two keys",
        "INCR",
        "sliding_window, us",
        "two keys",
        "INCR",
    ]);
    let mut lines =
        names.map(|name| Line { name: name.to_owned(), points: Vec::with_capacity(DEPTHS.len()) });
    for depth in DEPTHS {
        part.progress.step(&format!("pipelines of {depth}"));
        let costs = measure(scope, depth, &mut seats)?;
        let rates = costs.map(|cost| format!("{:.0}", cost.per_second));
        let times = costs.map(|cost| format!("{:.1}", cost.us));
        table.row([depth.to_string()].into_iter().chain(rates).chain(times));
        for (line, cost) in lines.iter_mut().zip(&costs) {
            line.points.push((depth as f64, cost.per_second));
        }
    }
    part.say(format!(
        "### Pipelining\n\n50 connections over {KEYS} identities by TIME, all allowed. Decisions a second with the caller on \
         the other core, and CPU of Redis' main thread for one, in microseconds."
    ));
    part.table(&table);
    let title = "Decisions a second of one Redis, by pipelining";
    let x = "asks that a connection sends before it reads the answers";
    let svg = Lines { title, x, y: "decisions/s", is_log_x: true, lines: &lines }.draw()?;
    part.chart("redis-depth", "decisions a second of one Redis by depth of pipelines", svg);
    Ok(())
}

/// Medians of rounds in which all take turns.
fn measure(
    scope: Scope,
    depth: usize,
    seats: &mut [Seat<'_>; 3],
) -> Result<[Cost; 3], Box<dyn Error>> {
    let pace = StoreKind { depth, per_second: None };
    let mut rounds: [Vec<Cost>; 3] = Default::default();
    for round in 0..scope.rounds.min(7) {
        for nth in 0..seats.len() {
            let at = (round + nth) % seats.len();
            let course = Course { who: KEYS, time: None, passed: (round * scope.decisions) as u64 };
            let turn = Turn { pace, before: None, measured: scope.decisions };
            rounds[at].push(seats[at].turn(&course, turn)?);
        }
    }
    let of = |costs: &Vec<Cost>, field: fn(&Cost) -> f64| median(costs.iter().map(field));
    Ok(rounds.each_ref().map(|costs| Cost {
        us: of(costs, |cost| cost.us),
        denied: of(costs, |cost| cost.denied),
        per_second: of(costs, |cost| cost.per_second),
    }))
}
