//! Counts the instructions that a rate limit adds to a request of an axum service, compared with `tower_governor`.
//!
//! `cargo run --profile dist -p lab --features tower --bin bench_tower` needs valgrind, and prints a Markdown table. To
//! profile a case, run
//! `valgrind --tool=callgrind --toggle-collect='*::run_counted_requests*' target/dist/bench_tower run CASE 4000`,
//! and then `callgrind_annotate --inclusive=yes`.

mod cases;

use std::env;
use std::error::Error;

use cases::{CASES, Case};
use lab::callgrind;
use lab::part::{self, Effort, ReportPart};
use lab::table::MarkdownTable;
use lab::targets::{BenchTarget, TargetBound};

/// The first argument of the child process that runs one case under valgrind.
const RUN_CASE_ARGUMENT: &str = "run";

/// The numbers of requests in two runs of a case. The instruction counts of the runs are subtracted. The difference
/// contains only the work for the additional requests, without the start of the program.
const REQUESTS_IN_SHORT_AND_LONG_RUN: [&str; 2] = ["4000", "8000"];

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [RUN_CASE_ARGUMENT, name, requests] => {
            let case = CASES.iter().find(|case| case.name == name).ok_or("unknown case")?;
            Ok(case.run(requests.parse()?)?)
        }
        _ => part::main(&[("layers", measure_tower_layers)]),
    }
}

const MAX_LIMITER_INSTRUCTIONS_RELATIVE_TO_TOWER_GOVERNOR: BenchTarget = BenchTarget {
    text: "instructions that a limiter per peer address adds to axum, relative to tower_governor",
    bound: TargetBound::AtMost(0.8),
    limited_by: REASON_FOR_LIMITER_INSTRUCTIONS,
};

const MAX_GATE_INSTRUCTIONS_RELATIVE_TO_TOWER_GOVERNOR: BenchTarget = BenchTarget {
    text: "instructions that a gate with one rule adds to axum, relative to tower_governor",
    bound: TargetBound::AtMost(1.1),
    limited_by: REASON_FOR_GATE_INSTRUCTIONS,
};

const REASON_FOR_LIMITER_INSTRUCTIONS: &str = "axum takes about 1,020 instructions for any layer, because it boxes the \
    service and its future, and clones the service for each request. The rest of about 3,690: the decision 430, the \
    address as text 240, the values of the two headers 680 (one is formatted, validated and allocated for each \
    response), their insertion into the header map 600, and the service with its future 620. Tried: a cheaper \
    comparison of limits, and no search for permits of a limiter (157 fewer, kept); values formatted in line, digits \
    from a table, and extraction in line (152 fewer, kept); as a change of the design, a future that is a single enum \
    and functions of their own for denials, each of which copies the future of 464 bytes once more (up to 123 more, \
    not kept). The standard headers contain more than the single numbers of tower_governor.";

const REASON_FOR_GATE_INSTRUCTIONS: &str = "the same; in addition, about 1,030 instructions collect attributes, match \
    rules and build a key from values.";

fn measure_tower_layers(_: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    part.progress.add_steps(1);
    part.progress.begin_step("counting instructions of a layer");
    let instructions: Vec<f64> =
        CASES.iter().map(measure_instructions_per_request).collect::<Result<_, _>>()?;
    let [bare, tower_governor, ..] = instructions[..] else {
        return Err("at least two cases are required".into());
    };
    let mut table =
        MarkdownTable::new(["", "instructions per request", "added", "relative to tower_governor"]);
    for (case, instructions) in CASES.iter().zip(instructions) {
        let added = instructions - bare;
        let ratio = added / (tower_governor - bare);
        let cells = [format!("{instructions:.0}"), format!("{added:.0}"), format!("{ratio:.2}")];
        table.add_row([case.title, &cells[0], &cells[1], &cells[2]]);
        if let Some(target) = case.target {
            part.record_target(target, ratio);
        }
    }
    part.add_text(
        "Instructions that a rate limit adds to a minimal axum service, counted by callgrind, so the results do not \
         depend on the load of the machine. A router is called with `oneshot`, without sockets, from 512 addresses \
         in turn. Each address may send a million requests an hour, so all requests are allowed, and each response \
         has the headers of the limit. The figures are the difference of two runs, which excludes the cost of the \
         start. tower_governor sends `x-ratelimit-limit` and `x-ratelimit-remaining`; slidegate sends \
         `RateLimit-Policy` and `RateLimit`.",
    );
    part.add_table(&table);
    Ok(())
}

/// Runs a case twice under valgrind. Returns the number of instructions per request, without the start of the program.
fn measure_instructions_per_request(case: &Case) -> Result<f64, Box<dyn Error>> {
    let run = |requests| {
        callgrind::measure_instructions(
            "run_counted_requests",
            &[RUN_CASE_ARGUMENT, case.name, requests],
        )
    };
    let [short_run, long_run] = REQUESTS_IN_SHORT_AND_LONG_RUN;
    let requests = long_run.parse::<f64>()? - short_run.parse::<f64>()?;
    Ok((run(long_run)? as f64 - run(short_run)? as f64) / requests)
}
