//! Runs the benchmarks of a part, and reads the results of criterion and gungraun.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::program::Effort;
use lab::results::{Results, result_folder};
use serde_json::Value;

/// A part of the report, and a target `bench-NAME` of the Makefile.
pub struct ReportPart {
    /// The name of the part. The names of its tables begin with it.
    pub name: &'static str,
    /// The benchmarks that measure the part.
    pub sources: &'static [ResultSource],
}

/// A benchmark that measures a part, or some of its tables. Its Cargo feature has the name of the part.
pub enum ResultSource {
    /// A benchmark of criterion, in `lab/benches`. A group is a table, a function is a column, and a parameter is a row.
    Criterion(&'static str),
    /// A benchmark of gungraun, in `lab/benches`, and the number of calls whose instructions are counted. The name of the
    /// benchmark is the table, and each case is a row.
    Gungraun(&'static str, f64),
    /// A program in `lab/src/bin`, which writes its results itself.
    Program(&'static str),
}

/// All parts, in the order of the report.
pub const PARTS: &[ReportPart] = &[
    ReportPart { name: "accuracy", sources: &[ResultSource::Program("bench_accuracy")] },
    ReportPart {
        name: "memory",
        sources: &[ResultSource::Criterion("memory"), ResultSource::Program("bench_memory")],
    },
    ReportPart { name: "policy", sources: &[ResultSource::Criterion("policy")] },
    ReportPart { name: "tower", sources: &[ResultSource::Gungraun("tower", 4_000.0)] },
    ReportPart { name: "server", sources: &[ResultSource::Program("bench_server")] },
    ReportPart { name: "redis", sources: &[ResultSource::Program("bench_redis")] },
    ReportPart {
        name: "cluster",
        sources: &[ResultSource::Criterion("cluster"), ResultSource::Program("bench_cluster")],
    },
];

impl ResultSource {
    /// Returns the name of the benchmark or program, which is also the name of its result file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Criterion(name) | Self::Gungraun(name, _) | Self::Program(name) => name,
        }
    }
}

/// Runs the benchmarks of a part with Cargo, and stores their results.
pub fn measure(
    part: &ReportPart,
    effort: Effort,
    sections: &[String],
) -> Result<(), Box<dyn Error>> {
    for source in part.sources {
        // Only programs have sections, so other benchmarks do not run if sections are selected.
        if !sections.is_empty() && !matches!(source, ResultSource::Program(_)) {
            continue;
        }
        let folder = std::path::absolute(result_folder(effort == Effort::Quick))?;
        // Removes the results of earlier runs, so that only the results of this run are read.
        let measured = folder.join("measured").join(source.name());
        let _ = fs::remove_dir_all(&measured);
        let mut cargo = Command::new("cargo");
        cargo.env("CRITERION_HOME", &measured).env("GUNGRAUN_HOME", &measured);
        cargo.env("GUNGRAUN_SAVE_SUMMARY", "json");
        let (command, kind) = match source {
            ResultSource::Program(_) => ("run", "--bin"),
            ResultSource::Criterion(_) | ResultSource::Gungraun(..) => ("bench", "--bench"),
        };
        cargo.args([command, "--profile", "dist", "-p", "lab", "--features", part.name]);
        cargo.args([kind, source.name(), "--"]);
        match source {
            ResultSource::Program(_) => {
                cargo.args(effort.full_or_quick(None, Some("--quick"))).args(sections)
            }
            ResultSource::Criterion(_) => {
                cargo.args(effort.full_or_quick(None, Some("--quick"))).arg("--noplot")
            }
            ResultSource::Gungraun(..) => &mut cargo,
        };
        let status = cargo.status()?;
        if !status.success() {
            return Err(format!("{}: {status}", source.name()).into());
        }
        let results = match source {
            ResultSource::Program(_) => continue,
            ResultSource::Criterion(_) => read_criterion(&measured)?,
            ResultSource::Gungraun(name, calls) => read_gungraun(&measured, name, *calls)?,
        };
        results.write(&folder.join(format!("{}.json", source.name())))?;
    }
    Ok(())
}

/// Reads the median times of all benchmarks of criterion, in nanoseconds per element.
fn read_criterion(folder: &Path) -> Result<Results, Box<dyn Error>> {
    let mut results = Results::default();
    for path in find_files(folder, "new/benchmark.json")? {
        let benchmark = read_json(&path)?;
        let estimates = read_json(&path.with_file_name("estimates.json"))?;
        let ns = estimates["median"]["point_estimate"].as_f64().ok_or("no median")?;
        let elements = benchmark["throughput"]["Elements"].as_f64().unwrap_or(1.0);
        let [table, column, row] = ["group_id", "function_id", "value_str"]
            .map(|name| benchmark[name].as_str().unwrap_or(""));
        results.add([table, row, column], ns / elements);
    }
    Ok(results)
}

/// Reads the instructions of all cases of a benchmark of gungraun.
fn read_gungraun(folder: &Path, table: &str, calls: f64) -> Result<Results, Box<dyn Error>> {
    let mut results = Results::default();
    for path in find_files(folder, "summary.json")? {
        let summary = read_json(&path)?;
        let row = summary["id"].as_str().ok_or("a summary without an id")?;
        let instructions = find_instructions(&summary).ok_or("a summary without instructions")?;
        results.add([table, row, "instructions"], instructions / calls);
    }
    if table == "tower" {
        add_costs_of_layers(&mut results);
    }
    Ok(results)
}

/// Adds the instructions that each layer adds to a service without layers.
fn add_costs_of_layers(results: &mut Results) {
    let count = |row| results.value(["tower", row, "instructions"]);
    let Some((bare, governor)) = count("no_layer").zip(count("tower_governor")) else { return };
    for cell in results.table("tower").cloned().collect::<Vec<_>>() {
        let added = cell.value - bare;
        results.add(["tower", &cell.row, "added"], added);
        let ratio = added / (governor - bare);
        results.add(["tower", &cell.row, "added, relative to tower_governor"], ratio);
    }
}

/// Returns the first number of instructions (`Ir`) in a summary of gungraun.
fn find_instructions(summary: &Value) -> Option<f64> {
    match summary {
        Value::Object(fields) => match fields.get("Ir") {
            Some(count) => first_number(count),
            None => fields.values().find_map(find_instructions),
        },
        Value::Array(items) => items.iter().find_map(find_instructions),
        _ => None,
    }
}

fn first_number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::Object(fields) => fields.values().find_map(first_number),
        Value::Array(items) => items.iter().find_map(first_number),
        _ => None,
    }
}

fn read_json(path: &Path) -> Result<Value, Box<dyn Error>> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// Returns the files below a folder whose paths end with `end`, in the order in which they were written.
fn find_files(folder: &Path, end: &str) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let (mut folders, mut found) = (vec![folder.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else if entry.path().ends_with(end) {
                found.push((entry.metadata()?.modified()?, entry.path()));
            }
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}
