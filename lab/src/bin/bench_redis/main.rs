//! Measures what slidegate's scripts cost Redis beside plain scripts as they are commonly published, and says
//! which targets are met.
//!
//! `cargo run --release -p lab --bin bench_redis [-- --quick]`: about a quarter of an hour, or five
//! minutes.
//! Starts redis-servers of its own. Tables in markdown go to standard output, progress to standard error.

mod buckets;
mod counter;
mod course;
mod driver;
mod log;
mod rounds;
mod server;
mod side;

use std::env;
use std::error::Error;

use lab::targets::Targets;

/// How long.
#[derive(Clone, Copy)]
pub struct Scope {
    /// Rounds of which the median is taken: many short ones, so that a noisy second spoils few.
    rounds: usize,
    /// The same where a round has to wait for time to pass.
    slow_rounds: usize,
    /// Decisions of a side in a round.
    decisions: usize,
    /// Charges that fit in all logs together.
    log_charges: usize,
}

const FULL: Scope = Scope { rounds: 41, slow_rounds: 7, decisions: 20_000, log_charges: 200_000 };

const QUICK: Scope = Scope { rounds: 15, slow_rounds: 3, decisions: 8_000, log_charges: 100_000 };

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [] => run(FULL),
        ["--quick"] => run(QUICK),
        _ => Err("usage: bench_redis [--quick]".into()),
    }
}

fn run(scope: Scope) -> Result<(), Box<dyn Error>> {
    println!("### {}\n", server::version()?);
    println!("{}\n", rounds::EXPLAINED);
    let mut targets = Targets::default();
    log::run(scope, &mut targets)?;
    counter::run(scope, &mut targets)?;
    buckets::run(scope, &mut targets)?;
    println!("### Targets of Redis\n\n{}", targets.table());
    Ok(())
}
