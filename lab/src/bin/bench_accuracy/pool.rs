//! What each algorithm came to over many keys, loads or limits, as tables and pictures.

use std::error::Error;

use lab::accuracy::{Tally, bound, is_strict, percent};
use lab::chart::{self, Bar, Group};
use lab::part::Part;
use lab::table::Table;
use lab::targets::{Aim, Bound};
use slidegate::{Algorithm, Limit};

const STRICT: Aim = Aim {
    text: "`sliding_log` and `sliding_buckets`, any traffic: false allows",
    bound: Bound::AtMost(0.0),
    limited_by: "",
};

const PICTURES: &str = "\
### All arrivals in two pictures

Wrong decisions do not tell by how much: see *off by* in the tables. Most of what `sliding_window` denies wrongly under an \
even pace would have fitted by a unit.";

/// What each algorithm came to, by kind of arrivals.
pub struct Kind {
    /// Of the arrivals.
    pub name: &'static str,
    /// In the order of [`Algorithm::ALL`].
    pub pools: Vec<Pool>,
}

/// What one algorithm came to.
#[derive(Clone, Copy)]
pub struct Pool {
    algorithm: Algorithm,
    tally: Tally,
    /// Of its wrong decisions, in percent of max, in all.
    off: f64,
    /// In percent of max.
    worst: f64,
    /// In percent of max.
    bound: f64,
}

/// One for each algorithm, with nothing in it.
pub fn empty() -> Vec<Pool> {
    let pool =
        |algorithm| Pool { algorithm, tally: Tally::default(), off: 0.0, worst: 0.0, bound: 0.0 };
    Algorithm::ALL.map(pool).to_vec()
}

impl Pool {
    /// Adds what a limit of this algorithm came to.
    ///
    /// # Errors
    /// If the limit allowed more in a window than is proven.
    pub fn add(&mut self, limit: &Limit, tally: &Tally) -> Result<(), Box<dyn Error>> {
        if tally.most > bound(limit) {
            return Err(
                format!("{limit} allowed {} in a window: beyond its bound", tally.most).into()
            );
        }
        self.tally += *tally;
        self.off += percent(tally.off, limit.quota().max());
        self.worst = self.worst.max(percent(tally.most, limit.quota().max()));
        self.bound = self.bound.max(percent(bound(limit), limit.quota().max()));
        Ok(())
    }
}

/// A row for each algorithm; a strict one is held to it.
pub fn tell(part: &mut Part, pools: &[Pool]) {
    let mut table = Table::new([
        "algorithm",
        "allowed",
        "false allows",
        "false denies",
        "off by",
        "wrong near the limit",
        "worst window",
        "bound",
    ]);
    for Pool { algorithm, tally, off, worst, bound } in pools {
        if is_strict(*algorithm) {
            part.hold(&STRICT, tally.false_allows as f64);
        }
        table.row([
            format!("`{algorithm}`"),
            share(tally.allowed, tally.decisions),
            share(tally.false_allows, tally.decisions),
            share(tally.false_denies, tally.decisions),
            shown(off / tally.wrong().max(1) as f64),
            share(tally.near_wrong, tally.near),
            format!("{worst:.0} %"),
            format!("{bound:.0} %"),
        ]);
    }
    part.table(&table);
}

/// Draws all kinds of arrivals.
pub fn draw(part: &mut Part, kinds: &[Kind]) -> Result<(), Box<dyn Error>> {
    part.say(PICTURES);
    let names = Algorithm::ALL.map(|algorithm| algorithm.name());
    let bar = |pool: &Pool| (pool.tally.wrong_percent(), shown(pool.tally.wrong_percent()));
    let group = |kind: &Kind| Group {
        name: kind.name.to_owned(),
        bars: kind.pools.iter().map(bar).collect(),
    };
    let groups: Vec<Group> = kinds.iter().map(group).collect();
    let svg = chart::grouped("Wrong decisions, of all requests", &names, &groups)?;
    part.chart("accuracy-wrong", "Wrong decisions by algorithm and arrivals", svg);

    let (mut bars, mut marks) = (Vec::new(), Vec::new());
    for (nth, algorithm) in Algorithm::ALL.into_iter().enumerate() {
        let of_kinds = || kinds.iter().map(|kind| &kind.pools[nth]);
        let worst = of_kinds().map(|pool| pool.worst).fold(0.0, f64::max);
        let label = format!("{worst:.0} %");
        bars.push(Bar { name: algorithm.to_string(), value: worst, label, is_own: true });
        marks.push(of_kinds().map(|pool| pool.bound).fold(0.0, f64::max));
    }
    let title = "The most allowed in any window, of max: worst of all arrivals";
    let svg = chart::bars_with_marks(title, &bars, &marks, "proven bound")?;
    part.chart("accuracy-worst", "The worst window of each algorithm beside its bound", svg);
    Ok(())
}

/// So many of so many, in a hundred.
pub fn share(some: u64, of: u64) -> String {
    shown(percent(some, of))
}

/// Percents with two digits that say something.
pub fn shown(percent: f64) -> String {
    match percent {
        0.0 => "0".to_owned(),
        10.0.. => format!("{percent:.0} %"),
        1.0.. => format!("{percent:.1} %"),
        _ => format!("{percent:.*} %", (1.0 - percent.log10().floor()) as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percents_have_two_digits() {
        let shown = [0.0, 0.004_23, 0.51, 1.04, 12.3, 100.0].map(shown);
        assert_eq!(shown, ["0", "0.0042 %", "0.51 %", "1.0 %", "12 %", "100 %"]);
    }
}
