//! From the text of a policy to one that can be asked.

use std::error::Error;
use std::hint::black_box;

use lab::policies::{SHAPES, Shape};
use lab::table::Table;
use lab::targets::{Bound, Targets};
use slidegate::Policy;

use crate::Scope;

const RULES: [usize; 2] = [1_000, 10_000];

/// Measures every shape.
pub fn run(scope: &Scope, targets: &mut Targets) -> Result<(), Box<dyn Error>> {
    println!("### To load it\n");
    let mut table = Table::new(["", "1,000 rules", "10,000 rules"]);
    for shape in SHAPES {
        eprintln!("loading {}", shape.name);
        let [thousand, ten_thousand] = RULES.map(|rules| load(scope, shape, rules));
        let (thousand, ten_thousand) = (thousand?, ten_thousand?);
        table.row([
            shape.name.to_owned(),
            format!("{thousand:.1} ms"),
            format!("{ten_thousand:.0} ms"),
        ]);
        targets.hold("1,000 rules are loaded, ms", Bound::AtMost(100.0), thousand);
    }
    println!("{table}");
    Ok(())
}

/// Milliseconds, the median of the rounds.
fn load(scope: &Scope, shape: Shape, rules: usize) -> Result<f64, Box<dyn Error>> {
    let text = shape.policy(rules);
    let mut rounds = Vec::with_capacity(scope.rounds);
    for _ in 0..scope.rounds {
        let started = quanta::Instant::now();
        let policy = black_box(Policy::from_yaml(&text)?);
        rounds.push(started.elapsed().as_secs_f64() * 1e3);
        drop(policy);
    }
    rounds.sort_unstable_by(f64::total_cmp);
    Ok(rounds[rounds.len() / 2])
}
