//! Measures an attack on the edge of a window: a client sends as many requests as the limit allows just before the
//! edge, and again after it.

use std::cmp::Reverse;
use std::error::Error;
use std::time::Duration;

use lab::accuracy::{AccuracyMeter, MIDNIGHT_US, percent};
use lab::part::ReportPart;
use lab::table::MarkdownTable;

use crate::new_limit_for_each_algorithm;
use crate::results::{self, ArrivalsResult};

const MAX_UNITS_PER_WINDOW: u64 = 100;

const LIMIT_WINDOW_US: u64 = 10_000_000;

/// The number of equal steps into which a window is divided. The first burst is sent at each step of a window in turn,
/// and the second burst at each step after the first burst.
const BURST_TIME_STEPS_PER_WINDOW: u64 = 100;

const SECTION_INTRODUCTION: &str = "\
#### Attack on the window edge

A client sends max requests at once, and max requests again within a window. The client does not know the position \
of the window edges (`fixed_window` has a different phase for each key), so all positions are tried: the first burst \
at each hundredth of a window, the second at each hundredth after it, and just before the first burst leaves the \
window. The figures cover all these pairs.";

const WORST_BURST_PAIRS_INTRODUCTION: &str = "\
The allowed requests of the worst pair, as a share of max: with the second burst right after the first (a hundredth \
of a window later), and with the worst gap between the bursts.";

/// Measures all pairs of bursts with each algorithm, and adds the results to the report.
pub fn run(part: &mut ReportPart) -> Result<ArrivalsResult, Box<dyn Error>> {
    part.progress.add_steps(1);
    part.progress.begin_step("window edge");
    let mut results = results::empty_results();
    let mut table =
        MarkdownTable::new(["algorithm", "right after", "worst gap", "worst gap, in windows"]);
    for (result, limit) in results.iter_mut().zip(new_limit_for_each_algorithm(
        MAX_UNITS_PER_WINDOW,
        Duration::from_micros(LIMIT_WINDOW_US),
    )?) {
        let mut meter = AccuracyMeter::new(&limit, 1)?;
        let worst = find_worst_burst_pairs(&mut meter);
        result.add(&limit, &meter.stats())?;
        table.add_row(format_worst_burst_pairs_row(result.label(), worst));
    }
    part.add_text(SECTION_INTRODUCTION);
    results::add_results_table(part, &results);
    part.add_text(WORST_BURST_PAIRS_INTRODUCTION);
    part.add_table(&table);
    Ok(ArrivalsResult { name: "window edge", results })
}

/// The result of a pair of bursts: the number of allowed requests, and the gap between the bursts.
#[derive(Clone, Copy, Default)]
struct BurstPairResult {
    allowed: u64,
    gap_us: u64,
}

/// Measures all pairs of bursts, and returns two of them. The first is the pair with the most allowed requests among
/// the pairs with the shortest gap, the second is the pair with the most allowed requests of all.
fn find_worst_burst_pairs(meter: &mut AccuracyMeter) -> [BurstPairResult; 2] {
    let step = LIMIT_WINDOW_US / BURST_TIME_STEPS_PER_WINDOW;
    let gaps =
        || (1..BURST_TIME_STEPS_PER_WINDOW).map(|nth| nth * step).chain([LIMIT_WINDOW_US - 1]);
    let (mut shortest_gap, mut worst, mut window_start) =
        (BurstPairResult::default(), BurstPairResult::default(), MIDNIGHT_US);
    for offset in 1..=BURST_TIME_STEPS_PER_WINDOW {
        for gap_us in gaps() {
            let first = window_start + offset * step - 1;
            let allowed = count_allowed_in_burst(meter, first)
                + count_allowed_in_burst(meter, first + gap_us);
            let pair = BurstPairResult { allowed, gap_us };
            if gap_us == step {
                shortest_gap = choose_worse_burst_pair(shortest_gap, pair);
            }
            worst = choose_worse_burst_pair(worst, pair);
            // No charge of this pair is left in the window of the next pair.
            window_start += 5 * LIMIT_WINDOW_US;
        }
    }
    [shortest_gap, worst]
}

fn count_allowed_in_burst(meter: &mut AccuracyMeter, at_us: u64) -> u64 {
    (0..MAX_UNITS_PER_WINDOW).filter(|_| meter.check(at_us)).count() as u64
}

/// Returns the pair with more allowed requests. If the numbers are equal, returns the pair with the shorter gap.
fn choose_worse_burst_pair(first: BurstPairResult, second: BurstPairResult) -> BurstPairResult {
    let rank = |pair: &BurstPairResult| (pair.allowed, Reverse(pair.gap_us));
    if rank(&second) > rank(&first) { second } else { first }
}

fn format_worst_burst_pairs_row(
    label: String,
    [shortest_gap, worst]: [BurstPairResult; 2],
) -> [String; 4] {
    let gap = worst.gap_us as f64 / LIMIT_WINDOW_US as f64;
    [
        label,
        format!("{:.0} %", percent(shortest_gap.allowed, MAX_UNITS_PER_WINDOW)),
        format!("{:.0} %", percent(worst.allowed, MAX_UNITS_PER_WINDOW)),
        match worst.allowed > MAX_UNITS_PER_WINDOW {
            true if worst.gap_us == LIMIT_WINDOW_US - 1 => "just under 1".to_owned(),
            true => format!("{gap:.2}"),
            false => "any".to_owned(),
        },
    ]
}
