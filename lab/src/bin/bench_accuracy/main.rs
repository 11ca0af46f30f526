//! Measures the accuracy of each algorithm. The reference is an exact log, which keeps the time of every request.
//!
//! The clock is manual and random numbers are seeded, so every run has the same results. `ARRIVALS=FILE` selects another
//! recording, in the format of `lab/data/arrivals.txt`.

mod edge_attack;
mod edge_chart;
mod patterns;
mod recorded;
mod results;
mod size;

use std::error::Error;
use std::time::Duration;

use lab::accuracy::MEASURED_ALGORITHMS;
use lab::program::BenchRun;
use slidegate::{Limit, Quota};

fn main() -> Result<(), Box<dyn Error>> {
    lab::program::main(
        "bench_accuracy",
        &[("arrivals", measure_all_arrivals), ("size", size::run), ("edge-burst", edge_chart::run)],
    )
}

/// Measures synthetic arrivals, the attack on a window edge and recorded arrivals, and draws a chart of all results.
fn measure_all_arrivals(run: &mut BenchRun) -> Result<(), Box<dyn Error>> {
    let mut arrivals = patterns::run(run)?;
    arrivals.push(edge_attack::run(run)?);
    arrivals.push(recorded::run(run)?);
    results::draw_accuracy_chart(run, &arrivals)
}

/// Returns one limit for each measured algorithm, with this maximum and this window.
fn new_limit_for_each_algorithm(max: u64, window: Duration) -> Result<Vec<Limit>, Box<dyn Error>> {
    let quota = Quota::new(max, window)?;
    let new_limit = |algorithm| Ok(Limit::new(quota, algorithm)?);
    MEASURED_ALGORITHMS.into_iter().map(new_limit).collect()
}
