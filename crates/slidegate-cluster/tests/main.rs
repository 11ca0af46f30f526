//! The integration tests of the cluster, as one program: each program would be compiled and linked on its own.
//! `cargo test -p slidegate-cluster simulation::` runs the tests of one module.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed test may panic")]

mod added_units;
mod conformance;
mod engine;
mod hostile_peers;
mod membership;
mod memory;
mod simulation;
mod transport;
