//! Measures policies of a thousand rules: how long they take to load, and what a decision takes beside one under
//! three rules; and decisions by many rules at once.
//!
//! `make bench-policy`, or `ARGS=--quick`, or some sections: `ARGS=loading`.

mod applying;
mod decisions;
mod loading;

use std::alloc::System;
use std::error::Error;

use lab::part;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

/// Counts the allocations.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() -> Result<(), Box<dyn Error>> {
    part::main(&[
        ("loading", loading::run),
        ("decisions", decisions::run),
        ("applying", applying::run),
    ])
}
