//! Measures the loading time of a policy: from its YAML text to the compiled policy.

use std::error::Error;
use std::hint::black_box;

use lab::part::{Effort, ReportPart};
use lab::policies::{PolicyShape, SHAPES};
use lab::table::MarkdownTable;
use lab::targets::{BenchTarget, TargetBound};
use slidegate::Policy;

const POLICY_RULE_COUNTS: [usize; 2] = [1_000, 10_000];

const MAX_LOADING_MS: BenchTarget = BenchTarget {
    text: "loading 1,000 rules, ms",
    bound: TargetBound::AtMost(100.0),
    limited_by: "",
};

/// Measures the loading time for each kind of rule that an index supports, and adds a table to the report.
pub fn run(effort: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    part.progress.add_steps(SHAPES.len());
    part.add_text(
        "Each rule has one limit, `sliding_window` in memory. Each request has four or five attributes and matches \
         exactly one rule, both with 3 rules and with 1,000 rules. There are 3,000 requests in random order, each \
         with its own counter.\n\n### Loading time",
    );
    let mut table = MarkdownTable::new(["", "1,000 rules", "10,000 rules"]);
    for shape in SHAPES {
        part.progress.begin_step(&format!("loading {}", shape.name));
        let [thousand, ten_thousand] =
            POLICY_RULE_COUNTS.map(|rules| measure_median_loading_ms(effort, shape, rules));
        let (thousand, ten_thousand) = (thousand?, ten_thousand?);
        table.add_row([
            shape.name.to_owned(),
            format!("{thousand:.1} ms"),
            format!("{ten_thousand:.0} ms"),
        ]);
        part.record_target(&MAX_LOADING_MS, thousand);
    }
    part.add_table(&table);
    Ok(())
}

/// Loads a policy with this number of rules several times. Returns the median loading time in milliseconds.
fn measure_median_loading_ms(
    effort: Effort,
    shape: PolicyShape,
    rules: usize,
) -> Result<f64, Box<dyn Error>> {
    let text = shape.policy(rules);
    let mut rounds = Vec::with_capacity(effort.rounds());
    for _ in 0..effort.rounds() {
        let started = quanta::Instant::now();
        let policy = black_box(Policy::from_yaml(&text)?);
        rounds.push(started.elapsed().as_secs_f64() * 1e3);
        drop(policy);
    }
    rounds.sort_unstable_by(f64::total_cmp);
    Ok(rounds[rounds.len() / 2])
}
