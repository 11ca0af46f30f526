//! One key that everybody asks for.

use std::error::Error;

use lab::measure::{Plan, interleaved};
use lab::table::Table;
use slidegate::{Limiter, MAX_UNITS};

use crate::Scope;
use lab::targets::{Bound, Targets};

/// Decisions of all threads in a round.
const DECISIONS: usize = 4_000_000;

const MANY: usize = 8;

/// Measures a key that is always allowed, and one that is always denied.
pub fn run(scope: &Scope, targets: &mut Targets) -> Result<(), Box<dyn Error>> {
    println!("## One hot key\n");
    let mut table = Table::new(["", "1 thread, M/s", "8 threads, M/s", "times", "denied"]);
    for (name, max) in [("always allowed", MAX_UNITS), ("denied but once", 1)] {
        eprintln!("one hot key, {name}");
        let limiter = Limiter::new([format!("{max}/w").as_str()])?;
        let [one, many] = [1, MANY].map(|threads| rate(scope, &limiter, threads));
        table.row([
            name.to_owned(),
            format!("{:.1}", one.per_us),
            format!("{:.1}", many.per_us),
            format!("{:.2}", many.per_us / one.per_us),
            format!("{:.2}", many.denied),
        ]);
        let text = "one hot key, 8 threads, in rates of one thread";
        targets.hold(text, Bound::AtLeast(0.5), many.per_us / one.per_us);
    }
    println!("{table}");
    Ok(())
}

struct Rate {
    per_us: f64,
    denied: f64,
}

fn rate(scope: &Scope, limiter: &Limiter, threads: usize) -> Rate {
    let decisions = DECISIONS / threads;
    let turn = |_| (0..decisions).filter(|_| !limiter.check("the hot key").is_allowed()).count();
    let plan = Plan { rounds: scope.rounds, threads, decisions };
    let timing = interleaved(plan, &[&turn])[0];
    Rate { per_us: threads as f64 / timing.ns * 1000.0, denied: timing.denied }
}
