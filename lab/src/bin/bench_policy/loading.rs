//! From the text of a policy to one that can be asked.

use std::error::Error;
use std::hint::black_box;

use lab::part::{Effort, Part};
use lab::policies::{BucketLayout, SHAPES};
use lab::table::Table;
use lab::targets::{Aim, Bound};
use slidegate::Policy;

const RULES: [usize; 2] = [1_000, 10_000];

const LOADED: Aim =
    Aim { text: "1,000 rules are loaded, ms", bound: Bound::AtMost(100.0), limited_by: "" };

/// Measures every shape.
pub fn run(effort: Effort, part: &mut Part) -> Result<(), Box<dyn Error>> {
    part.progress.expect(SHAPES.len());
    part.say(
        "Each rule has one limit, `sliding_window` in memory. Each request says four or five attributes and is for \
         exactly one rule, under 3 rules and under 1,000 alike; 3,000 requests in no foreseeable order, each with its own \
         count.\n\n### To load it",
    );
    let mut table = Table::new(["", "1,000 rules", "10,000 rules"]);
    for shape in SHAPES {
        part.progress.step(&format!("loading {}", shape.name));
        let [thousand, ten_thousand] = RULES.map(|rules| load(effort, shape, rules));
        let (thousand, ten_thousand) = (thousand?, ten_thousand?);
        table.row([
            shape.name.to_owned(),
            format!("{thousand:.1} ms"),
            format!("{ten_thousand:.0} ms"),
        ]);
        part.hold(&LOADED, thousand);
    }
    part.table(&table);
    Ok(())
}

/// Milliseconds, the median of the rounds.
fn load(effort: Effort, shape: BucketLayout, rules: usize) -> Result<f64, Box<dyn Error>> {
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
