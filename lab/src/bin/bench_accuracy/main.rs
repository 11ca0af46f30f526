//! Measures the accuracy of the decisions of each algorithm. The reference is an exact log, which keeps every request
//! that the algorithm itself allowed.
//!
//! `cargo run --release -p lab --bin bench_accuracy [-- --quick | arrivals | size | edge-burst]`. The clock is manual
//! and random numbers are seeded, so every run has the same results. `ARRIVALS=FILE` selects another recording, in the
//! format of `lab/data/arrivals.txt`.

mod edge_attack;
mod edge_charts;
mod patterns;
mod recorded;
mod results;
mod size;

use std::error::Error;
use std::time::Duration;

use lab::part::{Effort, ReportPart};
use slidegate::{Algorithm, Limit, Quota};

fn main() -> Result<(), Box<dyn Error>> {
    lab::part::main(&[
        ("arrivals", measure_accuracy_with_all_arrivals),
        ("size", size::run),
        ("edge-burst", edge_charts::run),
    ])
}

/// Measures the accuracy with synthetic arrivals, with the attack on a window edge and with recorded arrivals, and
/// draws charts of all results.
fn measure_accuracy_with_all_arrivals(
    effort: Effort,
    part: &mut ReportPart,
) -> Result<(), Box<dyn Error>> {
    let mut arrivals = patterns::run(effort, part)?;
    arrivals.push(edge_attack::run(part)?);
    arrivals.push(recorded::run(effort, part)?);
    results::draw(part, &arrivals)
}

/// Returns one limit for each algorithm, with this maximum and this window.
fn new_limit_for_each_algorithm(max: u64, window: Duration) -> Result<Vec<Limit>, Box<dyn Error>> {
    let quota = Quota::new(max, window)?;
    let limits = Algorithm::ALL.into_iter().map(|algorithm| Ok(Limit::new(quota, algorithm)?));
    limits.collect()
}
