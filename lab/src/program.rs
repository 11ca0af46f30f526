//! The command line of the benchmark programs.

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;

use crate::results::{Results, result_folder};

/// The effort of a benchmark run: for the report, or for a quick check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// The number of rounds and decisions of the published report.
    Full,
    /// A quick check that all measurements work, with approximate results.
    Quick,
}

impl Effort {
    /// Returns `full` or `quick`, depending on the effort.
    pub fn full_or_quick<T>(self, full: T, quick: T) -> T {
        match self {
            Self::Full => full,
            Self::Quick => quick,
        }
    }
}

/// A run of a benchmark program: its effort, and the results so far.
pub struct BenchRun {
    /// The effort of the run.
    pub effort: Effort,
    results: Results,
}

/// A function that measures one section of a benchmark program.
pub type SectionFn = fn(&mut BenchRun) -> Result<(), Box<dyn Error>>;

impl BenchRun {
    /// Adds a value to the results and prints it. The parts of `cell` are a table, a row and a column.
    pub fn record(&mut self, cell: [&str; 3], value: f64) {
        eprintln!("{}: {value:.3}", cell.join(", "));
        self.results.add(cell, value);
    }

    /// Writes a chart. For a full run it belongs to the documentation. `name` is its file name without the extension.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_chart(&self, name: &str, svg: &str) -> Result<(), Box<dyn Error>> {
        let folder = Path::new(
            self.effort.full_or_quick("docs/benchmarks", "target/bench/quick/benchmarks"),
        );
        fs::create_dir_all(folder)?;
        Ok(fs::write(folder.join(format!("{name}.svg")), svg)?)
    }
}

/// Runs a benchmark program: measures the sections named on the command line, or all sections if none is named, and
/// adds the results to the result file of the program. The argument `--quick` selects a quick check.
///
/// # Errors
/// If an argument is neither the name of a section nor a known flag, or if a section fails.
pub fn main(program: &str, sections: &[(&str, SectionFn)]) -> Result<(), Box<dyn Error>> {
    let (mut effort, mut selected) = (Effort::Full, Vec::new());
    for arg in env::args().skip(1) {
        match sections.iter().find(|(name, _)| *name == arg) {
            Some((_, section)) => selected.push(*section),
            None if arg == "--quick" => effort = Effort::Quick,
            None => {
                let names: Vec<&str> = sections.iter().map(|(name, _)| *name).collect();
                return Err(format!(
                    "unknown argument; valid are --quick and {}",
                    names.join(", ")
                )
                .into());
            }
        }
    }
    let path = result_folder(effort == Effort::Quick).join(format!("{program}.json"));
    if selected.is_empty() {
        selected.extend(sections.iter().map(|(_, section)| section));
        // Begins with an empty file. Otherwise rows that no section measures any more would stay.
        Results::default().write(&path)?;
    }
    for section in selected {
        let mut run = BenchRun { effort, results: Results::default() };
        section(&mut run)?;
        let mut all = Results::read(&path)?;
        all.replace_rows(run.results);
        all.write(&path)?;
    }
    Ok(())
}
