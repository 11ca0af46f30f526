//! Workloads, comparable limiters and results of the benchmarks in `benches` and `src/bin`.
//!
//! The benchmarks of each part of the report are listed in `src/bin/bench/sources.rs`. They are measured by criterion,
//! by gungraun, or by a program `bench_*`. The program `bench` runs them and writes `docs/BENCHMARKS.md`.
#![allow(missing_debug_implementations, reason = "only the benchmarks use these types")]

pub mod accuracy;
pub mod arrivals;
#[cfg(feature = "charts")]
pub mod chart;
pub mod exact_log;
pub mod h2load;
pub mod key_blocks;
pub mod keys;
#[cfg(feature = "memory")]
pub mod limiters;
pub mod policies;
pub mod program;
pub mod recording;
pub mod results;
pub mod server;
#[cfg(feature = "simulated-node")]
pub mod simulated_node;
pub mod stores;
