//! Measures an attack on the edge of a window: a client sends as many requests as the limit allows just before the
//! edge, and again after it.

use std::cmp::Reverse;
use std::error::Error;
use std::time::Duration;

use lab::accuracy::{AccuracyMeter, MIDNIGHT_US, percent, proven_max_units};
use lab::program::BenchRun;

use crate::new_limit_for_each_algorithm;
use crate::results::ArrivalsResult;

const MAX_UNITS_PER_WINDOW: u64 = 100;

const LIMIT_WINDOW_US: u64 = 10_000_000;

/// The number of equal steps into which a window is divided. The first burst is sent at each step of a window in turn,
/// and the second burst at each step after the first burst.
const BURST_TIME_STEPS_PER_WINDOW: u64 = 100;

/// Measures all pairs of bursts with each algorithm.
pub fn run(run: &mut BenchRun) -> Result<ArrivalsResult, Box<dyn Error>> {
    let mut all = ArrivalsResult::new("window edge");
    let window = Duration::from_micros(LIMIT_WINDOW_US);
    let mut gaps = Vec::new();
    let limits = new_limit_for_each_algorithm(MAX_UNITS_PER_WINDOW, window)?;
    for (result, limit) in all.results.iter_mut().zip(limits) {
        let mut meter = AccuracyMeter::new(&limit, 1)?;
        let worst = find_worst_burst_pair(&mut meter);
        result.add_limit_stats(&limit, &meter.stats())?;
        gaps.push((result.label(), worst, proven_max_units(&limit)));
    }
    all.record(run);
    for (row, worst, bound) in gaps {
        run.record(
            ["accuracy-fullest-window", &row, "bound"],
            percent(bound, MAX_UNITS_PER_WINDOW),
        );
        if worst.allowed > MAX_UNITS_PER_WINDOW {
            let gap = worst.gap_us as f64 / LIMIT_WINDOW_US as f64;
            run.record(["accuracy-fullest-window", &row, "worst gap at the edge, in windows"], gap);
        }
    }
    Ok(all)
}

/// The result of a pair of bursts: the number of allowed requests, and the gap between the bursts.
#[derive(Clone, Copy, Default)]
struct BurstPairResult {
    allowed: u64,
    gap_us: u64,
}

/// Measures all pairs of bursts, and returns the pair with the most allowed requests. The first burst is at each step of
/// a window in turn, and the second burst at each step after it, and just before the first one leaves the window.
fn find_worst_burst_pair(meter: &mut AccuracyMeter) -> BurstPairResult {
    let step = LIMIT_WINDOW_US / BURST_TIME_STEPS_PER_WINDOW;
    let gaps =
        || (1..BURST_TIME_STEPS_PER_WINDOW).map(|nth| nth * step).chain([LIMIT_WINDOW_US - 1]);
    let (mut worst, mut window_start) = (BurstPairResult::default(), MIDNIGHT_US);
    for offset in 1..=BURST_TIME_STEPS_PER_WINDOW {
        for gap_us in gaps() {
            let first = window_start + offset * step - 1;
            let allowed = count_allowed_in_burst(meter, first)
                + count_allowed_in_burst(meter, first + gap_us);
            worst = choose_worse_burst_pair(worst, BurstPairResult { allowed, gap_us });
            // The next pair begins five windows later, when no charge of this pair is left.
            window_start += 5 * LIMIT_WINDOW_US;
        }
    }
    worst
}

fn count_allowed_in_burst(meter: &mut AccuracyMeter, at_us: u64) -> u64 {
    (0..MAX_UNITS_PER_WINDOW).filter(|_| meter.check(at_us)).count() as u64
}

/// Returns the pair with more allowed requests. If the numbers are equal, returns the pair with the shorter gap.
fn choose_worse_burst_pair(first: BurstPairResult, second: BurstPairResult) -> BurstPairResult {
    let rank = |pair: &BurstPairResult| (pair.allowed, Reverse(pair.gap_us));
    if rank(&second) > rank(&first) { second } else { first }
}
