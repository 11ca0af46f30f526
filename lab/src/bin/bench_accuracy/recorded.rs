//! Measures the accuracy of each algorithm with recorded traffic. The recording has the number of requests of a whole
//! service in each second, and all requests have the same key.

use std::error::Error;
use std::time::Duration;

use lab::accuracy::{AccuracyStats, MIDNIGHT_US, measure_accuracy, percent};
use lab::exact_log::ExactLog;
use lab::part::{Effort, ReportPart};
use lab::recording::Recording;
use lab::table::MarkdownTable;
use lab::targets::{BenchTarget, TargetBound};
use slidegate::Limit;

use crate::results::{self, AlgorithmResult, ArrivalsResult, format_percent, format_share};
use crate::{DEFAULT_ALGORITHM, new_limit_for_each_algorithm};

const MIN_PERCENT_OF_EXACT_LOG: BenchTarget = BenchTarget {
    text: "`sliding_window`, recorded arrivals, all limits together: allowed, % of an exact log",
    bound: TargetBound::AtLeast(99.0),
    limited_by: LIMITED_BY,
};

const MIN_PERCENT_OF_EXACT_LOG_WITH_ONE_LIMIT: BenchTarget = BenchTarget {
    text: "`sliding_window`, recorded arrivals, worst limit: allowed, % of an exact log",
    bound: MIN_PERCENT_OF_EXACT_LOG.bound,
    limited_by: LIMITED_BY,
};

const LIMITED_BY: &str = "\
    the count is up to 3 % of max too high. The worst case is a window of an hour without idle minutes: its requests \
    arrive at an almost constant rate, and max is only 1 to 2 % above this rate.";

/// The maximum number of times that the recording is repeated to form a longer recording.
const MAX_RECORDING_REPETITIONS: u64 = 10;

/// The maximum number of requests in the longer recording, which repeats the recording. A recording with more requests
/// is not repeated.
const MAX_REQUESTS_IN_REPEATED_RECORDING: u64 = 1_000_000;

const RESULT_TABLE_COLUMNS: [&str; 8] = [
    "window",
    "fits",
    "max",
    "denied",
    "of an exact log",
    "by phase",
    "largest error",
    "worst window",
];

const WINDOW_NAMES_AND_SECONDS: [(&str, u64); 3] = [("10 s", 10), ("1 min", 60), ("1 h", 3_600)];

/// The rules that choose the maximum of a limit, each with its name. A rule uses the counts of
/// [`sorted_request_counts_per_window`]. With `Some(share)`, the maximum is so large that at least `share` thousandths
/// of the counts do not exceed it. With `None`, the maximum is 20 % above the highest count.
const RULES_FOR_CHOOSING_LIMIT_MAX: [(&str, Option<usize>); 4] =
    [("90 %", Some(900)), ("99 %", Some(990)), ("99.9 %", Some(999)), ("all plus 20 %", None)];

const SECTION_INTRODUCTION: &str = "\
#### Recorded arrivals

Requests of a real web site as one key, from the number of requests in each second; a seed determines the position \
of each request within its second. The limits were determined by a rule before the measurement: for each window, max \
is so large that for 90 %, 99 % or 99.9 % of the requests the window that ends with the request contains at most max \
requests; or max is the maximum of all windows plus 20 %, as `slidegate replay --suggest` recommends. The recording is \
played many times, each time with different positions within the seconds and with a different start in the window, \
evenly spread over the window.

**Fits** is the rule. **By phase** is the range of *of an exact log* over all plays.";

/// Measures the recording without changes, and a longer recording, which consists of repetitions without idle minutes.
pub fn run(effort: Effort, part: &mut ReportPart) -> Result<ArrivalsResult, Box<dyn Error>> {
    let (recording, name) = Recording::from_env()?;
    let requests = effort.pick(1_000_000, 100_000);
    let repetitions = (MAX_REQUESTS_IN_REPEATED_RECORDING / recording.requests())
        .clamp(1, MAX_RECORDING_REPETITIONS);
    let longer = recording.without_idle_minutes().repeated(repetitions as usize);
    part.progress.add_steps(2 * WINDOW_NAMES_AND_SECONDS.len());
    part.add_text(SECTION_INTRODUCTION);
    let mut all_results = results::empty_results();
    let mut measure = |variant: &str, recording: &Recording, part: &mut ReportPart| {
        let times = (requests / recording.requests()).clamp(3, 200);
        part.add_text(format!(
            "`sliding_window`, {variant}: {} requests in {} seconds, played {times} times.",
            recording.requests(),
            recording.seconds(),
        ));
        measure_accuracy_with_recording(recording, times, part, &mut all_results)
    };
    measure(&format!("`{name}` as it is"), &recording, part)?;
    let variant = format!("without idle minutes, {repetitions} repetitions");
    measure(&variant, &longer, part)?;
    part.add_text("All algorithms, for all limits of both tables:");
    results::add_results_table(part, &all_results);
    let percent = all_results[DEFAULT_ALGORITHM].percent_of_exact_log();
    part.record_target(&MIN_PERCENT_OF_EXACT_LOG, percent);
    Ok(ArrivalsResult { name: "recorded", results: all_results })
}

/// The results of `sliding_window` with one limit, for a row of the table.
struct SlidingWindowResult {
    max: u64,
    sum: AccuracyStats,
    /// The statistics of each replay of the recording.
    plays: Vec<AccuracyStats>,
}

