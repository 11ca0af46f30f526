//! Measures the loading time of policies with 1,000 rules. Also measures decision times: with 1,000 rules compared with
//! three rules, and with many rules that match the same request.
//!
//! `make bench-policy` runs all sections. `ARGS=--quick` shortens the measurements, and `ARGS=loading` runs only the
//! named section.

mod decisions;
mod loading;
mod matching_rules;

use std::alloc::System;
use std::error::Error;

use lab::part;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

/// The global allocator of this program, which counts memory allocations.
#[global_allocator]
static COUNTING_ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() -> Result<(), Box<dyn Error>> {
    part::main(&[
        ("loading", loading::run),
        ("decisions", decisions::run),
        ("applying", matching_rules::run),
    ])
}
