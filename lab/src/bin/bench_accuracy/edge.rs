//! The attack on a window's edge: as much as the limit holds just before an edge, and again after it.

use std::cmp::Reverse;
use std::error::Error;
use std::time::Duration;

use lab::accuracy::{Judge, MIDNIGHT_US, percent};
use lab::part::Part;
use lab::table::Table;
use slidegate::Limit;

use crate::limits;
use crate::pool::{self, Kind};

const MAX: u64 = 100;

const WINDOW_US: u64 = 10_000_000;

/// Places of the first burst in a window, and of the second after the first.
const PLACES: u64 = 100;

const TEXT: &str = "\
#### An attack on the window's edge

As many requests as the limit holds come at one moment, and again within a window. Nobody knows where the edge of a \
window is (`fixed_window` has another phase for each key), so all places are tried: the first burst at each hundredth of \
a window, the second at each hundredth after it, and just before the first one leaves. The figures are of all these pairs.";

const WORST: &str = "\
How much the worst pair gets, of max: if the second burst comes right after the first (a hundredth of a window later), \
and if it waits as long as is worst.";

/// Tries all places.
pub fn run(part: &mut Part) -> Result<Kind, Box<dyn Error>> {
    part.progress.expect(1);
    part.progress.step("window's edge");
    let mut pools = pool::empty();
    let mut table = Table::new(["algorithm", "right after", "at worst", "which is, in windows"]);
    for (pool, limit) in pools.iter_mut().zip(limits(MAX, Duration::from_micros(WINDOW_US))?) {
        let mut judge = Judge::new(&limit, 1)?;
        let worst = attack(&mut judge);
        pool.add(&limit, &judge.tally())?;
        table.row(row(&limit, worst));
    }
    part.say(TEXT);
    pool::tell(part, &pools);
    part.say(WORST);
    part.table(&table);
    Ok(Kind { name: "window's edge", pools })
}

/// What a pair of bursts gets, and how long after the first the second comes.
#[derive(Clone, Copy, Default)]
struct Pair {
    allowed: u64,
    gap_us: u64,
}

/// The best for the attacker with the shortest gap, and with any.
fn attack(judge: &mut Judge) -> [Pair; 2] {
    let step = WINDOW_US / PLACES;
    let gaps = || (1..PLACES).map(|nth| nth * step).chain([WINDOW_US - 1]);
    let (mut soon, mut worst, mut begin) = (Pair::default(), Pair::default(), MIDNIGHT_US);
    for place in 1..=PLACES {
        for gap_us in gaps() {
            let first = begin + place * step - 1;
            let allowed = burst(judge, first) + burst(judge, first + gap_us);
            let pair = Pair { allowed, gap_us };
            if gap_us == step {
                soon = better(soon, pair);
            }
            worst = better(worst, pair);
            // All is forgotten until the next pair.
            begin += 5 * WINDOW_US;
        }
    }
    [soon, worst]
}

fn burst(judge: &mut Judge, at_us: u64) -> u64 {
    (0..MAX).filter(|_| judge.ask(at_us)).count() as u64
}

/// The one that gets more; of equals that which waits less.
fn better(one: Pair, other: Pair) -> Pair {
    let rank = |pair: &Pair| (pair.allowed, Reverse(pair.gap_us));
    if rank(&other) > rank(&one) { other } else { one }
}

fn row(limit: &Limit, [soon, worst]: [Pair; 2]) -> [String; 4] {
    let gap = worst.gap_us as f64 / WINDOW_US as f64;
    [
        format!("`{}`", limit.algorithm()),
        format!("{:.0} %", percent(soon.allowed, MAX)),
        format!("{:.0} %", percent(worst.allowed, MAX)),
        match worst.allowed > MAX {
            true if worst.gap_us == WINDOW_US - 1 => "just under 1".to_owned(),
            true => format!("{gap:.2}"),
            false => "any".to_owned(),
        },
    ]
}