/// Replays a recording `times` times with each limit, and adds a table to the report. There is a limit for each
/// combination of algorithm, window and rule. The rows of the table are the results of `sliding_window`.
fn measure_accuracy_with_recording(
    recording: &Recording,
    times: u64,
    part: &mut ReportPart,
    all_results: &mut [AlgorithmResult],
) -> Result<(), Box<dyn Error>> {
    let mut table = MarkdownTable::new(RESULT_TABLE_COLUMNS);
    for (name, seconds) in WINDOW_NAMES_AND_SECONDS {
        part.progress.begin_step(&format!("recorded, {name}"));
        let window = Duration::from_secs(seconds);
        let window_counts = sorted_request_counts_per_window(recording, window);
        for (choice, thousandths) in RULES_FOR_CHOOSING_LIMIT_MAX {
            let max = choose_limit_max(&window_counts, thousandths);
            let plays = replay_recording_with_limits(
                recording,
                times,
                &new_limit_for_each_algorithm(max, window)?,
            )?;
            for (nth, (limit, plays)) in plays.into_iter().enumerate() {
                let mut sum = AccuracyStats::default();
                plays.iter().for_each(|stats| sum += *stats);
                all_results[nth].add(&limit, &sum)?;
                if nth == DEFAULT_ALGORITHM {
                    let percent = sum.percent_of_exact_log();
                    part.record_target(&MIN_PERCENT_OF_EXACT_LOG_WITH_ONE_LIMIT, percent);
                    let row = SlidingWindowResult { max, sum, plays };
                    table.add_row(row.format_table_cells([name, choice]));
                }
            }
        }
    }
    part.add_table(&table);
    Ok(())
}

/// Returns, for each request of a recording, the number of requests in the window that ends with this request. The
/// numbers are sorted.
fn sorted_request_counts_per_window(recording: &Recording, window: Duration) -> Vec<u64> {
    let mut log = ExactLog::new(window.as_micros() as u64);
    let count = |at_us| {
        log.charge(at_us, 1);
        log.units_in_window(at_us)
    };
    let mut window_counts: Vec<u64> = recording.arrivals(0).into_iter().map(count).collect();
    window_counts.sort_unstable();
    window_counts
}

fn choose_limit_max(window_counts: &[u64], thousandths: Option<usize>) -> u64 {
    let max_count = window_counts.last().copied().unwrap_or(1);
    match thousandths {
        Some(share) => window_counts
            .get((window_counts.len() * share).div_ceil(1_000) - 1)
            .copied()
            .unwrap_or(max_count),
        None => (6 * max_count).div_ceil(5),
    }
}

/// The limits and their results. Each limit has one result for each replay of the recording.
type LimitsWithStatsPerReplay = Vec<(Limit, Vec<AccuracyStats>)>;

/// Replays a recording `times` times with each limit. Each replay starts at a different position in the window of the
/// limit; the positions are evenly spread over the window. Each replay also has different positions of the requests
/// within their seconds.
fn replay_recording_with_limits(
    recording: &Recording,
    times: u64,
    limits: &[Limit],
) -> Result<LimitsWithStatsPerReplay, Box<dyn Error>> {
    let mut all: LimitsWithStatsPerReplay =
        limits.iter().map(|limit| (*limit, Vec::new())).collect();
    let window_us = limits.first().map_or(0, |limit| limit.quota().window().as_micros() as u64);
    for nth in 0..times {
        let mut arrivals = recording.arrivals(nth);
        let begin = MIDNIGHT_US + window_us * nth / times;
        arrivals.iter_mut().for_each(|at| *at += begin);
        for (limit, plays) in &mut all {
            plays.push(measure_accuracy(limit, nth, &arrivals)?);
        }
    }
    Ok(all)
}

impl SlidingWindowResult {
    fn format_table_cells(
        &self,
        [window, choice]: [&str; 2],
    ) -> [String; RESULT_TABLE_COLUMNS.len()] {
        let by_phase = || self.plays.iter().map(AccuracyStats::percent_of_exact_log);
        let sum = &self.sum;
        [
            window.to_owned(),
            choice.to_owned(),
            self.max.to_string(),
            format_share(sum.decisions - sum.allowed, sum.decisions),
            format!("{:.2} %", sum.percent_of_exact_log()),
            format!(
                "{:.2} to {:.2} %",
                by_phase().fold(f64::INFINITY, f64::min),
                by_phase().fold(0.0, f64::max)
            ),
            format_percent(percent(sum.max_error_units, self.max)),
            format!("{:.0} %", percent(sum.max_in_window, self.max)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_limit_max_follows_each_selection_rule() {
        let window_counts: Vec<u64> = (1..=1_000).collect();
        assert_eq!(
            RULES_FOR_CHOOSING_LIMIT_MAX.map(|(_, share)| choose_limit_max(&window_counts, share)),
            [900, 990, 999, 1_200]
        );
        assert_eq!(
            RULES_FOR_CHOOSING_LIMIT_MAX.map(|(_, share)| choose_limit_max(&[7], share)),
            [7, 7, 7, 9]
        );
    }

    #[test]
    fn request_count_covers_window_ending_with_request() {
        let recording = Recording::parse("2\n0*9\n1\n0*30\n1").unwrap();
        assert_eq!(
            sorted_request_counts_per_window(&recording, Duration::from_secs(20)),
            [1, 1, 2, 3]
        );
    }
}
