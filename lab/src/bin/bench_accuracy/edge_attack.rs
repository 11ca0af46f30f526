//! The attack on a window edge: max requests just before an edge, and max requests again after it.

use std::cmp::Reverse;
use std::error::Error;
use std::time::Duration;

use lab::accuracy::{AccuracyMeter, MIDNIGHT_US, percent};
use lab::part::ReportPart;
use lab::table::MarkdownTable;
use slidegate::Limit;

use crate::limits;
use crate::results::{self, ArrivalsResult};

const MAX: u64 = 100;

const WINDOW_US: u64 = 10_000_000;

/// The number of positions of the first burst in a window, and of the second burst after the first.
const OFFSETS: u64 = 100;

const TEXT: &str = "\
#### Attack on the window edge

A client sends max requests at once, and max requests again within a window. The client does not know the position \
of the window edges (`fixed_window` has a different phase for each key), so all positions are tried: the first burst \
at each hundredth of a window, the second at each hundredth after it, and just before the first burst leaves the \
window. The figures cover all these pairs.";

const WORST: &str = "\
The allowed requests of the worst pair, as a share of max: with the second burst right after the first (a hundredth \
of a window later), and with the worst gap between the bursts.";

/// Tries all positions.
pub fn run(part: &mut ReportPart) -> Result<ArrivalsResult, Box<dyn Error>> {
    part.progress.add_steps(1);
    part.progress.begin_step("window edge");
    let mut results = results::empty_results();
    let mut table =
        MarkdownTable::new(["algorithm", "right after", "worst gap", "worst gap, in windows"]);
    for (result, limit) in results.iter_mut().zip(limits(MAX, Duration::from_micros(WINDOW_US))?) {
        let mut meter = AccuracyMeter::new(&limit, 1)?;
        let worst = find_worst_pairs(&mut meter);
        result.add(&limit, &meter.stats())?;
        table.add_row(row(&limit, worst));
    }
    part.add_text(TEXT);
    results::add_results_table(part, &results);
    part.add_text(WORST);
    part.add_table(&table);
    Ok(ArrivalsResult { name: "window edge", results })
}

/// The result of a pair of bursts: the allowed requests, and the gap between the bursts.
#[derive(Clone, Copy, Default)]
struct BurstPair {
    allowed: u64,
    gap_us: u64,
}

/// Returns the worst pair with the shortest gap, and the worst pair with any gap.
fn find_worst_pairs(meter: &mut AccuracyMeter) -> [BurstPair; 2] {
    let step = WINDOW_US / OFFSETS;
    let gaps = || (1..OFFSETS).map(|nth| nth * step).chain([WINDOW_US - 1]);
    let (mut shortest_gap, mut worst, mut window_start) =
        (BurstPair::default(), BurstPair::default(), MIDNIGHT_US);
    for offset in 1..=OFFSETS {
        for gap_us in gaps() {
            let first = window_start + offset * step - 1;
            let allowed = send_burst(meter, first) + send_burst(meter, first + gap_us);
            let pair = BurstPair { allowed, gap_us };
            if gap_us == step {
                shortest_gap = worse_pair(shortest_gap, pair);
            }
            worst = worse_pair(worst, pair);
            // No charge of this pair is left in the window of the next pair.
            window_start += 5 * WINDOW_US;
        }
    }
    [shortest_gap, worst]
}

fn send_burst(meter: &mut AccuracyMeter, at_us: u64) -> u64 {
    (0..MAX).filter(|_| meter.check(at_us)).count() as u64
}

/// Returns the pair with more allowed requests, or with the shorter gap if equal.
fn worse_pair(first: BurstPair, second: BurstPair) -> BurstPair {
    let rank = |pair: &BurstPair| (pair.allowed, Reverse(pair.gap_us));
    if rank(&second) > rank(&first) { second } else { first }
}

fn row(limit: &Limit, [shortest_gap, worst]: [BurstPair; 2]) -> [String; 4] {
    let gap = worst.gap_us as f64 / WINDOW_US as f64;
    [
        format!("`{}`", limit.algorithm()),
        format!("{:.0} %", percent(shortest_gap.allowed, MAX)),
        format!("{:.0} %", percent(worst.allowed, MAX)),
        match worst.allowed > MAX {
            true if worst.gap_us == WINDOW_US - 1 => "just under 1".to_owned(),
            true => format!("{gap:.2}"),
            false => "any".to_owned(),
        },
    ]
}
