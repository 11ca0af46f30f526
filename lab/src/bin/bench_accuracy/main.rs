//! Measures the accuracy of each algorithm, compared with an exact log of the requests that it allowed itself.
//!
//! `cargo run --release -p lab --bin bench_accuracy [-- --quick | arrivals | size | edge-burst]`. The clock is manual
//! and random numbers are seeded, so every run has the same figures. `ARRIVALS=FILE` selects another recording, in the
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
        ("arrivals", arrivals),
        ("size", size::run),
        ("edge-burst", edge_charts::run),
    ])
}

/// Measures all arrivals, and draws the charts of all results.
fn arrivals(effort: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    let mut arrivals = patterns::run(effort, part)?;
    arrivals.push(edge_attack::run(part)?);
    arrivals.push(recorded::run(effort, part)?);
    results::draw(part, &arrivals)
}

/// Returns a limit for each algorithm.
fn limits(max: u64, window: Duration) -> Result<Vec<Limit>, Box<dyn Error>> {
    let quota = Quota::new(max, window)?;
    let limits = Algorithm::ALL.into_iter().map(|algorithm| Ok(Limit::new(quota, algorithm)?));
    limits.collect()
}
