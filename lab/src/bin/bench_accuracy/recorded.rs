//! Recorded arrivals: per-second counts of a whole service, as one key.

use std::error::Error;
use std::time::Duration;

use lab::accuracy::{MIDNIGHT_US, Tally, judge, percent};
use lab::exact::ExactLog;
use lab::part::{Effort, Part};
use lab::recording::Recording;
use lab::table::Table;
use lab::targets::{Aim, Bound};
use slidegate::{Algorithm, Limit};

use crate::limits;
use crate::pool::{self, Kind, Pool, share, shown};

const OVERALL: Aim = Aim {
    text: "`sliding_window` on recorded arrivals: wrong decisions, %",
    bound: Bound::AtMost(0.01),
    limited_by: "the estimate takes the previous window's requests as spread evenly over it. In the committed recording an hour's \
        requests come within a minute, so a window of an hour counts a minute of them long after it has left, at most \
        phases: that is the worst measure. Windows of 10 s and of a minute are off by what chance adds to few requests. \
        Tried: other phases (they decide about windows of an hour, hardly about those of 10 s); ten rounds without the \
        silence (the same share for 10 s: length does not help); more room (a limit of 20 % over the most that came was \
        never wrong, but for an hour's window). Who needs it exact takes `sliding_log`",
};

const NEAR: Aim = Aim {
    text: "`sliding_window` on recorded arrivals: wrong decisions of those within 20 % of the limit, %",
    bound: Bound::AtMost(1.0),
    limited_by: "the estimate takes the previous window's requests as spread evenly over it. Worst is a minute of requests after a silence when a window's edge divides it: what came \
        before the edge fades from there on, though all of it is in the window still. See by phase: begun at the edge, the \
        same minute is decided without a mistake",
};

/// How often a recording is played in a row to make a longer one.
const ROUNDS: u64 = 10;

/// Unless it then has more requests than these.
const MAX: u64 = 1_000_000;

const COLUMNS: [&str; 10] = [
    "window",
    "fits",
    "max",
    "denied",
    "false allows",
    "false denies",
    "both, by phase",
    "off by",
    "wrong near the limit",
    "worst window",
];

const WINDOWS: [(&str, u64); 3] = [("10 s", 10), ("1 min", 60), ("1 h", 3_600)];

/// How a max is chosen: the share of requests, in thousandths, that it would allow at least if nothing were denied
/// before; or the most that any window has, and a fifth more.
const RULES: [(&str, Option<usize>); 4] =
    [("90 %", Some(900)), ("99 %", Some(990)), ("99.9 %", Some(999)), ("all and 20 % more", None)];

const TEXT: &str = "\
#### Recorded arrivals

Requests of a real site as one key, from how many came in each second; each is put anywhere in its second, by a seed. \
The limits were chosen by a rule before anything was measured: for each window max is so large that 90 %, 99 % or 99.9 % \
of the requests find no more than max in the window that ends with them, themselves included; or the most that any window \
has, and 20 % more, as `slidegate replay --suggest` advises. One wrong decision in a recording of ten thousand would be \
0.01 %: so it is played many times, each with other places in the seconds, and begun at another place of the window, \
evenly over all places.

**Fits** is the rule, and **both, by phase** the least and the most wrong decisions that any time of playing had.";

/// Measures the recording.
pub fn run(effort: Effort, part: &mut Part) -> Result<Kind, Box<dyn Error>> {
    let (recording, name) = Recording::chosen()?;
    let requests = effort.pick(1_000_000, 100_000);
    let rounds = (MAX / recording.requests()).clamp(1, ROUNDS);
    let longer = recording.without_pauses().repeated(rounds as usize);
    part.progress.expect(2 * WINDOWS.len());
    part.say(TEXT);
    let mut all = pool::empty();
    let mut measure = |what: &str, recording: &Recording, part: &mut Part| {
        let times = (requests / recording.requests()).clamp(3, 200);
        part.say(format!(
            "`sliding_window`, {what}: {} requests in {} seconds, played {times} times.",
            recording.requests(),
            recording.seconds(),
        ));
        measure(recording, times, part, &mut all)
    };
    let rows = measure(&format!("`{name}` as it is"), &recording, part)?;
    for Row { sum, .. } in &rows {
        part.hold(&OVERALL, sum.wrong_percent());
        part.hold(&NEAR, sum.near_wrong_percent());
    }
    part.say(verdict(&rows));
    let what = format!("without the minutes in which nobody came, {rounds} in a row");
    measure(&what, &longer, part)?;
    part.say("All algorithms, over all limits of both tables:");
    pool::tell(part, &all);
    Ok(Kind { name: "recorded", pools: all })
}

/// What `sliding_window` came to under one limit.
struct Row {
    max: u64,
    sum: Tally,
    /// One for each time that the recording was played.
    plays: Vec<Tally>,
}

