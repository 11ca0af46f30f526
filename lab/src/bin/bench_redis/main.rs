//! Measures the cost of slidegate's Redis scripts compared with commonly published scripts, and the savings by two
//! features: coalescing, with which waiting requests share one script call, and the denial cache, which repeats denials
//! without a call. Also measures a Redis Cluster.
//!
//! `make bench-redis` runs all sections. `ARGS=--quick` shortens the measurements, and `ARGS='log denials'` runs only
//! the named sections. The program starts its own Redis servers.

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
mod settle;
mod sliding_window;

use std::error::Error;

use lab::part::{self, Effort};

/// The numbers of rounds, requests and decisions of the measurements.
#[derive(Clone, Copy, Debug)]
pub struct BenchScale {
    /// The number of rounds of which a measurement takes the median. There are many short rounds, so that noise affects
    /// only a few of them.
    rounds: usize,
    /// The number of rounds of the measurements that wait in real time. These measurements are skipped if it is 0.
    slow_rounds: usize,
    /// The number of decisions per contender and round.
    decisions: usize,
    /// The maximums of the limits with which logs are measured.
    log_maxes: &'static [usize],
    /// The number of charges in all logs together, when all of them are full.
    log_charges: usize,
    /// The number of rounds of the measurements with concurrent callers.
    caller_rounds: usize,
    /// The number of requests per contender and round in the measurements with concurrent callers.
    caller_requests: usize,
    /// Whether to skip measurements that take long to prepare: identities that have sent requests for an hour, and
    /// concurrent callers with three limits.
    is_quick: bool,
    /// The number of requests with which the denial cache is measured.
    denial_requests: usize,
    /// The duration in seconds of the measurement of the denial cache with concurrent callers.
    denial_seconds: u64,
}

const FULL_BENCH_SCALE: BenchScale = BenchScale {
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

const QUICK_BENCH_SCALE: BenchScale = BenchScale {
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

fn scale_for_effort(effort: Effort) -> BenchScale {
    effort.pick(FULL_BENCH_SCALE, QUICK_BENCH_SCALE)
}

fn main() -> Result<(), Box<dyn Error>> {
    part::main(&[
        ("log", |effort, part| {
            part.add_text(rounds::INTRODUCTION);
            log::run(scale_for_effort(effort), part)
        }),
        ("counter", |effort, part| counter::run(scale_for_effort(effort), part)),
        ("sliding-window", |effort, part| sliding_window::run(scale_for_effort(effort), part)),
        ("buckets", |effort, part| buckets::run(scale_for_effort(effort), part)),
        ("settle", |effort, part| settle::run(scale_for_effort(effort), part)),
        ("depth", |effort, part| pipelining::run(scale_for_effort(effort), part)),
        ("callers", |effort, part| coalescing::run(scale_for_effort(effort), part)),
        ("denials", |effort, part| denials::run(scale_for_effort(effort), part)),
        ("cluster", |effort, part| cluster::run(scale_for_effort(effort), part)),
    ])
}
