//! Measures the decision time with different numbers of rules that match a request.

use std::error::Error;

use lab::chart::{LineChart, Series};
use lab::measure::{MeasurePlan, run_interleaved};
use lab::part::{Effort, ReportPart};
use lab::table::MarkdownTable;
use slidegate::{Descriptor, Gate, MemoryStore, Policy, Request};

const MATCHING_RULE_COUNTS: [usize; 5] = [1, 2, 4, 8, 16];

/// The number of tenants, each of which has its own counter in every rule.
const TENANT_COUNT: usize = 3_000;

/// Measures policies in which every rule matches every request, and adds a table and a chart to the report.
pub fn run(effort: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    part.progress.add_steps(1);
    part.progress.begin_step("decisions with many matching rules");
    let gates = MATCHING_RULE_COUNTS
        .map(new_gate_with_matching_rules)
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    let tenants: Vec<String> = (0..TENANT_COUNT).map(|nth| format!("tenant-{nth:06}")).collect();
    let decisions = effort.pick(300_000, 60_000);
    let turns = gates.iter().map(|gate| {
        |seed| {
            let mut rng = fastrand::Rng::with_seed(seed);
            let denied = (0..decisions)
                .filter(|_| !is_tenant_allowed(gate, &tenants[rng.usize(0..TENANT_COUNT)]));
            denied.count()
        }
    });
    let turns: Vec<_> = turns.collect();
    let turns: Vec<&lab::measure::TurnFn<'_>> = turns.iter().map(|turn| turn as _).collect();
    let timings =
        run_interleaved(MeasurePlan { rounds: effort.rounds(), threads: 1, decisions }, &turns);
    let mut table = MarkdownTable::new(["matching rules", "ns", "per rule"]);
    let mut points = Vec::new();
    for (rules, timing) in MATCHING_RULE_COUNTS.iter().zip(&timings) {
        let per_rule = timing.ns / *rules as f64;
        table.add_row([rules.to_string(), format!("{:.0}", timing.ns), format!("{per_rule:.0}")]);
        points.push((*rules as f64, timing.ns));
    }
    part.add_text(
        "### Decision time by the number of matching rules\n\nEach rule has one limit and its own counter per \
         tenant; all are charged, or none. 3,000 tenants, all allowed.",
    );
    part.add_table(&table);
    let lines = [Series { name: "slidegate".to_owned(), points }];
    let title = "Decision time by the number of matching rules";
    let svg = LineChart { title, x_label: "rules", y_label: "ns", is_log_x: false, lines: &lines }
        .draw()?;
    part.add_chart("policy-rules", "time of a decision by the number of matching rules", svg);
    Ok(())
}

fn new_gate_with_matching_rules(rules: usize) -> Result<Gate<MemoryStore>, Box<dyn Error>> {
    let rules = (0..rules)
        .map(|nth| format!("  - {{ name: r{nth}, per: [tenant], limits: [500000000/w] }}\n"));
    let policy = format!("rules:\n{}", rules.collect::<String>());
    Ok(Gate::new(Policy::from_yaml(&policy)?, MemoryStore::new()))
}

fn is_tenant_allowed(gate: &Gate<MemoryStore>, tenant: &str) -> bool {
    let request = Request::new("default", Descriptor::new([("tenant", tenant), ("method", "GET")]));
    gate.check(&request).is_allowed()
}
