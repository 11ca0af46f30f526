//! Measures policies of a thousand rules: how long they take to load, and what a decision takes beside one
//! under three rules.
//!
//! `cargo run --release -p lab --bin bench_policy [-- --quick]`: about two minutes, or half a one. Tables in
//! markdown go to standard output, progress to standard error.

mod decisions;
mod loading;

use std::alloc::System;
use std::env;
use std::error::Error;

use lab::targets::Targets;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

/// Counts the allocations.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// How long.
pub struct Scope {
    /// Rounds of which the median is taken.
    rounds: usize,
    /// Decisions in a round.
    decisions: usize,
}

const FULL: Scope = Scope { rounds: 7, decisions: 600_000 };

const QUICK: Scope = Scope { rounds: 3, decisions: 150_000 };

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [] => run(&FULL),
        ["--quick"] => run(&QUICK),
        _ => Err("usage: bench_policy [--quick]".into()),
    }
}

fn run(scope: &Scope) -> Result<(), Box<dyn Error>> {
    let mut targets = Targets::default();
    loading::run(scope, &mut targets)?;
    decisions::run(scope, &mut targets)?;
    println!("### Targets\n\n{}", targets.table());
    Ok(())
}
