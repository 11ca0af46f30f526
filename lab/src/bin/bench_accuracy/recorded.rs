//! Measures the accuracy of each algorithm with recorded traffic. The recording has the number of requests of a whole
//! service in each second, and all requests have the same key.

use std::error::Error;
use std::time::Duration;

use lab::accuracy::{AccuracyStats, MIDNIGHT_US, measure_accuracy};
use lab::exact_log::ExactLog;
use lab::program::BenchRun;
use lab::recording::Recording;
use slidegate::Limit;

use crate::new_limit_for_each_algorithm;
use crate::results::ArrivalsResult;

/// The maximum number of times that the recording is repeated to form a longer recording.
const MAX_RECORDING_REPETITIONS: u64 = 10;

/// The maximum number of requests in the longer recording, which repeats the recording. A recording with more requests
/// is not repeated.
const MAX_REQUESTS_IN_REPEATED_RECORDING: u64 = 1_000_000;

const WINDOW_NAMES_AND_SECONDS: [(&str, u64); 3] = [("10 s", 10), ("1 min", 60), ("1 h", 3_600)];

/// The rules that choose the maximum of a limit, each with its name. A rule uses the counts of
/// [`sorted_request_counts_per_window`]. With `Some(share)`, the maximum is so large that at least `share` thousandths
/// of the counts do not exceed it. With `None`, the maximum is 20 % above the highest count.
const RULES_FOR_CHOOSING_LIMIT_MAX: [(&str, Option<usize>); 4] =
    [("90 %", Some(900)), ("99 %", Some(990)), ("99.9 %", Some(999)), ("all plus 20 %", None)];

/// Measures the recording without changes, and a longer recording, which consists of repetitions without idle minutes.
pub fn run(run: &mut BenchRun) -> Result<ArrivalsResult, Box<dyn Error>> {
    let (recording, name) = Recording::from_env()?;
    let repetitions = (MAX_REQUESTS_IN_REPEATED_RECORDING / recording.requests())
        .clamp(1, MAX_RECORDING_REPETITIONS);
    let longer = recording.without_idle_minutes().repeated(repetitions as usize);
    let mut all = ArrivalsResult::new("recorded");
    measure_recording(run, &format!("`{name}`"), &recording, &mut all)?;
    let name = format!("without idle minutes, {repetitions} repetitions");
    measure_recording(run, &name, &longer, &mut all)?;
    all.record(run);
    Ok(all)
}

/// Replays a recording several times with each limit. There is a limit for each combination of algorithm, window and
/// rule. Records the results of the default algorithm.
fn measure_recording(
    run: &mut BenchRun,
    name: &str,
    recording: &Recording,
    all: &mut ArrivalsResult,
) -> Result<(), Box<dyn Error>> {
    let plays = (run.effort.full_or_quick(1_000_000, 100_000) / recording.requests()).clamp(3, 200);
    for (window_name, seconds) in WINDOW_NAMES_AND_SECONDS {
        let window = Duration::from_secs(seconds);
        let window_counts = sorted_request_counts_per_window(recording, window);
        for (choice, thousandths) in RULES_FOR_CHOOSING_LIMIT_MAX {
            let max = choose_limit_max(&window_counts, thousandths);
            let limits = new_limit_for_each_algorithm(max, window)?;
            let stats = replay_recording_with_limits(recording, plays, &limits)?;
            for ((result, limit), stats) in all.results.iter_mut().zip(&limits).zip(&stats) {
                result.add_limit_stats(limit, stats)?;
            }
            // This table has only the first algorithm, which is the default.
            let cell = ["accuracy-recorded-limits", &format!("{name}, {window_name}"), choice];
            run.record(cell, stats[0].percent_of_exact_log());
        }
    }
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

/// Replays a recording `times` times with each limit, and sums up the results of each limit. Each replay starts at a
/// different position in the window of the limit; the positions are evenly spread over the window. Each replay also has
/// different positions of the requests within their seconds.
fn replay_recording_with_limits(
    recording: &Recording,
    times: u64,
    limits: &[Limit],
) -> Result<Vec<AccuracyStats>, Box<dyn Error>> {
    let mut sums = vec![AccuracyStats::default(); limits.len()];
    let window_us = limits.first().map_or(0, |limit| limit.quota().window().as_micros() as u64);
    for nth in 0..times {
        let mut arrivals = recording.arrivals(nth);
        let begin = MIDNIGHT_US + window_us * nth / times;
        arrivals.iter_mut().for_each(|at| *at += begin);
        for (sum, limit) in sums.iter_mut().zip(limits) {
            *sum += measure_accuracy(limit, nth, &arrivals)?;
        }
    }
    Ok(sums)
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
