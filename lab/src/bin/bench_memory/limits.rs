//! A decision as a function of the number of limits.

use std::error::Error;
use std::num::NonZeroU32;

use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter, clock::DefaultClock};
use lab::chart::{Line, Lines};
use lab::draw::Draw;
use lab::keys::{Course, Keys};
use lab::measure::{Plan, interleaved};
use lab::part::{Effort, Part};
use lab::table::Table;
use slidegate::Limiter;

use crate::keys::{DECISIONS, DRAWN};

const KEYS: usize = 100_000;

const COUNTS: [usize; 4] = [1, 2, 4, 8];

/// What each limit allows: everything, so that the last of them is always reached.
const MAX: u32 = 1_000_000;

type Governor =
    RateLimiter<String, DashMapStateStore<String, foldhash::fast::RandomState>, DefaultClock>;

/// Measures a limiter of so many limits, and as many of governor's one after another.
pub fn run(effort: Effort, part: &mut Part) -> Result<(), Box<dyn Error>> {
    part.progress.expect(COUNTS.len());
    let keys = Keys::new(KEYS);
    let course = Course::new(&keys, &Draw::Uniform(KEYS), DRAWN);
    let mut table = Table::new([
        "limits of one key",
        "slidegate, ns",
        "per limit",
        "governor keyed, foldhash, one after another, ns",
        "times slidegate's",
    ]);
    let mut lines = ["slidegate, one atomic step", "governor, one after another"]
        .map(|name| Line { name: name.to_owned(), points: Vec::new() });
    for count in COUNTS {
        part.progress.step(&format!("{count} limits"));
        let ns = measure(effort, &course, count)?;
        table.row([
            count.to_string(),
            format!("{:.0}", ns[0]),
            format!("{:.0}", ns[0] / count as f64),
            format!("{:.0}", ns[1]),
            format!("{:.2}", ns[1] / ns[0]),
        ]);
        lines.iter_mut().zip(ns).for_each(|(line, ns)| line.points.push((count as f64, ns)));
    }
    part.say(format!(
        "### A decision by the number of limits\n\nOf {KEYS} keys of text, drawn uniformly, all allowed, 1 thread. \
         slidegate charges all limits of a key or none. What has one limit is asked one after another, and keeps what \
         the first of them charged when a later one denies."
    ));
    part.table(&table);
    let picture = Lines {
        title: "A decision by the number of limits",
        x: "limits",
        y: "ns",
        is_log_x: false,
        lines: &lines,
    };
    part.chart("memory-limits", "a decision's time by the number of limits", picture.draw()?);
    Ok(())
}

fn measure(effort: Effort, course: &Course<'_>, limits: usize) -> Result<[f64; 2], Box<dyn Error>> {
    // Windows of different lengths: limits that are alike would be an error.
    let quotas: Vec<String> = (1..=limits).map(|days| format!("{MAX}/{days}d")).collect();
    let limiter = Limiter::new(quotas.iter().map(String::as_str))?;
    let governors: Vec<Governor> = (0..limits).map(|_| governor()).collect::<Result<_, _>>()?;
    let decisions = effort.pick(DECISIONS, DECISIONS / 5);
    let one = |seed: u64| {
        let draws = course.draws(seed, decisions);
        draws.filter(|(_, key)| !limiter.check(*key).is_allowed()).count()
    };
    let other = |seed: u64| {
        let mut owned = String::new();
        let denied = course.draws(seed, decisions).filter(|(_, key)| {
            owned.clear();
            owned.push_str(key);
            !governors.iter().all(|governor| governor.check_key(&owned).is_ok())
        });
        denied.count()
    };
    let plan = Plan { rounds: effort.rounds(), threads: 1, decisions };
    // Once without a clock, so that all keys are known.
    one(0);
    other(0);
    let timings = interleaved(plan, &[&one, &other]);
    Ok([timings[0].ns, timings[1].ns])
}

fn governor() -> Result<Governor, Box<dyn Error>> {
    let max = NonZeroU32::new(MAX).ok_or("a burst is not zero")?;
    Ok(RateLimiter::dashmap_with_hasher(Quota::per_second(max), Default::default()))
}
