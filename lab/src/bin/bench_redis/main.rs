//! Measures the cost of slidegate's Redis scripts compared with commonly published scripts, the savings by coalescing
//! and by the denial cache, and a Redis Cluster.
//!
//! `make bench-redis`, with `ARGS=--quick`, or with the names of sections: `ARGS='log denials'`. The program starts its
//! own redis-servers.

mod buckets;
mod caller_load;
mod cluster;
mod coalescing;
mod counter;
mod denials;
mod log;
mod pipeline_client;
mod pipelining;
mod request_sequence;
mod rounds;
mod scripts;
mod server;

use std::error::Error;

use lab::part::{self, Effort};

/// The extent of the measurements.
#[derive(Clone, Copy)]
pub struct BenchScale {
    /// The number of rounds for a median: many short ones, so that noise affects only a few.
    rounds: usize,
    /// The number of rounds that have to wait in real time; 0 skips these measurements.
    slow_rounds: usize,
    /// Decisions per contender and round.
    decisions: usize,
    /// The values of max to measure logs with.
    log_maxes: &'static [usize],
    /// The total limit of all logs together.
    log_charges: usize,
    /// The number of rounds with concurrent callers.
    caller_rounds: usize,
    /// Requests per contender and round with concurrent callers.
    caller_requests: usize,
    /// Whether measurements that are slow to fill are skipped: old identities, and three limits of concurrent callers.
    is_quick: bool,
    /// The number of requests to measure the denial cache with.
    denial_requests: usize,
    /// The duration of the measurement of the denial cache with concurrent callers, in seconds.
    denial_seconds: u64,
}

const FULL: BenchScale = BenchScale {
    rounds: 15,
    slow_rounds: 5,
    decisions: 8_000,
    log_maxes: &[10, 100, 1_000, 10_000],
    log_charges: 100_000,
    caller_rounds: 7,
    caller_requests: 20_000,
    is_quick: false,
    denial_requests: 10_000,
    denial_seconds: 3,
};

const QUICK: BenchScale = BenchScale {
    rounds: 3,
    slow_rounds: 0,
    decisions: 4_000,
    log_maxes: &[100],
    log_charges: 50_000,
    caller_rounds: 3,
    caller_requests: 6_000,
    is_quick: true,
    denial_requests: 2_000,
    denial_seconds: 1,
};

fn scale(effort: Effort) -> BenchScale {
    effort.pick(FULL, QUICK)
}

fn main() -> Result<(), Box<dyn Error>> {
    part::main(&[
        ("log", |effort, part| {
            part.add_text(rounds::INTRODUCTION);
            log::run(scale(effort), part)
        }),
        ("counter", |effort, part| counter::run(scale(effort), part)),
        ("buckets", |effort, part| buckets::run(scale(effort), part)),
        ("depth", |effort, part| pipelining::run(scale(effort), part)),
        ("callers", |effort, part| coalescing::run(scale(effort), part)),
        ("denials", |effort, part| denials::run(scale(effort), part)),
        ("cluster", |effort, part| cluster::run(scale(effort), part)),
    ])
}
