//! Counts the instructions that a rate limit adds to a request of an axum service, beside `tower_governor`.
//!
//! `cargo run --release -p lab --features tower --bin bench_tower` needs valgrind. A table in markdown
//! goes to standard output. To see where a case's instructions go:
//! `valgrind --tool=callgrind --toggle-collect='*::count_instructions*' target/release/bench_tower run CASE 4000`,
//! and then `callgrind_annotate --inclusive=yes`.

mod cases;

use std::env;
use std::error::Error;

use cases::{ALL, Case};
use lab::callgrind;
use lab::part::{self, Effort, Part};
use lab::table::Table;
use lab::targets::{Aim, Bound};

/// The argument that makes this program the child which valgrind watches.
const CHILD: &str = "run";

/// Requests of a run, and of one twice as long: their difference has what is done per request, and nothing of
/// what is done once.
const RUNS: [&str; 2] = ["4000", "8000"];

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [CHILD, name, requests] => {
            let case = ALL.iter().find(|case| case.name == name).ok_or("no such case")?;
            Ok(case.run(requests.parse()?)?)
        }
        _ => part::main(&[("layers", compare)]),
    }
}

const ADDED: Aim = Aim {
    text: "instructions that a limiter per peer's address adds to axum, times tower_governor's",
    bound: Bound::AtMost(0.7),
    limited_by: LIMITED_BY,
};

const ADDED_BY_A_GATE: Aim = Aim {
    text: "instructions that a gate with one rule adds to axum, times tower_governor's",
    bound: Bound::AtMost(0.7),
    limited_by: "the same, and the rule: attributes are gathered, rules found, and a key made of values.",
};

const LIMITED_BY: &str = "axum itself takes a quarter of tower_governor's for any layer: it boxes the service and its \
    future, and clones it for each request. The decision and two headers of the standard's are the rest; tower_governor \
    tells a number each.";

fn compare(_: Effort, part: &mut Part) -> Result<(), Box<dyn Error>> {
    part.progress.expect(1);
    part.progress.step("counting instructions of a layer");
    let all: Vec<f64> = ALL.iter().map(per_request).collect::<Result<_, _>>()?;
    let [bare, peer, ..] = all[..] else { return Err("there are two cases at least".into()) };
    let mut table = Table::new(["", "instructions per request", "added", "times tower_governor's"]);
    for (case, all) in ALL.iter().zip(all) {
        let added = all - bare;
        let times = added / (peer - bare);
        let cells = [format!("{all:.0}"), format!("{added:.0}"), format!("{times:.2}")];
        table.row([case.title, &cells[0], &cells[1], &cells[2]]);
        if let Some(aim) = case.aim {
            part.hold(aim, times);
        }
    }
    part.say(
        "Instructions that a rate limit adds to an axum service that says hello, counted by callgrind, so nothing here is a \
         time, and other programs do not matter. A router is asked by `oneshot`, without sockets, by 512 addresses in turn; \
         each may do a million requests an hour, so all are allowed, and each answer has the limit's headers. What is done \
         once falls out, since it is the difference of two runs. tower_governor tells `x-ratelimit-limit` and \
         `-remaining`; slidegate `RateLimit-Policy` and `RateLimit`.",
    );
    part.table(&table);
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
