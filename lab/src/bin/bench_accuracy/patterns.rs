//! Measures the accuracy of each algorithm with synthetic arrivals: at a constant rate, at random times (Poisson), and
//! in bursts.

use std::error::Error;
use std::time::Duration;

use lab::accuracy::{AccuracyStats, measure_accuracy};
use lab::arrivals::{PATTERNS, RELATIVE_LOADS};
use lab::program::BenchRun;

use crate::new_limit_for_each_algorithm;
use crate::results::ArrivalsResult;

const MAX_UNITS_PER_WINDOW: u64 = 100;

const LIMIT_WINDOW: Duration = Duration::from_secs(10);

/// The number of windows in which each key sends requests.
const SIMULATED_WINDOWS_PER_KEY: u64 = 200;

/// Measures each algorithm with each arrival pattern. Returns the results of each pattern, in the order of
/// [`PATTERNS`].
pub fn run(run: &mut BenchRun) -> Result<Vec<ArrivalsResult>, Box<dyn Error>> {
    let window_us = LIMIT_WINDOW.as_micros() as u64;
    let limits = new_limit_for_each_algorithm(MAX_UNITS_PER_WINDOW, LIMIT_WINDOW)?;
    let mut all = Vec::new();
    for pattern in PATTERNS {
        let mut sums = ArrivalsResult::new(pattern.name());
        for load in RELATIVE_LOADS {
            let mut stats = vec![AccuracyStats::default(); limits.len()];
            for key in 0..run.effort.full_or_quick(50, 5) {
                let rate = load * MAX_UNITS_PER_WINDOW as f64;
                let arrivals = pattern.arrivals(window_us, rate, SIMULATED_WINDOWS_PER_KEY, key);
                for (sum, limit) in stats.iter_mut().zip(&limits) {
                    *sum += measure_accuracy(limit, key, &arrivals)?;
                }
            }
            for ((result, limit), stats) in sums.results.iter_mut().zip(&limits).zip(&stats) {
                result.add_limit_stats(limit, stats)?;
            }
            // This table has only the first algorithm, which is the default.
            let cell = ["accuracy-by-rate", pattern.name(), &format!("{load}x")];
            run.record(cell, stats[0].percent_of_exact_log());
        }
        sums.record(run);
        all.push(sums);
    }
    Ok(all)
}
