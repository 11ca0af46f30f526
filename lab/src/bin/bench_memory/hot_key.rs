//! Measures decisions on a single key that all threads request at the same time.

use std::error::Error;

use lab::measure::{MeasurePlan, run_interleaved};
use lab::part::{Effort, ReportPart};
use lab::table::MarkdownTable;
use lab::targets::{BenchTarget, TargetBound};
use slidegate::{Limiter, MAX_UNITS};

/// The number of decisions of all threads together per round.
const DECISIONS_PER_ROUND: usize = 4_000_000;

const CONCURRENT_THREADS: usize = 8;

const MIN_HOT_KEY_RATE_RELATIVE_TO_ONE_THREAD: BenchTarget = BenchTarget {
    text: "one hot key, 8 threads, rate relative to one thread",
    bound: TargetBound::AtLeast(0.5),
    limited_by: "",
};

/// Measures a limit that allows every request, and a limit that denies all requests except the first one, with one
/// thread and with eight threads.
pub fn run(effort: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    let keys = [("always allowed", MAX_UNITS), ("denied except once", 1)];
    part.progress.add_steps(keys.len());
    let mut table = MarkdownTable::new(["", "1 thread, M/s", "8 threads, M/s", "ratio", "denied"]);
    for (name, max) in keys {
        part.progress.begin_step(&format!("one hot key, {name}"));
        let limiter = Limiter::new([format!("{max}/w").as_str()])?;
        let [single, concurrent] =
            [1, CONCURRENT_THREADS].map(|threads| measure_decision_rate(effort, &limiter, threads));
        table.add_row([
            name.to_owned(),
            format!("{:.1}", single.per_us),
            format!("{:.1}", concurrent.per_us),
            format!("{:.2}", concurrent.per_us / single.per_us),
            format!("{:.2}", concurrent.denied),
        ]);
        part.record_target(
            &MIN_HOT_KEY_RATE_RELATIVE_TO_ONE_THREAD,
            concurrent.per_us / single.per_us,
        );
    }
    part.add_text("### One hot key");
    part.add_table(&table);
    Ok(())
}

/// The number of decisions of all threads per microsecond, and the share of denied decisions.
struct DecisionRate {
    per_us: f64,
    denied: f64,
}

fn measure_decision_rate(effort: Effort, limiter: &Limiter, threads: usize) -> DecisionRate {
    let decisions = DECISIONS_PER_ROUND / threads;
    let turn = |_| (0..decisions).filter(|_| !limiter.check("the hot key").is_allowed()).count();
    let plan = MeasurePlan { rounds: effort.rounds(), threads, decisions };
    let timing = run_interleaved(plan, &[&turn])[0];
    DecisionRate { per_us: threads as f64 / timing.ns * 1000.0, denied: timing.denied }
}
