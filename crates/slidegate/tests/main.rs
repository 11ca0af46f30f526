//! The integration tests of the library, as one program: each program would be compiled and linked on its own.
//! `cargo test -p slidegate --all-features policy_file::` runs the tests of one module.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed test may panic")]

mod algorithms;
mod block;
mod calendar;
mod change;
mod conformance;
mod costs;
mod descriptors;
#[path = "../../../examples/store.rs"]
#[expect(dead_code, reason = "the example's `main` is not called here")]
mod example_store;
mod gate;
mod gate_warnings;
mod limiter;
mod log;
mod memory;
mod memory_budget;
mod normalize;
mod outage;
mod permits;
mod policy;
mod policy_and_store;
mod policy_file;
mod policy_traps;
mod policy_warnings;
mod properties;
mod races;
mod refund;
mod reservations;
mod resident;
mod settle;
mod wait;
