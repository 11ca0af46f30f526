//! A decision under a thousand rules, beside one under three.

use std::error::Error;

use lab::measure::{Plan, interleaved};
use lab::part::{Effort, Part};
use lab::policies::{BucketLayout, REQUESTS, SHAPES, WITHOUT_A_BEGINNING, Workload};
use lab::table::Table;
use lab::targets::{Aim, Bound};
use slidegate::SystemClock;
use stats_alloc::Region;

use crate::ALLOCATOR;

const FEW: usize = 3;

const MANY: usize = 1_000;

const TIMES: Aim = Aim {
    text: "a decision under 1,000 rules, in times of one under 3",
    bound: Bound::AtMost(2.0),
    limited_by: "",
};

const ALLOCATIONS: Aim = Aim {
    text: "allocations of a decision by a policy",
    bound: Bound::AtMost(0.0),
    limited_by: "",
};

/// Measures every shape, and one that cannot be looked up.
pub fn run(effort: Effort, part: &mut Part) -> Result<(), Box<dyn Error>> {
    part.progress.expect(SHAPES.len() + 1);
    let mut table = Table::new(["", "3 rules", "1,000 rules", "times", "allocations"]);
    for shape in SHAPES.into_iter().chain([WITHOUT_A_BEGINNING]) {
        part.progress.step(&format!("deciding by {}", shape.name));
        let [few, many, allocations] = measure(effort, shape)?;
        table.row([
            shape.name.to_owned(),
            format!("{few:.0} ns"),
            format!("{many:.0} ns"),
            format!("{:.2}", many / few),
            format!("{allocations:.2}"),
        ]);
        if shape.name != WITHOUT_A_BEGINNING.name {
            part.hold(&TIMES, many / few);
            part.hold(&ALLOCATIONS, allocations);
        }
    }
    part.say("### To decide by it");
    part.table(&table);
    part.say(
        "The last row is no target. Nothing but such a glob tells its rules apart, so each is looked at: give them \
         another attribute, or a beginning.",
    );
    Ok(())
}

/// Nanoseconds under few rules and under many, and allocations under many.
fn measure(effort: Effort, shape: BucketLayout) -> Result<[f64; 3], Box<dyn Error>> {
    let (few, many) = (Workload::new(shape, FEW)?, Workload::new(shape, MANY)?);
    // Every key is known from here on.
    let allocations = [&few, &many].map(allocations);
    // To look at every rule takes long.
    let is_slow = shape.name == WITHOUT_A_BEGINNING.name;
    let all = effort.pick(600_000, 100_000);
    let decisions = if is_slow { all / 20 } else { all };
    let plan = Plan { rounds: effort.rounds(), threads: 1, decisions };
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
