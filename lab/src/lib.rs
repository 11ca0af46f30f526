//! Workloads, peers and measures for the benchmarks in `src/bin`.

pub mod callgrind;
pub mod chart;
pub mod draw;
pub mod keys;
pub mod logs;
pub mod measure;
pub mod part;
pub mod peers;
pub mod policies;
pub mod progress;
pub mod rss;
pub mod server;
pub mod table;
pub mod targets;
