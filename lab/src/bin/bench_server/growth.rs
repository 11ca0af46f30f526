//! Measures the CPU time of a request for different numbers of rules, limits, identities, connections and bytes.

use std::error::Error;

use lab::program::BenchRun;
use lab::results::median;
use lab::server::ServerProcess;

use crate::load::{CONNECTIONS, ClosedLoopLoad, measure_tenants, take_turns};
use crate::requests::{BenchRequest, Protocol};
use crate::servers::{ONE_LIMIT_POLICY, start_slidegate};

/// The requests of a measurement.
enum GrowthLoad {
    /// The same request on this number of connections.
    SameRequest(BenchRequest, usize),
    /// Requests of this number of tenants.
    Identities(usize),
}

/// Measures rows in which one number varies. Unless it varies, there is one rule with one limit, one identity, and 50
/// connections with one request at a time.
pub fn run(run: &mut BenchRun) -> Result<(), Box<dyn Error>> {
    let on_50 = |request| GrowthLoad::SameRequest(request, CONNECTIONS);
    let check = BenchRequest::check;
    let mut cases = Vec::new();
    for rules in [1, 10, 1_000] {
        cases.push((
            "rules, of which one matches",
            rules,
            policy_with_rules(rules),
            on_50(check()),
        ));
    }
    for limits in [1, 3, 10] {
        cases.push(("limits of the rule", limits, policy_with_limits(limits), on_50(check())));
    }
    let one_limit = || ONE_LIMIT_POLICY.to_owned();
    for count in [1, 1_000, 100_000] {
        cases.push(("identities", count, one_limit(), GrowthLoad::Identities(count)));
    }
    for connections in [1, 50, 1_000] {
        let load = GrowthLoad::SameRequest(check(), connections);
        cases.push(("connections", connections, one_limit(), load));
    }
    for bytes in [100, 1_000, 16_000] {
        let load = on_50(BenchRequest::check_with_body_bytes(bytes));
        cases.push(("bytes in the body", bytes, one_limit(), load));
    }
    let servers: Vec<ServerProcess> = cases
        .iter()
        .map(|(_, _, policy, _)| start_slidegate(Protocol::Http, policy, &[]))
        .collect::<Result<_, _>>()?;
    let amount = run.effort.full_or_quick((40_000, 2), (10_000, 1));
    let results = take_turns(run.effort.full_or_quick(7, 3), cases.len(), |index| {
        measure_growth_case(&servers[index], &cases[index].3, amount)
    })?;
    for ((dimension, value, ..), cpu_us) in cases.iter().zip(results) {
        let row = format!("{dimension}: {value}");
        run.record(["server-growth", &row, "CPU, µs per request"], median(cpu_us));
    }
    Ok(())
}

fn measure_growth_case(
    server: &ServerProcess,
    load: &GrowthLoad,
    (requests, seconds): (usize, u32),
) -> Result<f64, Box<dyn Error>> {
    match load {
        GrowthLoad::SameRequest(request, connections) => {
            let load =
                ClosedLoopLoad { connections: *connections, ..ClosedLoopLoad::new(1, requests) };
            Ok(load.run(server, request)?.cpu_us)
        }
        GrowthLoad::Identities(count) => measure_tenants(server, *count, seconds),
    }
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
