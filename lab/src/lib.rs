//! Workloads, peers and measures for the benchmarks in `src/bin`.

pub mod callgrind;
pub mod keys;
pub mod logs;
pub mod measure;
pub mod peers;
pub mod policies;
pub mod rss;
pub mod server;
pub mod table;
pub mod targets;