/// Over all windows and rules, in their order.
fn measure(
    recording: &Recording,
    times: u64,
    part: &mut Part,
    all: &mut [Pool],
) -> Result<Vec<Row>, Box<dyn Error>> {
    let (mut rows, mut table) = (Vec::new(), Table::new(COLUMNS));
    for (name, seconds) in WINDOWS {
        part.progress.step(&format!("recorded, {name}"));
        let window = Duration::from_secs(seconds);
        let counts = counts(recording, window);
        for (rule, thousandths) in RULES {
            let max = chosen(&counts, thousandths);
            let plays = play(recording, times, &limits(max, window)?)?;
            for ((limit, plays), pool) in plays.into_iter().zip(all.iter_mut()) {
                let mut sum = Tally::default();
                plays.iter().for_each(|tally| sum += *tally);
                pool.add(&limit, &sum)?;
                if limit.algorithm() == Algorithm::default() {
                    let row = Row { max, sum, plays };
                    table.row(row.cells([name, rule]));
                    rows.push(row);
                }
            }
        }
    }
    part.table(&table);
    Ok(rows)
}

fn verdict(rows: &[Row]) -> String {
    let within = |is: fn(&Tally) -> bool| rows.iter().filter(|row| is(&row.sum)).count();
    format!(
        "Of these {} limits {} are decided with at most 0.01 % wrong, and {} with at most 1 % of those near the limit.",
        rows.len(),
        within(|sum| sum.wrong_percent() <= 0.01),
        within(|sum| sum.near_wrong_percent() <= 1.0),
    )
}

/// How many requests each finds in the window that ends with it, if all are allowed: sorted.
fn counts(recording: &Recording, window: Duration) -> Vec<u64> {
    let mut log = ExactLog::new(window.as_micros() as u64);
    let count = |at_us| {
        log.give(at_us, 1);
        log.inside(at_us)
    };
    let mut counts: Vec<u64> = recording.arrivals(0).into_iter().map(count).collect();
    counts.sort_unstable();
    counts
}

fn chosen(counts: &[u64], thousandths: Option<usize>) -> u64 {
    let most = counts.last().copied().unwrap_or(1);
    match thousandths {
        Some(share) => {
            counts.get((counts.len() * share).div_ceil(1_000) - 1).copied().unwrap_or(most)
        }
        None => (6 * most).div_ceil(5),
    }
}

/// What each limit came to, play by play.
type Plays = Vec<(Limit, Vec<Tally>)>;

/// Plays a recording under each limit. Each play begins at another place of the window, evenly over all of it, and has
/// other places in the seconds.
fn play(recording: &Recording, times: u64, limits: &[Limit]) -> Result<Plays, Box<dyn Error>> {
    let mut all: Plays = limits.iter().map(|limit| (*limit, Vec::new())).collect();
    let window_us = limits.first().map_or(0, |limit| limit.quota().window().as_micros() as u64);
    for nth in 0..times {
        let mut arrivals = recording.arrivals(nth);
        let begin = MIDNIGHT_US + window_us * nth / times;
        arrivals.iter_mut().for_each(|at| *at += begin);
        for (limit, plays) in &mut all {
            plays.push(judge(limit, nth, &arrivals)?);
        }
    }
    Ok(all)
}

impl Row {
    fn cells(&self, [window, rule]: [&str; 2]) -> [String; COLUMNS.len()] {
        let (sum, by_phase) = (&self.sum, || self.plays.iter().map(Tally::wrong_percent));
        [
            window.to_owned(),
            rule.to_owned(),
            self.max.to_string(),
            share(sum.decisions - sum.allowed, sum.decisions),
            share(sum.false_allows, sum.decisions),
            share(sum.false_denies, sum.decisions),
            format!(
                "{} to {}",
                shown(by_phase().fold(100.0, f64::min)),
                shown(by_phase().fold(0.0, f64::max))
            ),
            shown(percent(sum.off, self.max) / sum.wrong().max(1) as f64),
            share(sum.near_wrong, sum.near),
            format!("{:.0} %", percent(sum.most, self.max)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_max_is_what_so_many_requests_find_or_a_fifth_above_the_most() {
        let counts: Vec<u64> = (1..=1_000).collect();
        assert_eq!(RULES.map(|(_, share)| chosen(&counts, share)), [900, 990, 999, 1_200]);
        assert_eq!(RULES.map(|(_, share)| chosen(&[7], share)), [7, 7, 7, 9]);
    }

    #[test]
    fn counts_are_of_the_window_that_ends_with_each_request() {
        let recording = Recording::parse("2\n0*9\n1\n0*30\n1").unwrap();
        assert_eq!(counts(&recording, Duration::from_secs(20)), [1, 1, 2, 3]);
    }
}
