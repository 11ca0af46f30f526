//! Measures what slidegate's scripts cost Redis beside plain scripts as they are commonly published, what a store
//! spares Redis, and a Redis Cluster.
//!
//! `make bench-redis`, or `ARGS=--quick`, or some sections: `ARGS='log denials'`. Starts redis-servers of its own.

mod buckets;
mod callers;
mod cluster;
mod counter;
mod course;
mod crowd;
mod denials;
mod depth;
mod driver;
mod log;
mod rounds;
mod server;
mod side;
mod two_keys;

use std::error::Error;

use lab::part::{self, Effort};

/// How long.
#[derive(Clone, Copy)]
pub struct Scope {
    /// Rounds of which the median is taken: many short ones, so that a noisy second spoils few.
    rounds: usize,
    /// The same where a round has to wait for time to pass; none leaves those out.
    slow_rounds: usize,
    /// Decisions of a side in a round.
    decisions: usize,
    /// Of which max logs are measured.
    log_maxes: &'static [usize],
    /// Charges that fit in all logs together.
    log_charges: usize,
    /// Rounds of many callers.
    crowd_rounds: usize,
    /// Asks of a side in a round of many callers.
    crowd_asks: usize,
    /// Whether what takes long to fill is left out: old identities, and three limits of many callers.
    is_short: bool,
    /// Asks of which most are denied.
    denials: usize,
    /// How long many callers are denied.
    denial_seconds: u64,
}

const FULL: Scope = Scope {
    rounds: 15,
    slow_rounds: 5,
    decisions: 8_000,
    log_maxes: &[10, 100, 1_000, 10_000],
    log_charges: 100_000,
    crowd_rounds: 7,
    crowd_asks: 20_000,
    is_short: false,
    denials: 10_000,
    denial_seconds: 3,
};

const QUICK: Scope = Scope {
    rounds: 3,
    slow_rounds: 0,
    decisions: 4_000,
    log_maxes: &[100],
    log_charges: 50_000,
    crowd_rounds: 3,
    crowd_asks: 6_000,
    is_short: true,
    denials: 2_000,
    denial_seconds: 1,
};

fn scope(effort: Effort) -> Scope {
    effort.pick(FULL, QUICK)
}

fn main() -> Result<(), Box<dyn Error>> {
    part::main(&[
        ("log", |effort, part| {
            part.say(rounds::EXPLAINED);
            log::run(scope(effort), part)
        }),
        ("counter", |effort, part| counter::run(scope(effort), part)),
        ("buckets", |effort, part| buckets::run(scope(effort), part)),
        ("depth", |effort, part| depth::run(scope(effort), part)),
        ("callers", |effort, part| callers::run(scope(effort), part)),
        ("denials", |effort, part| denials::run(scope(effort), part)),
        ("cluster", |effort, part| cluster::run(scope(effort), part)),
    ])
}
