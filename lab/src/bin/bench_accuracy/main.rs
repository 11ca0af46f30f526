//! Measures the accuracy of each algorithm. The reference is an exact log: for the number of allowed requests a log that
//! decides the same requests, and for each decision a log of the requests that the algorithm itself allowed.
//!
//! `cargo run --profile dist -p lab --bin bench_accuracy [-- --quick | arrivals | size | edge-burst]`. The clock is manual
//! and random numbers are seeded, so every run has the same results. `ARRIVALS=FILE` selects another recording, in the
//! format of `lab/data/arrivals.txt`.

mod edge_attack;
mod edge_charts;
mod patterns;
mod recorded;
mod results;
mod size;
mod worst_window_search;

use std::error::Error;
use std::time::Duration;

use lab::part::{Effort, ReportPart};
use slidegate::{Algorithm, Align, Limit, Quota};

fn main() -> Result<(), Box<dyn Error>> {
    lab::part::main(&[
        ("arrivals", measure_accuracy_with_all_arrivals),
        ("size", size::run),
        ("edge-burst", edge_charts::run),
    ])
}

/// Measures the accuracy with synthetic arrivals, with the attack on a window edge, with a search for the worst window
/// and with recorded arrivals. Draws charts of all results, and adds the shares of wrong decisions to the appendix.
fn measure_accuracy_with_all_arrivals(
    effort: Effort,
    part: &mut ReportPart,
) -> Result<(), Box<dyn Error>> {
    let mut arrivals = patterns::run(effort, part)?;
    arrivals.push(edge_attack::run(part)?);
    worst_window_search::run(effort, part)?;
    arrivals.push(recorded::run(effort, part)?);
    results::add_wrong_decisions_to_appendix(part, &arrivals);
    results::draw(part, &arrivals)
}

/// The measured algorithms, in the order of the tables.
const MEASURED_ALGORITHMS: [Algorithm; 8] = [
    Algorithm::SlidingWindow { resolution: None },
    Algorithm::SlidingWindow { resolution: Some(8) },
    Algorithm::SlidingWindow { resolution: Some(128) },
    Algorithm::SlidingLog,
    Algorithm::SlidingBuckets { precision: None },
    Algorithm::SlidingCounter,
    Algorithm::FixedWindow { align: Align::Key },
    Algorithm::TokenBucket { burst: None, max_debt: None },
];

/// The index of the default algorithm in [`MEASURED_ALGORITHMS`].
const DEFAULT_ALGORITHM: usize = 0;

/// Returns the name of an algorithm in tables, with the resolution if it is not the default.
fn algorithm_label(algorithm: Algorithm) -> String {
    match algorithm {
        Algorithm::SlidingWindow { resolution: Some(resolution) } => {
            format!("`{algorithm}`, resolution {resolution}")
        }
        _ => format!("`{algorithm}`"),
    }
}

/// Returns one limit for each measured algorithm, with this maximum and this window.
fn new_limit_for_each_algorithm(max: u64, window: Duration) -> Result<Vec<Limit>, Box<dyn Error>> {
    let quota = Quota::new(max, window)?;
    let new_limit = |algorithm| Ok(Limit::new(quota, algorithm)?);
    MEASURED_ALGORITHMS.into_iter().map(new_limit).collect()
}
