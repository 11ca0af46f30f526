//! Counts the instructions of decisions and compares them with a file. Unlike times, instruction counts are equal on
//! all machines, so an increase is a change of the code.
//!
//! `cargo run --release -p lab --bin instructions [-- --update]` needs valgrind. The expected counts are in
//! `lab/instructions.txt`, which `--update` rewrites.

mod cases;
mod counts;

use std::env;
use std::error::Error;
use std::process::ExitCode;

use cases::{Case, DECISIONS};
use counts::{Drift, InstructionCounts};
use lab::callgrind;

/// The argument of the child process that valgrind runs.
const CHILD_ARGUMENT: &str = "run";

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [] => compare_with_file(&count_all()?),
        ["--update"] => count_all()?.save(),
        [CHILD_ARGUMENT, name] => run(name),
        _ => Err("usage: instructions [--update]".into()),
    }
}

fn run(name: &str) -> Result<ExitCode, Box<dyn Error>> {
    let case = cases::all_cases()?.into_iter().find(|case| case.name == name);
    case.ok_or("unknown case")?.run()?;
    Ok(ExitCode::SUCCESS)
}

fn count_all() -> Result<InstructionCounts, Box<dyn Error>> {
    let mut counts = InstructionCounts::default();
    for Case { name, .. } in cases::all_cases()? {
        let total =
            callgrind::measure_instructions("run_counted_decisions", &[CHILD_ARGUMENT, &name])?;
        let count = total / DECISIONS as u64;
        println!("{name} {count}");
        counts.push(name, count);
    }
    Ok(counts)
}

fn compare_with_file(counts: &InstructionCounts) -> Result<ExitCode, Box<dyn Error>> {
    let mut code = ExitCode::SUCCESS;
    for drift in counts.drifts_from(&InstructionCounts::load()?) {
        eprintln!("{drift}");
        if matches!(drift, Drift::Grown { .. }) {
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}
