//! Measures what slidegate's scripts cost Redis beside plain scripts as they are commonly published, and says
//! which targets are met.
//!
//! `cargo run --release -p lab --features redis --bin bench_redis [-- --quick] [PART...]`: about twenty minutes, or seven. Parts are
//! log, counter, buckets, callers and denials; all if none is named.
//! Starts redis-servers of its own. Tables in markdown go to standard output, progress to standard error.

mod buckets;
mod callers;
mod counter;
mod course;
mod crowd;
mod denials;
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
    /// Rounds of many callers.
    crowd_rounds: usize,
    /// Asks of a side in a round of many callers.
    crowd_asks: usize,
    /// Asks of which most are denied.
    denials: usize,
}

const FULL: Scope = Scope {
    rounds: 41,
    slow_rounds: 7,
    decisions: 20_000,
    log_charges: 200_000,
    crowd_rounds: 15,
    crowd_asks: 40_000,
    denials: 40_000,
};

const QUICK: Scope = Scope {
    rounds: 15,
    slow_rounds: 3,
    decisions: 8_000,
    log_charges: 100_000,
    crowd_rounds: 7,
    crowd_asks: 20_000,
    denials: 10_000,
};

/// A part: measures, prints its tables, and holds against targets.
type Part = fn(Scope, &mut Targets) -> Result<(), Box<dyn Error>>;

const PARTS: [(&str, Part); 5] = [
    ("log", log::run),
    ("counter", counter::run),
    ("buckets", buckets::run),
    ("callers", callers::run),
    ("denials", denials::run),
];

fn main() -> Result<(), Box<dyn Error>> {
    let (mut scope, mut named) = (FULL, Vec::new());
    for arg in env::args().skip(1) {
        match PARTS.iter().find(|(name, _)| *name == arg) {
            Some((_, part)) => named.push(*part),
            None if arg == "--quick" => scope = QUICK,
            None => return Err("usage: bench_redis [--quick] [PART...]".into()),
        }
    }
    if named.is_empty() {
        named.extend(PARTS.map(|(_, part)| part));
    }
    println!("### {}\n", server::version()?);
    println!("{}\n", rounds::EXPLAINED);
    let mut targets = Targets::default();
    for part in named {
        part(scope, &mut targets)?;
    }
    println!("### Targets of Redis\n\n{}", targets.table());
    Ok(())
}
