//! One key that everybody asks for.

use std::error::Error;

use lab::measure::{Plan, interleaved};
use lab::part::{Effort, Part};
use lab::table::Table;
use lab::targets::{Aim, Bound};
use slidegate::{Limiter, MAX_UNITS};

/// Decisions of all threads in a round.
const DECISIONS: usize = 4_000_000;

const MANY: usize = 8;

const HOT: Aim = Aim {
    text: "one hot key, 8 threads, in rates of one thread",
    bound: Bound::AtLeast(0.5),
    limited_by: "",
};

/// Measures a key that is always allowed, and one that is always denied.
pub fn run(effort: Effort, part: &mut Part) -> Result<(), Box<dyn Error>> {
    let keys = [("always allowed", MAX_UNITS), ("denied but once", 1)];
    part.progress.expect(keys.len());
    let mut table = Table::new(["", "1 thread, M/s", "8 threads, M/s", "times", "denied"]);
    for (name, max) in keys {
        part.progress.step(&format!("one hot key, {name}"));
        let limiter = Limiter::new([format!("{max}/w").as_str()])?;
        let [one, many] = [1, MANY].map(|threads| rate(effort, &limiter, threads));
        table.row([
            name.to_owned(),
            format!("{:.1}", one.per_us),
            format!("{:.1}", many.per_us),
            format!("{:.2}", many.per_us / one.per_us),
            format!("{:.2}", many.denied),
        ]);
        part.hold(&HOT, many.per_us / one.per_us);
    }
    part.say("### One hot key");
    part.table(&table);
    Ok(())
}

struct Rate {
    per_us: f64,
    denied: f64,
}

fn rate(effort: Effort, limiter: &Limiter, threads: usize) -> Rate {
    let decisions = DECISIONS / threads;
    let turn = |_| (0..decisions).filter(|_| !limiter.check("the hot key").is_allowed()).count();
    let plan = Plan { rounds: effort.rounds(), threads, decisions };
    let timing = interleaved(plan, &[&turn])[0];
    Rate { per_us: threads as f64 / timing.ns * 1000.0, denied: timing.denied }
}
