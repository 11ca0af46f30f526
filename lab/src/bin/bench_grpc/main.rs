//! Measures the gRPC face beside a service of tonic that answers OK with the same bytes, whatever it is asked.
//!
//! `cargo run --release -p lab --features grpc --bin bench_grpc [-- --quick]`, after `cargo build --release`: about five
//! minutes, or one. h2load makes the calls. A table in markdown goes to standard output, progress to standard
//! error.

mod bare;
mod load;
mod server;

use std::env;
use std::error::Error;

use lab::table::Table;
use lab::targets::{Bound, Targets};

use load::{Load, Measured};
use server::Server;

/// The messages and tonic's code for the service.
#[allow(missing_docs, clippy::all, reason = "generated")]
mod messages {
    include!(concat!(env!("OUT_DIR"), "/messages.rs"));
}

/// How long.
struct Scope {
    /// Rounds of which the median is taken.
    rounds: usize,
    /// Calls in a round.
    calls: usize,
}

const FULL: Scope = Scope { rounds: 9, calls: 200_000 };

const QUICK: Scope = Scope { rounds: 3, calls: 60_000 };

/// The least share of the throughput of the faster of tonic's runtimes.
const TARGET: f64 = 0.90;

/// How it is asked.
const LOADS: [Load; 4] = [
    Load { name: "1 descriptor, 1 call a connection", descriptors: 1, depth: 1 },
    Load { name: "1 descriptor, 10 calls a connection", descriptors: 1, depth: 10 },
    Load { name: "3 descriptors, 1 call a connection", descriptors: 3, depth: 1 },
    Load { name: "3 descriptors, 10 calls a connection", descriptors: 3, depth: 10 },
];

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [] => run(&FULL),
        ["--quick"] => run(&QUICK),
        // The other process: a server of tonic.
        [bare::ARGUMENT, threads, answer] => bare::serve(threads, answer),
        _ => Err("usage: bench_grpc [--quick]".into()),
    }
}

fn run(scope: &Scope) -> Result<(), Box<dyn Error>> {
    let mut targets = Targets::default();
    let mut table = Table::new(["`ShouldRateLimit`", "server", "calls/s", "CPU s per 1 M calls"]);
    for load in &LOADS {
        eprintln!("{} …", load.name);
        let slidegate = server::slidegate()?;
        let answer = load.answer(slidegate.address())?;
        let servers = [slidegate, server::bare("0", &answer)?, server::bare("2", &answer)?];
        let measured = compare(scope, load, &servers)?;
        let names = ["slidegate", "tonic, current_thread", "tonic, 2 workers"];
        for (name, measured) in names.iter().zip(&measured) {
            table.row([
                load.name.to_owned(),
                (*name).to_owned(),
                format!("{:.0}", measured.per_second),
                format!("{:.1}", measured.cpu_us),
            ]);
        }
        let [own, bare @ ..] = measured.map(|measured| measured.per_second);
        let throughput = own / bare.into_iter().fold(0.0, f64::max);
        eprintln!("{}: {throughput:.3} of the faster", load.name);
        targets.hold("slidegate beside the faster", Bound::AtLeast(TARGET), throughput);
    }
    println!("### gRPC\n\n{table}\n### Targets\n\n{}", targets.table());
    Ok(())
}

/// The medians of rounds in which all take turns, and begin in turn.
fn compare(
    scope: &Scope,
    load: &Load,
    servers: &[Server; 3],
) -> Result<[Measured; 3], Box<dyn Error>> {
    let mut rounds = [const { Vec::new() }; 3];
    for round in 0..=scope.rounds {
        for turn in 0..servers.len() {
            let which = (round + turn) % servers.len();
            let measured = load.run(&servers[which], scope.calls)?;
            // The first round fills tables and caches.
            if round > 0 {
                rounds[which].push(measured);
            }
        }
    }
    Ok(rounds.map(|rounds| Measured::median(&rounds)))
}
