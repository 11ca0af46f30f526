//! Counts the instructions that a rate limit adds to a request of an axum service, beside `tower_governor`.
//!
//! `cargo run --release -p lab --features tower --bin instructions_tower` needs valgrind. A table in markdown
//! goes to standard output. To see where a case's instructions go:
//! `valgrind --tool=callgrind --toggle-collect='*::count_instructions*' target/release/instructions_tower run CASE 4000`,
//! and then `callgrind_annotate --inclusive=yes`.

mod cases;

use std::env;
use std::error::Error;

use cases::{ALL, Case};
use lab::callgrind;
use lab::table::Table;
use lab::targets::{Bound, Targets};

/// The argument that makes this program the child which valgrind watches.
const CHILD: &str = "run";

/// Requests of a run, and of one twice as long: their difference has what is done per request, and nothing of
/// what is done once.
const RUNS: [&str; 2] = ["4000", "8000"];

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [] => compare(),
        [CHILD, name, requests] => {
            let case = ALL.iter().find(|case| case.name == name).ok_or("no such case")?;
            Ok(case.run(requests.parse()?)?)
        }
        _ => Err("usage: instructions_tower".into()),
    }
}

fn compare() -> Result<(), Box<dyn Error>> {
    let all: Vec<f64> = ALL.iter().map(per_request).collect::<Result<_, _>>()?;
    let [bare, peer, ..] = all[..] else { return Err("there are two cases at least".into()) };
    let mut table = Table::new(["", "instructions per request", "added", "times tower_governor's"]);
    let mut targets = Targets::default();
    for (case, all) in ALL.iter().zip(all) {
        let added = all - bare;
        let times = added / (peer - bare);
        let cells = [format!("{all:.0}"), format!("{added:.0}"), format!("{times:.2}")];
        table.row([case.title, &cells[0], &cells[1], &cells[2]]);
        if case.is_held {
            targets.hold(case.title, Bound::AtMost(0.7), times);
        }
    }
    println!("{table}\n{}", targets.table());
    Ok(())
}

/// Instructions of one request.
fn per_request(case: &Case) -> Result<f64, Box<dyn Error>> {
    let run =
        |requests| callgrind::instructions("count_instructions", &[CHILD, case.name, requests]);
    let [once, twice] = RUNS;
    let requests = twice.parse::<f64>()? - once.parse::<f64>()?;
    Ok((run(twice)? as f64 - run(once)? as f64) / requests)
}
