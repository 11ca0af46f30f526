//! Workloads, competing limiters, measurements and report building for the benchmarks in `src/bin`.
//!
//! Each part of the benchmark report is measured by a program `bench_*`. The sections of a program add text, tables,
//! charts and target results to one [`ReportPart`](part::ReportPart). The program `bench` runs all these programs and
//! writes `docs/BENCHMARKS.md`.
#![allow(missing_debug_implementations, reason = "only the benchmarks use these types")]

pub mod accuracy;
pub mod arrivals;
pub mod block_limiters;
pub mod callgrind;
pub mod chart;
pub mod cores;
pub mod exact_log;
pub mod key_blocks;
pub mod key_distribution;
pub mod keys;
pub mod limiters;
pub mod logs;
pub mod measure;
pub mod part;
pub mod peer_comparison;
pub mod policies;
pub mod progress;
pub mod recording;
pub mod rss;
pub mod server;
#[cfg(feature = "cluster")]
pub mod simulated_node;
pub mod table;
pub mod targets;
