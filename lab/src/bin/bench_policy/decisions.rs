//! A decision under a thousand rules, beside one under three.

use std::error::Error;

use lab::measure::{Plan, interleaved};
use lab::policies::{REQUESTS, SHAPES, Shape, WITHOUT_A_BEGINNING, Workload};
use lab::table::Table;
use lab::targets::{Bound, Targets};
use slidegate::SystemClock;
use stats_alloc::Region;

use crate::{ALLOCATOR, Scope};

const FEW: usize = 3;

const MANY: usize = 1_000;

/// Measures every shape, and one that cannot be looked up.
pub fn run(scope: &Scope, targets: &mut Targets) -> Result<(), Box<dyn Error>> {
    println!("### To decide by it\n");
    let mut table = Table::new(["", "3 rules", "1,000 rules", "times", "allocations"]);
    for shape in SHAPES.into_iter().chain([WITHOUT_A_BEGINNING]) {
        eprintln!("deciding by {}", shape.name);
        let [few, many, allocations] = measure(scope, shape)?;
        table.row([
            shape.name.to_owned(),
            format!("{few:.0} ns"),
            format!("{many:.0} ns"),
            format!("{:.2}", many / few),
            format!("{allocations:.2}"),
        ]);
        if shape.name != WITHOUT_A_BEGINNING.name {
            let text = "a decision under 1,000 rules, in times of one under 3";
            targets.hold(text, Bound::AtMost(2.0), many / few);
            targets.hold("allocations of a decision", Bound::AtMost(0.0), allocations);
        }
    }
    println!("{table}");
    Ok(())
}

/// Nanoseconds under few rules and under many, and allocations under many.
fn measure(scope: &Scope, shape: Shape) -> Result<[f64; 3], Box<dyn Error>> {
    let (few, many) = (Workload::new(shape, FEW)?, Workload::new(shape, MANY)?);
    // Every key is known from here on.
    let allocations = [&few, &many].map(allocations);
    // To look at every rule takes long.
    let is_slow = shape.name == WITHOUT_A_BEGINNING.name;
    let decisions = if is_slow { scope.decisions / 20 } else { scope.decisions };
    let plan = Plan { rounds: scope.rounds, threads: 1, decisions };
    let timings = interleaved(plan, &[&|_| few.decide(decisions), &|_| many.decide(decisions)]);
    Ok([timings[0].ns, timings[1].ns, allocations[1]])
}

/// Of a decision, once every key is known.
fn allocations(workload: &Workload<SystemClock>) -> f64 {
    workload.decide(REQUESTS);
    let region = Region::new(ALLOCATOR);
    workload.decide(REQUESTS);
    region.change().allocations as f64 / REQUESTS as f64
}
