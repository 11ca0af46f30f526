//! Measures decisions of a cluster's store beside those of the memory store, what many active keys cost nodes that
//! tell each other, and what slips through.
//!
//! `cargo run --release -p lab --features cluster --bin bench_cluster [-- --quick | decisions | keys | slipped [SVG]]`,
//! beside a built server: about fifteen minutes, or two. Tables in markdown go to standard output, progress to
//! standard error.

mod decisions;
mod keys;
mod slipped;

use std::env;
use std::error::Error;
use std::time::Duration;

use lab::targets::Targets;

/// How long and how large.
pub struct Scope {
    /// Rounds of which the median is taken.
    rounds: usize,
    /// Keys in the store.
    key_counts: &'static [usize],
    /// How long keys are charged.
    charging: Duration,
    /// The window of the limit through which something slips.
    window: Duration,
}

const FULL: Scope = Scope {
    rounds: 9,
    key_counts: &[1_000, 100_000, 1_000_000],
    charging: Duration::from_secs(20),
    window: Duration::from_secs(60),
};

const QUICK: Scope = Scope {
    rounds: 3,
    key_counts: &[1_000, 100_000],
    charging: Duration::from_secs(5),
    window: Duration::from_secs(5),
};

/// Windows for which servers are asked.
const WINDOWS: u32 = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [] => all(&FULL),
        ["--quick"] => all(&QUICK),
        ["decisions"] => decide(&FULL),
        ["keys"] => keys::run(FULL.charging),
        ["slipped"] => slipped::run(FULL.window, WINDOWS, None),
        ["slipped", picture] => slipped::run(FULL.window, WINDOWS, Some(picture)),
        _ => Err("usage: bench_cluster [--quick | decisions | keys | slipped [SVG]]".into()),
    }
}

fn all(scope: &Scope) -> Result<(), Box<dyn Error>> {
    decide(scope)?;
    keys::run(scope.charging)?;
    slipped::run(scope.window, WINDOWS, None)
}

fn decide(scope: &Scope) -> Result<(), Box<dyn Error>> {
    let mut targets = Targets::default();
    for &keys in scope.key_counts {
        decisions::run(scope, keys, &mut targets)?;
    }
    println!("## Targets\n\n{}", targets.table());
    Ok(())
}
