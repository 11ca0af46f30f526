//! A decision as a function of how many rules are for the request.

use std::error::Error;

use lab::chart::{Line, Lines};
use lab::measure::{Plan, interleaved};
use lab::part::{Effort, Part};
use lab::table::Table;
use slidegate::{Descriptor, Gate, MemoryStore, Policy, Request};

const COUNTS: [usize; 5] = [1, 2, 4, 8, 16];

/// Tenants that ask.
const TENANTS: usize = 3_000;

/// Measures policies of which every rule is for every request.
pub fn run(effort: Effort, part: &mut Part) -> Result<(), Box<dyn Error>> {
    part.progress.expect(1);
    part.progress.step("deciding by many rules at once");
    let gates = COUNTS.map(gate).into_iter().collect::<Result<Vec<_>, _>>()?;
    let tenants: Vec<String> = (0..TENANTS).map(|nth| format!("tenant-{nth:06}")).collect();
    let decisions = effort.pick(300_000, 60_000);
    let turns = gates.iter().map(|gate| {
        |seed| {
            let mut rng = fastrand::Rng::with_seed(seed);
            let denied = (0..decisions).filter(|_| !takes(gate, &tenants[rng.usize(0..TENANTS)]));
            denied.count()
        }
    });
    let turns: Vec<_> = turns.collect();
    let turns: Vec<&lab::measure::Turn<'_>> = turns.iter().map(|turn| turn as _).collect();
    let timings = interleaved(Plan { rounds: effort.rounds(), threads: 1, decisions }, &turns);
    let mut table = Table::new(["rules for the request", "ns", "per rule"]);
    let mut points = Vec::new();
    for (rules, timing) in COUNTS.iter().zip(&timings) {
        let per_rule = timing.ns / *rules as f64;
        table.row([rules.to_string(), format!("{:.0}", timing.ns), format!("{per_rule:.0}")]);
        points.push((*rules as f64, timing.ns));
    }
    part.say(
        "### By how many rules are for the request\n\nEach has one limit and a count of its own for the tenant; all are \
         charged, or none. 3,000 tenants, all allowed.",
    );
    part.table(&table);
    let lines = [Line { name: "slidegate".to_owned(), points }];
    let title = "A decision by the number of rules that are for the request";
    let svg = Lines { title, x: "rules", y: "ns", is_log_x: false, lines: &lines }.draw()?;
    part.chart("policy-rules", "a decision's time by the number of rules for the request", svg);
    Ok(())
}

fn gate(rules: usize) -> Result<Gate<MemoryStore>, Box<dyn Error>> {
    let rules = (0..rules)
        .map(|nth| format!("  - {{ name: r{nth}, per: [tenant], limits: [500000000/w] }}\n"));
    let policy = format!("rules:\n{}", rules.collect::<String>());
    Ok(Gate::new(Policy::from_yaml(&policy)?, MemoryStore::new()))
}

fn takes(gate: &Gate<MemoryStore>, tenant: &str) -> bool {
    let request = Request::new("default", Descriptor::new([("tenant", tenant), ("method", "GET")]));
    gate.check_now(&request).decision().is_allowed()
}
