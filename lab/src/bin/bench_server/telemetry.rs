//! Measures the cost of telemetry. `/v1/check` of a server with the default telemetry is compared with `/v1/check` of a
//! server without telemetry.

use std::error::Error;

use lab::part::{Effort, ReportPart};
use lab::server::ServerProcess;
use lab::table::MarkdownTable;
use lab::targets::{BenchTarget, TargetBound};

use crate::closed_loop::ClosedLoop;
use crate::rounds::{TurnResult, run_interleaved};

const MIN_REQUESTS_PER_CPU_SECOND_RELATIVE_TO_NO_TELEMETRY: BenchTarget = BenchTarget {
    text: "server with telemetry, requests per CPU second relative to a server without",
    bound: TargetBound::AtLeast(0.96),
    limited_by: "by callgrind telemetry takes 2,240 of the 38,600 instructions of a denied request: 1,860 record the \
        decision (top keys, metrics and log), and the rest are clock reads and histograms of the request and of the call \
        of the store. Tried: one evaluation of each limit for metrics, top keys and log (3,460 to 3,020 instructions); \
        shared counters for rare keys, so that they seldom replace each other in the top keys (2,240 to 1,890); no \
        evaluation of limits that a denied request does not exceed (1,890 to 1,480).",
};

const SECTION_INTRODUCTION: &str = "
### Cost of telemetry

`/v1/check` with the default telemetry (metrics, top keys, and the sampled log of denials), compared with `--admin \
none --log-denials 0`. There are 16 persistent connections, three rules, in memory, and many tenants; the clients \
run on other cores.";

/// A policy with three rules that allow all requests.
const POLICY_ALLOWING_ALL_REQUESTS: &str = "
rules:
  - { name: per-tenant, per: [tenant], limits: [1000000/s, 100000000/h] }
  - { name: writes, when: { method: POST }, per: [tenant, route], limits: [1000000/s] }
  - { name: everybody, limits: [100000000/s] }
";

/// A policy with the same three rules as [`POLICY_ALLOWING_ALL_REQUESTS`], whose limits deny almost all requests.
const POLICY_WITH_SMALL_LIMITS: &str = "
rules:
  - { name: per-tenant, per: [tenant], limits: [3/h, 30/d] }
  - { name: writes, when: { method: POST }, per: [tenant, route], limits: [1000000/s] }
  - { name: everybody, limits: [100000000/s] }
";

/// The measured loads. Each load has one of the two policies, and a pipeline depth.
const CLOSED_LOOPS_TO_MEASURE: [ClosedLoop; 4] = [
    ClosedLoop {
        name: "all allowed",
        policy: POLICY_ALLOWING_ALL_REQUESTS,
        tenants: 10_000,
        depth: 1,
    },
    ClosedLoop {
        name: "all allowed, 16 concurrent",
        policy: POLICY_ALLOWING_ALL_REQUESTS,
        tenants: 10_000,
        depth: 16,
    },
    ClosedLoop {
        name: "nearly all denied",
        policy: POLICY_WITH_SMALL_LIMITS,
        tenants: 1_000,
        depth: 1,
    },
    ClosedLoop {
        name: "nearly all denied, 16 concurrent",
        policy: POLICY_WITH_SMALL_LIMITS,
        tenants: 1_000,
        depth: 16,
    },
];

/// The command line flags of the server with the default telemetry.
const DEFAULT_TELEMETRY_FLAGS: [&str; 2] = ["--admin", "127.0.0.1:0"];

/// The command line flags of the server without telemetry.
const NO_TELEMETRY_FLAGS: [&str; 4] = ["--admin", "none", "--log-denials", "0"];

pub fn run(effort: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    part.add_text(SECTION_INTRODUCTION);
    part.progress.add_steps(CLOSED_LOOPS_TO_MEASURE.len());
    let mut table = MarkdownTable::new([
        "`/v1/check`",
        "with telemetry, requests/s",
        "without, requests/s",
        "with telemetry, CPU µs",
        "without, CPU µs",
        "requests per CPU second, with relative to without",
        "denied",
    ]);
    for load in &CLOSED_LOOPS_TO_MEASURE {
        part.progress.begin_step(load.name);
        let [with_telemetry, without_telemetry] = measure_with_and_without_telemetry(effort, load)?;
        let ratio = without_telemetry.cpu_us / with_telemetry.cpu_us;
        table.add_row([
            load.name.to_owned(),
            format!("{:.0}", with_telemetry.per_second),
            format!("{:.0}", without_telemetry.per_second),
            format!("{:.2}", with_telemetry.cpu_us),
            format!("{:.2}", without_telemetry.cpu_us),
            format!("{ratio:.3}"),
            format!("{:.0} %", 100.0 * with_telemetry.denied),
        ]);
        part.record_target(&MIN_REQUESTS_PER_CPU_SECOND_RELATIVE_TO_NO_TELEMETRY, ratio);
    }
    part.add_table(&table);
    Ok(())
}

fn measure_with_and_without_telemetry(
    effort: Effort,
    load: &ClosedLoop,
) -> Result<[TurnResult; 2], Box<dyn Error>> {
    let servers = [
        start_server(load.policy, &DEFAULT_TELEMETRY_FLAGS)?,
        start_server(load.policy, &NO_TELEMETRY_FLAGS)?,
    ];
    let requests = effort.pick(6_000, 1_500);
    let rounds = run_interleaved(effort.rounds(), 2, |index| load.run(&servers[index], requests))?;
    Ok([TurnResult::median(&rounds[0]), TurnResult::median(&rounds[1])])
}

fn start_server(policy: &str, flags: &[&str]) -> Result<ServerProcess, Box<dyn Error>> {
    let flags = [&["--grpc", "none"], flags].concat();
    ServerProcess::start(policy.as_bytes(), " listening on http://", |file| {
        ServerProcess::slidegate_command(file, &flags)
    })
}
