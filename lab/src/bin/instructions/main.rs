//! Counts the instructions of a decision, and says where they grew: unlike times, they are the same on
//! every machine, so a growth is a change of the code.
//!
//! `cargo run --release -p lab --bin instructions [-- --update]` needs valgrind. The counts to compare
//! with are in `lab/instructions.txt`, which `--update` writes anew.

mod cases;
mod counts;

use std::env;
use std::error::Error;
use std::process::ExitCode;

use cases::{Case, DECISIONS};
use counts::{Counts, Drift};
use lab::callgrind;

/// The argument that makes this program the child which valgrind watches.
const CHILD: &str = "run";

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [] => compare(&count_all()?),
        ["--update"] => count_all()?.save(),
        [CHILD, name] => run(name),
        _ => Err("usage: instructions [--update]".into()),
    }
}

fn run(name: &str) -> Result<ExitCode, Box<dyn Error>> {
    let case = cases::all()?.into_iter().find(|case| case.name == name);
    case.ok_or("no such case")?.run()?;
    Ok(ExitCode::SUCCESS)
}

fn count_all() -> Result<Counts, Box<dyn Error>> {
    let mut counts = Counts::default();
    for Case { name, .. } in cases::all()? {
        let total = callgrind::instructions("count_instructions", &[CHILD, &name])?;
        let count = total / DECISIONS as u64;
        println!("{name} {count}");
        counts.push(name, count);
    }
    Ok(counts)
}

fn compare(counts: &Counts) -> Result<ExitCode, Box<dyn Error>> {
    let mut code = ExitCode::SUCCESS;
    for drift in counts.drifts_from(&Counts::load()?) {
        eprintln!("{drift}");
        if matches!(drift, Drift::Grown { .. }) {
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}
