//! Measures the accuracy of each algorithm with synthetic arrivals: at a constant rate, at random times (Poisson), and
//! in bursts.

use std::error::Error;
use std::time::Duration;

use lab::accuracy::{AccuracyStats, measure_accuracy};
use lab::arrivals::{ArrivalPattern, PATTERNS, RELATIVE_LOADS};
use lab::part::{Effort, ReportPart};
use lab::table::MarkdownTable;
use lab::targets::{BenchTarget, TargetBound};
use slidegate::Limit;

use crate::results::{self, ArrivalsResult};
use crate::{DEFAULT_ALGORITHM, new_limit_for_each_algorithm};

const MAX_UNITS_PER_WINDOW: u64 = 100;

const LIMIT_WINDOW: Duration = Duration::from_secs(10);

/// The number of windows in which each key sends requests.
const SIMULATED_WINDOWS_PER_KEY: u64 = 200;

const SECTION_INTRODUCTION: &str = "\
### Comparison with an exact log

An exact log keeps the time of every request and never errs. The clock is manual and random numbers are seeded, so \
every run has the same figures. Each request costs one unit.

- **of an exact log**: the requests that the algorithm allowed, as a share of the requests that an exact log allows \
if it decides the same requests. Less than 100 % means that clients get less than the limit promises, more than \
100 % that they get more.
- **worst window**: the maximum allowed in any window, as a share of max. **bound**: the maximum for any traffic, as \
proven in [algorithms.md](explanation/algorithms.md).
- **false allows**: requests that were allowed although the window already contained max allowed requests, as a share \
of the allowed requests.
- **largest error**: the largest distance of a wrong decision from the limit, as a share of max: the units beyond max, \
or the units that were still available when a request was denied.

The [appendix](#appendix-wrong-decisions) has the shares of wrong decisions.

`sliding_window`, `sliding_log` and `sliding_buckets` never allow more than max. The other algorithms give up this \
guarantee for less memory (`sliding_counter`), for calendar windows (`fixed_window`), or for bursts in addition to a \
steady rate (`token_bucket`; the intended bursts count as false allows here).";

const MIN_PERCENT_OF_EXACT_LOG: BenchTarget = BenchTarget {
    text: "`sliding_window`, synthetic arrivals, all rates of a pattern together: allowed, % of an exact log",
    bound: TargetBound::AtLeast(98.0),
    limited_by: LIMITED_BY,
};

const MIN_PERCENT_OF_EXACT_LOG_AT_ONE_RATE: BenchTarget = BenchTarget {
    text: "`sliding_window`, synthetic arrivals, worst rate of a pattern: allowed, % of an exact log",
    bound: MIN_PERCENT_OF_EXACT_LOG.bound,
    limited_by: LIMITED_BY,
};

const LIMITED_BY: &str = "\
    an entry of up to ceil(max / 32) units counts until a window after its last unit. If requests arrive at a \
    constant rate of at least the limit, ceil(max / 32) - 1 units are always counted too long: 3 % of 100. The worst \
    case is a constant rate that equals the limit. There, resolutions of 40 and 48 allow 98.0 %, and 64 allows \
    99.0 %, with more entries in proportion. A resolution of at least max is exact.";

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
    let (mut arrivals, mut by_load) = (Vec::new(), new_allowed_by_load_table());
    for pattern in PATTERNS {
        part.progress.begin_step(pattern.name());
        let all = measure_accuracy_with_pattern(pattern, keys)?;
        let mut results = results::empty_results();
        for (result, (limit, stats_by_load)) in results.iter_mut().zip(&all) {
            stats_by_load.iter().try_for_each(|stats| result.add(limit, stats))?;
            let cells = stats_by_load.iter().map(AccuracyStats::percent_of_exact_log);
            by_load.add_row(
                [pattern.name().to_owned(), result.label()]
                    .into_iter()
                    .chain(cells.map(|percent| format!("{percent:.1} %"))),
            );
        }
        let percent = results[DEFAULT_ALGORITHM].percent_of_exact_log();
        part.record_target(&MIN_PERCENT_OF_EXACT_LOG, percent);
        for stats in &all[DEFAULT_ALGORITHM].1 {
            let percent = stats.percent_of_exact_log();
            part.record_target(&MIN_PERCENT_OF_EXACT_LOG_AT_ONE_RATE, percent);
        }
        part.add_text(pattern_heading(pattern));
        results::add_results_table(part, &results);
        arrivals.push(ArrivalsResult { name: pattern.name(), results });
    }
    part.add_text(
        "#### Allowed requests by request rate\n\nThe allowed requests as a share of the requests that an exact log \
         allows, by the request rate relative to the limit.",
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

fn new_allowed_by_load_table() -> MarkdownTable {
    let columns = RELATIVE_LOADS.into_iter().map(|load| format!("{load}x"));
    MarkdownTable::new(["arrivals", "algorithm"].map(str::to_owned).into_iter().chain(columns))
}
