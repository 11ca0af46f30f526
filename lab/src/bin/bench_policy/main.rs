//! Measures policies with a thousand rules: loading times, and decision times compared with three rules; and decision
//! times with many matching rules.
//!
//! `make bench-policy`, with `ARGS=--quick`, or with the names of sections: `ARGS=loading`.

mod decisions;
mod loading;
mod matching_rules;

use std::alloc::System;
use std::error::Error;

use lab::part;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

/// The allocator that counts allocations.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() -> Result<(), Box<dyn Error>> {
    part::main(&[
        ("loading", loading::run),
        ("decisions", decisions::run),
        ("applying", matching_rules::run),
    ])
}
