//! Measures slidegate's memory store beside its peers, and says which targets are met.
//!
//! `cargo run --release -p lab --bin bench_memory [-- --quick]`: about six minutes and 5 GB, or half a
//! minute. Tables in markdown go to standard output, progress to standard error.

mod batches;
mod decisions;
mod footprint;
mod hot_key;
mod log;

use std::env;
use std::error::Error;

use lab::targets::Targets;

/// How long and how large.
pub struct Scope {
    /// Rounds of which the median is taken.
    rounds: usize,
    /// Keys in the store.
    key_counts: &'static [usize],
}

const FULL: Scope = Scope { rounds: 7, key_counts: &[1_000_000, 10_000_000] };

const QUICK: Scope = Scope { rounds: 3, key_counts: &[1_000_000] };

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [] => run(&FULL),
        ["--quick"] => run(&QUICK),
        [footprint::CHILD, what, keys, key_len] => footprint::child(what, keys, key_len),
        [log::CHILD, what] => log::child(what),
        _ => Err("usage: bench_memory [--quick]".into()),
    }
}

fn run(scope: &Scope) -> Result<(), Box<dyn Error>> {
    let mut targets = Targets::default();
    for &keys in scope.key_counts {
        decisions::run(scope, keys, &mut targets)?;
    }
    footprint::run(scope, &mut targets)?;
    log::run(scope, &mut targets)?;
    hot_key::run(scope, &mut targets)?;
    println!("## Targets\n\n{}", targets.table());
    Ok(())
}
