//! Runs the benchmarks and writes the report: `make bench`.
//!
//! `bench [--quick] [PART...] [-- SECTION...]`. A full run of all parts writes docs/BENCHMARKS.md. Other runs write to
//! target/bench, and print the tables of their parts. `bench --report` writes docs/BENCHMARKS.md from the results of
//! earlier runs. With names of sections, only these sections of the programs `bench_*` run.

mod machine;
mod report;
mod sources;
mod targets;

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;

use lab::program::Effort;
use lab::results::{Results, result_folder};

use sources::{PARTS, ReportPart};

const REPORT_FLAG: &str = "--report";

fn main() -> Result<(), Box<dyn Error>> {
    let (mut effort, mut is_report_only, mut parts) = (Effort::Full, false, Vec::new());
    let mut args = env::args().skip(1);
    for arg in args.by_ref().take_while(|arg| arg != "--") {
        match PARTS.iter().find(|part| part.name == arg) {
            Some(part) => parts.push(part),
            None if arg == "--quick" => effort = Effort::Quick,
            None if arg == REPORT_FLAG => is_report_only = true,
            None => return Err(format_usage_message().into()),
        }
    }
    let sections: Vec<String> = args.collect();
    let is_complete = parts.is_empty();
    if is_complete {
        parts.extend(PARTS);
    }
    let folder = result_folder(effort == Effort::Quick);
    if !is_report_only {
        for part in &parts {
            sources::measure(part, effort, &sections)?;
        }
    }
    let results = read_results(&folder)?;
    let page = match effort {
        Effort::Full if is_complete => Path::new("docs/BENCHMARKS.md").to_owned(),
        _ => folder.join("BENCHMARKS.md"),
    };
    fs::write(&page, report::page(&results)?)?;
    if let Some(svg) = report::draw_memory_keys_chart(&results)? {
        let charts = page.with_file_name("benchmarks");
        fs::create_dir_all(&charts)?;
        fs::write(charts.join("memory-keys.svg"), svg)?;
    }
    if !is_complete {
        parts.iter().for_each(|part| print_tables(part, &results));
    }
    println!("{}", page.display());
    Ok(())
}

fn format_usage_message() -> String {
    let names: Vec<&str> = PARTS.iter().map(|part| part.name).collect();
    format!("usage: bench [--quick] [PART...] [-- SECTION...]; parts are {}", names.join(", "))
}

/// Reads the results of all parts, also from earlier runs.
fn read_results(folder: &Path) -> Result<Results, Box<dyn Error>> {
    let mut all = Results::default();
    for source in PARTS.iter().flat_map(|part| part.sources) {
        all.replace_rows(Results::read(&folder.join(format!("{}.json", source.name())))?);
    }
    Ok(all)
}

/// Prints the tables whose names begin with the name of the part.
fn print_tables(part: &ReportPart, results: &Results) {
    for table in results.tables().into_iter().filter(|table| table.starts_with(part.name)) {
        println!("{table}\n\n{}", report::format_table(results, table, None, 1.0));
    }
}
