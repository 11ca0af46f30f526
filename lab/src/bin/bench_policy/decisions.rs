//! Measures the decision time with a policy of 1,000 rules, compared with a policy of three rules.

use std::error::Error;

use lab::measure::{MeasurePlan, run_interleaved};
use lab::part::{Effort, ReportPart};
use lab::policies::{LEADING_STAR_GLOBS, PolicyShape, REQUESTS, SHAPES, Workload};
use lab::table::MarkdownTable;
use lab::targets::{BenchTarget, TargetBound};
use slidegate::SystemClock;
use stats_alloc::Region;

use crate::COUNTING_ALLOCATOR;

const SMALL_POLICY_RULE_COUNT: usize = 3;

const LARGE_POLICY_RULE_COUNT: usize = 1_000;

const MAX_DECISION_TIME_RELATIVE_TO_THREE_RULES: BenchTarget = BenchTarget {
    text: "decision with 1,000 rules, time relative to 3 rules",
    bound: TargetBound::AtMost(2.0),
    limited_by: "",
};

const MAX_ALLOCATIONS_PER_DECISION: BenchTarget = BenchTarget {
    text: "allocations per decision with a policy",
    bound: TargetBound::AtMost(0.0),
    limited_by: "",
};

/// Measures policies with different kinds of rules. One kind has a glob with a leading star, for which the policy has
/// no index.
pub fn run(effort: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    part.progress.add_steps(SHAPES.len() + 1);
    let mut table = MarkdownTable::new(["", "3 rules", "1,000 rules", "ratio", "allocations"]);
    for shape in SHAPES.into_iter().chain([LEADING_STAR_GLOBS]) {
        part.progress.begin_step(&format!("decisions, {}", shape.name));
        let [few, many, allocations] = measure_decisions_with_policy_shape(effort, shape)?;
        table.add_row([
            shape.name.to_owned(),
            format!("{few:.0} ns"),
            format!("{many:.0} ns"),
            format!("{:.2}", many / few),
            format!("{allocations:.2}"),
        ]);
        if shape.name != LEADING_STAR_GLOBS.name {
            part.record_target(&MAX_DECISION_TIME_RELATIVE_TO_THREE_RULES, many / few);
            part.record_target(&MAX_ALLOCATIONS_PER_DECISION, allocations);
        }
    }
    part.add_text("### Decision time");
    part.add_table(&table);
    part.add_text(
        "The last row is not a target. Its rules differ only in globs with a leading star, so each rule is \
         evaluated. Add another attribute, or a prefix to the globs, to avoid this.",
    );
    Ok(())
}

/// Returns the decision time in nanoseconds with three rules and with 1,000 rules, and the number of memory allocations
/// per decision with 1,000 rules.
fn measure_decisions_with_policy_shape(
    effort: Effort,
    shape: PolicyShape,
) -> Result<[f64; 3], Box<dyn Error>> {
    let (few, many) = (
        Workload::new(shape, SMALL_POLICY_RULE_COUNT)?,
        Workload::new(shape, LARGE_POLICY_RULE_COUNT)?,
    );
    // This also creates all keys.
    let allocations = [&few, &many].map(measure_allocations_per_decision);
    // Evaluating every rule is slow, so fewer decisions are measured.
    let is_slow = shape.name == LEADING_STAR_GLOBS.name;
    let all = effort.pick(600_000, 100_000);
    let decisions = if is_slow { all / 20 } else { all };
    let plan = MeasurePlan { rounds: effort.rounds(), threads: 1, decisions };
    let timings = run_interleaved(
        plan,
        &[&|_| few.count_denied(decisions), &|_| many.count_denied(decisions)],
    );
    Ok([timings[0].ns, timings[1].ns, allocations[1]])
}

/// Returns the number of memory allocations per decision. Each request is checked once before the count, so that all
/// keys exist.
fn measure_allocations_per_decision(workload: &Workload<SystemClock>) -> f64 {
    workload.count_denied(REQUESTS);
    let region = Region::new(COUNTING_ALLOCATOR);
    workload.count_denied(REQUESTS);
    region.change().allocations as f64 / REQUESTS as f64
}
