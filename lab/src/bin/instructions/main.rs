//! Counts the instructions of decisions and compares the counts with a file. Unlike times, instruction counts are equal
//! on all machines, so a higher count is caused by a change of the code or of the compiler.
//!
//! `cargo run --release -p lab --bin instructions [-- --update]` requires valgrind. The expected counts are in
//! `lab/instructions.txt`. The flag `--update` writes new counts to this file.

mod cases;
mod counts;

use std::env;
use std::error::Error;
use std::process::ExitCode;

use cases::{Case, DECISIONS};
use counts::{Drift, InstructionCounts};
use lab::callgrind;

/// The first argument of the child process that runs one case under valgrind.
const RUN_CASE_ARGUMENT: &str = "run";

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [] => compare_with_counts_file(&count_all_cases()?),
        ["--update"] => count_all_cases()?.save(),
        [RUN_CASE_ARGUMENT, name] => run_named_case(name),
        _ => Err("usage: instructions [--update]".into()),
    }
}

fn run_named_case(name: &str) -> Result<ExitCode, Box<dyn Error>> {
    let case = cases::all_cases()?.into_iter().find(|case| case.name == name);
    case.ok_or("unknown case")?.run()?;
    Ok(ExitCode::SUCCESS)
}

fn count_all_cases() -> Result<InstructionCounts, Box<dyn Error>> {
    let mut counts = InstructionCounts::default();
    for Case { name, .. } in cases::all_cases()? {
        let total =
            callgrind::measure_instructions("run_counted_decisions", &[RUN_CASE_ARGUMENT, &name])?;
        let count = total / DECISIONS as u64;
        println!("{name} {count}");
        counts.push(name, count);
    }
    Ok(counts)
}

fn compare_with_counts_file(counts: &InstructionCounts) -> Result<ExitCode, Box<dyn Error>> {
    let mut code = ExitCode::SUCCESS;
    for drift in counts.drifts_from(&InstructionCounts::load()?) {
        eprintln!("{drift}");
        if matches!(drift, Drift::Grown { .. }) {
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}
