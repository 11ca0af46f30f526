//! Counts the instructions of decisions and compares the counts with a file. Unlike times, instruction counts are equal
//! on all machines, so a higher count is caused by a change of the code or of the compiler.
//!
//! `cargo run --profile dist -p lab --bin instructions [-- --update]` requires valgrind. The expected counts are in
//! `lab/instructions.txt`. The flag `--update` writes new counts to this file.

mod cases;
mod counts;

use std::env;
use std::error::Error;
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::process::ExitCode;
use std::thread;

use cases::DECISIONS;
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

/// Counts the instructions of all cases, on all cores: a count does not depend on what else runs.
fn count_all_cases() -> Result<InstructionCounts, Box<dyn Error>> {
    let names: Vec<String> = cases::all_cases()?.into_iter().map(|case| case.name).collect();
    let workers = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let batch_len = names.len().div_ceil(workers).max(1);
    let results: Vec<_> = thread::scope(|scope| {
        let count_batch =
            |names: &[String]| names.iter().map(|name| count_case(name)).collect::<Vec<_>>();
        let batches: Vec<_> =
            names.chunks(batch_len).map(|batch| scope.spawn(move || count_batch(batch))).collect();
        let join = |batch: thread::ScopedJoinHandle<'_, Vec<_>>| {
            batch.join().unwrap_or_else(|panic| resume_unwind(panic))
        };
        batches.into_iter().flat_map(join).collect()
    });
    let mut counts = InstructionCounts::default();
    for (name, count) in names.into_iter().zip(results) {
        let count = count?;
        println!("{name} {count}");
        counts.push(name, count);
    }
    Ok(counts)
}

/// Returns the number of instructions of one decision.
fn count_case(name: &str) -> Result<u64, String> {
    let total =
        callgrind::measure_instructions("run_counted_decisions", &[RUN_CASE_ARGUMENT, name])
            .map_err(|error| error.to_string())?;
    Ok(total / DECISIONS as u64)
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
