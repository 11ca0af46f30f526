//! Measures the accuracy of each algorithm with synthetic arrivals: at a constant rate, at random times (Poisson), and
//! in bursts.

use std::error::Error;
use std::time::Duration;

use lab::accuracy::{AccuracyStats, measure_accuracy};
use lab::arrivals::{ArrivalPattern, PATTERNS, RELATIVE_LOADS};
use lab::part::{Effort, ReportPart};
use lab::table::MarkdownTable;
use slidegate::{Algorithm, Limit};

use crate::new_limit_for_each_algorithm;
use crate::results::{self, ArrivalsResult, format_percent};

const MAX_UNITS_PER_WINDOW: u64 = 100;

const LIMIT_WINDOW: Duration = Duration::from_secs(10);

/// The number of windows in which each key sends requests.
const SIMULATED_WINDOWS_PER_KEY: u64 = 200;

const SECTION_INTRODUCTION: &str = "\
### Comparison with an exact log

An exact log records the requests that each algorithm allows. For each request the log determines the correct \
decision: to allow the request if at most max requests are then allowed in the window that ends now. The clock is \
manual and random numbers are seeded, so every run has the same figures. Each request costs one unit.

- **allowed**: the share of requests that the algorithm allowed.
- **false allows**: requests that were allowed although the window was full. **false denies**: requests that were \
denied although they fitted. Both are shares of all requests.
- **mean error**: the mean distance of wrong decisions from the limit, as a share of max: the units beyond max, or \
the units that were still available. (Under overload a limit is at max all the time. An algorithm that counts one \
unit too many then denies request after request wrongly, although **allowed** is close to the value of the log.)
- **wrong near the limit**: the share of wrong decisions among the requests within 20 % of the limit (the exact \
count, including the request, is between 0.8 max and 1.2 max). Decisions far from the limit are always right.
- **worst window**: the maximum allowed in any window, as a share of max. **bound**: the maximum for any traffic, as \
proven in [ALGORITHMS.md](ALGORITHMS.md).

`sliding_log` and `sliding_buckets` never allow more than max. The other algorithms exchange this guarantee for less \
memory (`sliding_window`), for calendar windows (`fixed_window`), or for bursts in addition to a steady rate \
(`token_bucket`; the intended bursts count as false allows here).";

/// Measures each algorithm with each arrival pattern. Returns the results of each pattern, in the order of
/// [`PATTERNS`].
pub fn run(effort: Effort, part: &mut ReportPart) -> Result<Vec<ArrivalsResult>, Box<dyn Error>> {
    let keys = effort.pick(50, 5);
    part.progress.add_steps(PATTERNS.len());
    part.add_text(SECTION_INTRODUCTION);
    part.add_text(format!(
        "In the next three tables the limit is {MAX_UNITS_PER_WINDOW} per {} s. {keys} keys send requests for \
         {SIMULATED_WINDOWS_PER_KEY} windows at each of four rates: {} times the rate of the limit. Each key starts at a different position in its window.",
        LIMIT_WINDOW.as_secs(),
        RELATIVE_LOADS.map(|load| load.to_string()).join(", "),
    ));
    let (mut arrivals, mut by_load) = (Vec::new(), new_accuracy_by_load_table());
    for pattern in PATTERNS {
        part.progress.begin_step(pattern.name());
        let all = measure_accuracy_with_pattern(pattern, keys)?;
        let mut results = results::empty_results();
        for (result, (limit, stats_by_load)) in results.iter_mut().zip(&all) {
            stats_by_load.iter().try_for_each(|stats| result.add(limit, stats))?;
            if limit.algorithm() == Algorithm::default() {
                add_accuracy_by_load_row(&mut by_load, pattern, stats_by_load);
            }
        }
        part.add_text(pattern_heading(pattern));
        results::add_results_table(part, &results);
        arrivals.push(ArrivalsResult { name: pattern.name(), results });
    }
    part.add_text(
        "#### Default algorithm by request rate\n\nWrong decisions of `sliding_window` among all requests, and among \
         the requests within 20 % of the limit, by the request rate relative to the limit.",
    );
    part.add_table(&by_load);
    Ok(arrivals)
}

fn pattern_heading(pattern: ArrivalPattern) -> &'static str {
    match pattern {
        ArrivalPattern::Even => "#### Constant rate\n\nAll intervals between requests are equal.",
        ArrivalPattern::Poisson => {
            "#### Poisson\n\nRequests are independent and arrive at random times, like the requests of many clients."
        }
        ArrivalPattern::Bursts => {
            "#### Bursts\n\nBursts at four times the average rate, and pauses without requests. Their lengths are \
             random: on average a quarter of a window for bursts and three quarters for pauses."
        }
    }
}

/// The limits and their results. Each limit has one result for each load in [`RELATIVE_LOADS`].
type LimitsWithStatsByLoad = Vec<(Limit, [AccuracyStats; RELATIVE_LOADS.len()])>;

fn measure_accuracy_with_pattern(
    pattern: ArrivalPattern,
    keys: u64,
) -> Result<LimitsWithStatsByLoad, Box<dyn Error>> {
    let window_us = LIMIT_WINDOW.as_micros() as u64;
    let limits = new_limit_for_each_algorithm(MAX_UNITS_PER_WINDOW, LIMIT_WINDOW)?.into_iter();
    let mut all: LimitsWithStatsByLoad = limits.map(|limit| (limit, Default::default())).collect();
    for (nth, load) in RELATIVE_LOADS.into_iter().enumerate() {
        for key in 0..keys {
            let arrivals = pattern.arrivals(
                window_us,
                load * MAX_UNITS_PER_WINDOW as f64,
                SIMULATED_WINDOWS_PER_KEY,
                key,
            );
            for (limit, stats_by_load) in &mut all {
                stats_by_load[nth] += measure_accuracy(limit, key, &arrivals)?;
            }
        }
    }
    Ok(all)
}

fn new_accuracy_by_load_table() -> MarkdownTable {
    let loads = RELATIVE_LOADS.map(|load| format!("{load}x: all"));
    let columns = loads.into_iter().flat_map(|load| [load, "near".to_owned()]);
    MarkdownTable::new(["arrivals".to_owned()].into_iter().chain(columns))
}

fn add_accuracy_by_load_row(
    table: &mut MarkdownTable,
    pattern: ArrivalPattern,
    stats_by_load: &[AccuracyStats],
) {
    let cells = stats_by_load
        .iter()
        .flat_map(|stats| [stats.wrong_percent(), stats.near_limit_wrong_percent()]);
    table.add_row([pattern.name().to_owned()].into_iter().chain(cells.map(format_percent)));
}
