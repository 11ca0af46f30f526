//! A part of the report with the results of one benchmark program, and the command line of all benchmark programs.

use std::error::Error;
use std::fmt::Display;
use std::path::Path;
use std::{env, fs};

use serde::{Deserialize, Serialize};

use crate::progress::StepProgress;
use crate::table::MarkdownTable;
use crate::targets::{BenchTarget, TargetResults};

/// The results of a benchmark program so far.
#[derive(Default, Serialize, Deserialize)]
pub struct ReportPart {
    /// The sections in Markdown.
    pub text: String,
    /// The target results.
    pub targets: TargetResults,
    /// The charts.
    pub charts: Vec<Chart>,
    /// The progress bar.
    #[serde(skip)]
    pub progress: StepProgress,
}

/// A chart of a report part.
#[derive(Serialize, Deserialize)]
pub struct Chart {
    /// The file name without the extension.
    pub name: String,
    /// The content of the SVG file.
    pub svg: String,
}

/// The extent of the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// The extent of the published report.
    Full,
    /// A quick check that everything works, with approximate results.
    Quick,
}

/// A function that measures one section of a report part.
pub type SectionFn = fn(Effort, &mut ReportPart) -> Result<(), Box<dyn Error>>;

impl Effort {
    /// Returns one of two values, by the effort.
    pub fn pick<T>(self, full: T, quick: T) -> T {
        match self {
            Self::Full => full,
            Self::Quick => quick,
        }
    }

    /// Returns the number of rounds for a median.
    pub fn rounds(self) -> usize {
        self.pick(7, 3)
    }
}

impl ReportPart {
    /// Adds Markdown: a paragraph, a heading, or a table.
    pub fn add_text(&mut self, text: impl Display) {
        self.text += text.to_string().trim();
        self.text += "\n\n";
    }

    /// Adds a table.
    pub fn add_table(&mut self, table: &MarkdownTable) {
        self.add_text(table);
    }

    /// Adds a chart with an alternative text.
    pub fn add_chart(&mut self, name: &str, alt_text: &str, svg: String) {
        self.add_text(format!("![{alt_text}]({CHART_FOLDER}/{name}.svg)"));
        self.charts.push(Chart { name: name.to_owned(), svg });
    }

    /// Compares a measurement with a target. The worst of several measurements counts.
    pub fn record_target(&mut self, target: &BenchTarget, measured: f64) {
        self.targets.record(target, measured);
    }

    /// Writes the charts into the chart folder next to the document.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn write_charts(&self, document: &Path) -> std::io::Result<()> {
        let folder = document.with_file_name(CHART_FOLDER);
        fs::create_dir_all(&folder)?;
        for Chart { name, svg } in &self.charts {
            fs::write(folder.join(format!("{name}.svg")), svg)?;
        }
        Ok(())
    }
}

/// The folder of the charts, next to the document.
const CHART_FOLDER: &str = "benchmarks";

/// The flag that prints a part as JSON, for the report, instead of Markdown.
pub const REPORT_FLAG: &str = "--for-the-report";

/// Runs a benchmark program: measures all sections, or the sections named in the arguments, and prints the results.
///
/// # Errors
/// If an argument is neither a section nor `--quick`, or a section fails.
pub fn main(sections: &[(&str, SectionFn)]) -> Result<(), Box<dyn Error>> {
    let (mut effort, mut is_for_report, mut selected) = (Effort::Full, false, Vec::new());
    for arg in env::args().skip(1) {
        match sections.iter().find(|(name, _)| *name == arg) {
            Some((_, section)) => selected.push(*section),
            None if arg == "--quick" => effort = Effort::Quick,
            None if arg == REPORT_FLAG => is_for_report = true,
            None => return Err(usage(sections).into()),
        }
    }
    if selected.is_empty() {
        selected.extend(sections.iter().map(|(_, section)| section));
    }
    let mut part = ReportPart::default();
    for section in selected {
        section(effort, &mut part)?;
    }
    part.progress.finish();
    if is_for_report {
        println!("{}", serde_json::to_string(&part)?);
        return Ok(());
    }
    part.write_charts(Path::new("target/bench/part.md"))?;
    println!("{}", part.text);
    if !part.targets.is_empty() {
        println!("### Targets\n\n{}\n{}", part.targets.table(), part.targets.explain_misses());
    }
    Ok(())
}

fn usage(sections: &[(&str, SectionFn)]) -> String {
    let names: Vec<&str> = sections.iter().map(|(name, _)| *name).collect();
    format!("unknown argument; valid are --quick and {}", names.join(", "))
}
