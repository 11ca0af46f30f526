//! Workloads, peers and measures for the benchmarks in `src/bin`.

pub mod accuracy;
pub mod arrivals;
pub mod callgrind;
pub mod chart;
pub mod draw;
pub mod exact;
pub mod keys;
pub mod logs;
pub mod measure;
pub mod part;
pub mod peers;
pub mod policies;
pub mod progress;
pub mod recording;
pub mod rss;
pub mod server;
pub mod table;
pub mod targets;
