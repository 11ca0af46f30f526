//! Runs every part of the lab and writes one report: `make bench`.
//!
//! `bench [--quick] [PART...]`. The report of all parts in full is docs/BENCHMARKS.md; what is quick or has only some
//! parts goes to target/bench/BENCHMARKS.md. Each part is a program of its own beside this one, and runs alone as well.

mod machine;
mod report;

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use lab::part::{Effort, FOR_THE_REPORT, Part};
use quanta::Instant;

use report::{Measured, Report};

/// A program that measures.
pub struct Program {
    /// Its name, behind `bench_`, and of its target in the Makefile, behind `bench-`.
    pub name: &'static str,
    /// Above what it says.
    pub title: &'static str,
}

/// In the order of the report.
const PROGRAMS: [Program; 7] = [
    Program { name: "accuracy", title: "Accuracy" },
    Program { name: "memory", title: "In the process" },
    Program { name: "policy", title: "A policy of 1,000 rules" },
    Program { name: "tower", title: "The tower layer" },
    Program { name: "server", title: "The server" },
    Program { name: "redis", title: "Redis" },
    Program { name: "cluster", title: "A cluster of nodes" },
];

/// Where the report of all parts is.
const REPORT: &str = "docs/BENCHMARKS.md";

/// Where any other is.
const OTHER: &str = "target/bench/BENCHMARKS.md";

fn main() -> Result<(), Box<dyn Error>> {
    let (mut effort, mut chosen) = (Effort::Full, Vec::new());
    for arg in env::args().skip(1) {
        match PROGRAMS.iter().find(|program| program.name == arg) {
            Some(program) => chosen.push(program),
            None if arg == "--quick" => effort = Effort::Quick,
            None => return Err(usage().into()),
        }
    }
    let is_all = chosen.is_empty();
    if is_all {
        chosen.extend(&PROGRAMS);
    }
    let begun = Instant::now();
    let mut measured = Vec::with_capacity(chosen.len());
    for (nth, program) in chosen.iter().enumerate() {
        eprintln!("[{}/{}] {}", nth + 1, chosen.len(), program.name);
        measured.push(measure(program, effort)?);
    }
    let path = Path::new(if is_all && effort == Effort::Full { REPORT } else { OTHER });
    let report = Report { effort, is_all, measured, took: begun.elapsed() };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, report.text()?)?;
    for measured in &report.measured {
        measured.part.draw_beside(path)?;
    }
    println!("{}\n{}", report.targets(), path.display());
    Ok(())
}

fn usage() -> String {
    let names: Vec<&str> = PROGRAMS.iter().map(|program| program.name).collect();
    format!("usage: bench [--quick] [PART...]; parts are {}", names.join(", "))
}

/// Runs a program, which tells on its standard error where it is.
fn measure(program: &'static Program, effort: Effort) -> Result<Measured, Box<dyn Error>> {
    let path = env::current_exe()?.with_file_name(format!("bench_{}", program.name));
    let begun = Instant::now();
    let output = Command::new(&path)
        .arg(FOR_THE_REPORT)
        .args(effort.pick(None, Some("--quick")))
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{}: {error}: is it built?", path.display()))?;
    if !output.status.success() {
        return Err(format!("bench_{}: {}", program.name, output.status).into());
    }
    let part: Part = serde_json::from_slice(&output.stdout)?;
    Ok(Measured { program, part, took: begun.elapsed() })
}
