//! Workloads, peers and measures for the benchmarks in `src/bin`.

pub mod keys;
pub mod logs;
pub mod measure;
pub mod peers;
pub mod rss;
pub mod table;
pub mod targets;
