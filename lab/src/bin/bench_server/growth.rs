//! Measures the CPU time of a request for different numbers of rules, limits, identities, connections and bytes.

use std::error::Error;

use lab::part::{Effort, ReportPart};
use lab::server::ServerProcess;
use lab::table::MarkdownTable;

use crate::closed_loop::ClosedLoop;
use crate::request::{BenchRequest, Protocol};
use crate::rounds::{TurnResult, median, run_interleaved};
use crate::{contenders, h2load};

const SECTION_INTRODUCTION: &str = "
### Growth of the cost

The CPU time of slidegate for a `/v1/check` request, in memory, all allowed. In each group of rows one number varies. \
Unless it varies, there is one rule with one limit, one identity, a body of 77 bytes, and 50 connections with one \
request at a time each. The requests with several identities are sent on 16 connections, 16 at a time.";

/// The requests of one measurement.
enum GrowthLoad {
    /// The same request on this number of connections, each with one request at a time.
    SameRequest { request: BenchRequest, connections: usize },
    /// Requests with this number of identities.
    Identities(usize),
}

/// One measurement: the number that varies, and its value.
struct GrowthCase {
    dimension: &'static str,
    value: usize,
    policy: String,
    load: GrowthLoad,
}

pub fn run(effort: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    part.add_text(SECTION_INTRODUCTION);
    let cases = growth_cases();
    part.progress.add_steps(1);
    part.progress.begin_step("growth of the cost");
    let servers = cases
        .iter()
        .map(|case| contenders::slidegate_with(Protocol::Http, &case.policy, &[]))
        .collect::<Result<Vec<_>, _>>()?;
    let rounds = run_interleaved(effort.rounds(), cases.len(), |index| {
        cases[index].measure(&servers[index], effort)
    })?;
    let mut table = MarkdownTable::new(["number of", "value", "CPU µs per request"]);
    for (case, rounds) in cases.iter().zip(&rounds) {
        table.add_row([
            case.dimension.to_owned(),
            case.value.to_string(),
            format!("{:.1}", median(rounds, |round| round.cpu_us)),
        ]);
    }
    part.add_table(&table);
    Ok(())
}

fn growth_cases() -> Vec<GrowthCase> {
    let on_50 = |request| GrowthLoad::SameRequest { request, connections: h2load::CONNECTIONS };
    let mut cases = Vec::new();
    for rules in [1, 10, 1_000] {
        cases.push(GrowthCase {
            dimension: "rules, of which one matches",
            value: rules,
            policy: policy_with_rules(rules),
            load: on_50(BenchRequest::check()),
        });
    }
    for limits in [1, 3, 10] {
        cases.push(GrowthCase {
            dimension: "limits of the rule",
            value: limits,
            policy: policy_with_limits(limits),
            load: on_50(BenchRequest::check()),
        });
    }
    let one_rule = |dimension, value, load| GrowthCase {
        dimension,
        value,
        policy: contenders::ONE_LIMIT_POLICY.to_owned(),
        load,
    };
    cases.extend(
        [1, 1_000, 100_000]
            .map(|count| one_rule("identities", count, GrowthLoad::Identities(count))),
    );
    cases.extend([1, 50, 1_000].map(|connections| {
        let load = GrowthLoad::SameRequest { request: BenchRequest::check(), connections };
        one_rule("connections", connections, load)
    }));
    cases.extend([100, 1_000, 16_000].map(|bytes| {
        let load = on_50(BenchRequest::check_with_body_bytes(bytes));
        one_rule("bytes in the body", bytes, load)
    }));
    cases
}

/// Returns a policy with this number of rules. The first one applies to the benchmark's requests.
fn policy_with_rules(rules: usize) -> String {
    let rule = |nth: usize| {
        let route = if nth == 0 { "/v1/orders".to_owned() } else { format!("/v1/r{nth}") };
        format!(
            "  - {{ name: r{nth}, when: {{ route: {route} }}, per: [tenant], limits: [100000000/s] }}\n"
        )
    };
    format!("rules:\n{}", (0..rules).map(rule).collect::<String>())
}

/// Returns a policy with one rule that has this number of limits.
fn policy_with_limits(limits: usize) -> String {
    let limits: Vec<String> = (1..=limits).map(|seconds| format!("100000000/{seconds}s")).collect();
    format!("rules: [{{ name: tenant, per: [tenant], limits: [{}] }}]", limits.join(", "))
}

impl GrowthCase {
    fn measure(
        &self,
        server: &ServerProcess,
        effort: Effort,
    ) -> Result<TurnResult, Box<dyn Error>> {
        match &self.load {
            GrowthLoad::SameRequest { request, connections } => {
                let requests = effort.pick(40_000, 10_000);
                h2load::run_on_connections(*connections, server, request, 1, requests)
            }
            GrowthLoad::Identities(tenants) => {
                let load = ClosedLoop {
                    name: self.dimension,
                    policy: contenders::ONE_LIMIT_POLICY,
                    tenants: *tenants,
                    depth: 16,
                };
                load.run(server, effort.pick(12_800, 6_400))
            }
        }
    }
}
