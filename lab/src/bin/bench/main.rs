//! Runs all benchmark programs and writes one report: `make bench`.
//!
//! `bench [--quick] [PART...]`. A full report with all parts is written to docs/BENCHMARKS.md. A quick report, or a
//! report with some of the parts, is written to target/bench/BENCHMARKS.md. Each part is measured by a separate program
//! in the same folder, which can also be run alone.

mod machine;
mod report;

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use lab::part::{Effort, REPORT_FLAG, ReportPart};
use quanta::Instant;

use report::{BenchReport, MeasuredPart};

/// A benchmark program, which measures one part of the report.
#[derive(Debug)]
pub struct BenchProgram {
    /// The name of the program without the prefix `bench_`. The Makefile target has the same name with the prefix
    /// `bench-`.
    pub name: &'static str,
    /// The heading of the part of the report that the program measures.
    pub title: &'static str,
}

/// All benchmark programs, in the order of the report.
const BENCH_PROGRAMS: [BenchProgram; 7] = [
    BenchProgram { name: "accuracy", title: "Accuracy" },
    BenchProgram { name: "memory", title: "Memory store" },
    BenchProgram { name: "policy", title: "Policies with 1,000 rules" },
    BenchProgram { name: "tower", title: "The tower layer" },
    BenchProgram { name: "server", title: "The server" },
    BenchProgram { name: "redis", title: "Redis" },
    BenchProgram { name: "cluster", title: "Cluster" },
];

/// The path of a full report with all parts.
const REPORT_PATH: &str = "docs/BENCHMARKS.md";

/// The path of a quick report, and of a report with only some of the parts.
const PARTIAL_REPORT_PATH: &str = "target/bench/BENCHMARKS.md";

fn main() -> Result<(), Box<dyn Error>> {
    let (mut effort, mut selected) = (Effort::Full, Vec::new());
    for arg in env::args().skip(1) {
        match BENCH_PROGRAMS.iter().find(|program| program.name == arg) {
            Some(program) => selected.push(program),
            None if arg == "--quick" => effort = Effort::Quick,
            None => return Err(format_usage_message().into()),
        }
    }
    let is_all = selected.is_empty();
    if is_all {
        selected.extend(&BENCH_PROGRAMS);
    }
    let start = Instant::now();
    let mut measured = Vec::with_capacity(selected.len());
    for (nth, program) in selected.iter().enumerate() {
        eprintln!("[{}/{}] {}", nth + 1, selected.len(), program.name);
        measured.push(run_bench_program(program, effort)?);
    }
    let path =
        Path::new(if is_all && effort == Effort::Full { REPORT_PATH } else { PARTIAL_REPORT_PATH });
    let report = BenchReport { effort, is_all, measured, elapsed: start.elapsed() };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, report.to_markdown()?)?;
    for measured in &report.measured {
        measured.part.write_charts(path)?;
    }
    println!("{}\n{}", report.targets(), path.display());
    Ok(())
}

fn format_usage_message() -> String {
    let names: Vec<&str> = BENCH_PROGRAMS.iter().map(|program| program.name).collect();
    format!("usage: bench [--quick] [PART...]; parts are {}", names.join(", "))
}

/// Runs a benchmark program and returns its results. The program shows its progress on standard error.
fn run_bench_program(
    program: &'static BenchProgram,
    effort: Effort,
) -> Result<MeasuredPart, Box<dyn Error>> {
    let path = env::current_exe()?.with_file_name(format!("bench_{}", program.name));
    let start = Instant::now();
    let output = Command::new(&path)
        .arg(REPORT_FLAG)
        .args(effort.pick(None, Some("--quick")))
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{}: {error}; build it first", path.display()))?;
    if !output.status.success() {
        return Err(format!("bench_{}: {}", program.name, output.status).into());
    }
    let part: ReportPart = serde_json::from_slice(&output.stdout)?;
    Ok(MeasuredPart { program, part, elapsed: start.elapsed() })
}
