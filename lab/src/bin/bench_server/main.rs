//! Measures what it costs the server to be watched: `/v1/check` with everything gathered, beside nothing.
//!
//! `cargo run --release -p lab --bin bench_server [-- --quick]`, after `cargo build --release`: about nine
//! minutes, or two. A table in markdown goes to standard output, progress to standard error.

mod callers;
mod server;

use std::env;
use std::error::Error;

use lab::table::Table;
use lab::targets::{Bound, Targets};

use callers::{Load, Measured};

/// How long.
struct Scope {
    /// Rounds of which the median is taken.
    rounds: usize,
    /// Requests of each caller in a round.
    requests: usize,
}

const FULL: Scope = Scope { rounds: 11, requests: 20_000 };

const QUICK: Scope = Scope { rounds: 5, requests: 8_000 };

/// The least share of the unwatched server's throughput.
const TARGET: f64 = 0.95;

/// What is asked, and how.
const LOADS: [Load; 4] = [
    Load { name: "all allowed", policy: server::ROOMY, tenants: 10_000, depth: 1 },
    Load { name: "all allowed, 16 at a time", policy: server::ROOMY, tenants: 10_000, depth: 16 },
    Load { name: "nearly all denied", policy: server::NARROW, tenants: 1_000, depth: 1 },
    Load {
        name: "nearly all denied, 16 at a time",
        policy: server::NARROW,
        tenants: 1_000,
        depth: 16,
    },
];

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [] => run(&FULL),
        ["--quick"] => run(&QUICK),
        _ => Err("usage: bench_server [--quick]".into()),
    }
}

fn run(scope: &Scope) -> Result<(), Box<dyn Error>> {
    let mut targets = Targets::default();
    let mut table = Table::new([
        "`/v1/check`",
        "watched, requests/s",
        "unwatched, requests/s",
        "throughput",
        "watched, CPU µs",
        "unwatched, CPU µs",
        "denied",
    ]);
    for load in &LOADS {
        eprintln!("{} …", load.name);
        let (watched, unwatched) = compare(scope, load)?;
        let throughput = watched.per_second / unwatched.per_second;
        table.row([
            load.name.to_owned(),
            format!("{:.0}", watched.per_second),
            format!("{:.0}", unwatched.per_second),
            format!("{throughput:.3}"),
            format!("{:.2}", watched.cpu_us),
            format!("{:.2}", unwatched.cpu_us),
            format!("{:.0} %", 100.0 * watched.denied),
        ]);
        targets.hold("watched beside unwatched", Bound::AtLeast(TARGET), throughput);
    }
    println!("### The server, watched\n\n{table}\n### Targets\n\n{}", targets.table());
    Ok(())
}

/// The medians of rounds in which both take turns, and begin in turn.
fn compare(scope: &Scope, load: &Load) -> Result<(Measured, Measured), Box<dyn Error>> {
    let servers = [server::start(load.policy, true)?, server::start(load.policy, false)?];
    let mut rounds = [Vec::new(), Vec::new()];
    for round in 0..=scope.rounds {
        for turn in 0..2 {
            let which = (round + turn) % 2;
            let measured = load.run(&servers[which], scope.requests)?;
            // The first round fills tables and caches.
            if round > 0 {
                rounds[which].push(measured);
            }
        }
    }
    let [watched, unwatched] = rounds;
    Ok((Measured::median(&watched), Measured::median(&unwatched)))
}
