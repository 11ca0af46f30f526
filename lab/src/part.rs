//! Collects the results of one benchmark program as a part of the report, and parses the command line that all
//! benchmark programs share.

use std::error::Error;
use std::fmt::Display;
use std::path::Path;
use std::{env, fs};

use serde::{Deserialize, Serialize};

use crate::progress::StepProgress;
use crate::table::MarkdownTable;
use crate::targets::{BenchTarget, TargetResults};

/// The results of one benchmark program. Each section of the program adds its results.
#[derive(Default, Serialize, Deserialize)]
pub struct ReportPart {
    /// The text of all sections so far, in Markdown.
    pub text: String,
    /// The text of all sections that belongs at the end of the part, in Markdown.
    #[serde(skip)]
    appendix: String,
    /// The worst measurement for each target so far.
    pub targets: TargetResults,
    /// The charts of all sections so far.
    pub charts: Vec<Chart>,
    /// The progress bar of the program.
    #[serde(skip)]
    pub progress: StepProgress,
}

/// A chart of a report part, as an SVG file.
#[derive(Serialize, Deserialize)]
pub struct Chart {
    /// The file name without the extension.
    pub name: String,
    /// The content of the SVG file.
    pub svg: String,
}

/// The effort of a benchmark run: a full report or a quick check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// The number of rounds and decisions of the published report.
    Full,
    /// A quick check that all measurements work, with approximate results.
    Quick,
}

/// A function that measures one section of a report part.
pub type SectionFn = fn(Effort, &mut ReportPart) -> Result<(), Box<dyn Error>>;

impl Effort {
    /// Returns `full` or `quick`, depending on the effort.
    pub fn pick<T>(self, full: T, quick: T) -> T {
        match self {
            Self::Full => full,
            Self::Quick => quick,
        }
    }

    /// Returns the number of rounds of which a measurement takes the median.
    pub fn rounds(self) -> usize {
        self.pick(7, 3)
    }
}

impl ReportPart {
    /// Adds a paragraph, a heading or a table in Markdown to the part.
    pub fn add_text(&mut self, text: impl Display) {
        self.text += text.to_string().trim();
        self.text += "\n\n";
    }

    /// Adds a paragraph, a heading or a table in Markdown to the appendix, which follows the text of all sections.
    pub fn add_to_appendix(&mut self, text: impl Display) {
        self.appendix += text.to_string().trim();
        self.appendix += "\n\n";
    }

    /// Adds a table to the part.
    pub fn add_table(&mut self, table: &MarkdownTable) {
        self.add_text(table);
    }

    /// Adds a chart to the part. `name` is its file name without the extension, and `alt_text` is the text for readers
    /// that cannot see the chart.
    pub fn add_chart(&mut self, name: &str, alt_text: &str, svg: String) {
        self.add_text(format!("![{alt_text}]({CHART_FOLDER}/{name}.svg)"));
        self.charts.push(Chart { name: name.to_owned(), svg });
    }

    /// Compares a measurement with a target. If a target has several measurements, only the worst one is kept.
    pub fn record_target(&mut self, target: &BenchTarget, measured: f64) {
        self.targets.record(target, measured);
    }

    /// Writes the charts as SVG files into the chart folder, which is in the same folder as `document`.
    ///
    /// # Errors
    /// If the folder or a file cannot be written.
    pub fn write_charts(&self, document: &Path) -> std::io::Result<()> {
        let folder = document.with_file_name(CHART_FOLDER);
        fs::create_dir_all(&folder)?;
        for Chart { name, svg } in &self.charts {
            fs::write(folder.join(format!("{name}.svg")), svg)?;
        }
        Ok(())
    }
}

/// The name of the folder of the charts. It is in the same folder as the report.
const CHART_FOLDER: &str = "benchmarks";

/// The flag with which a benchmark program prints its results as JSON for the program `bench`, instead of Markdown for
/// people.
pub const REPORT_FLAG: &str = "--for-the-report";

/// Runs a benchmark program. Measures the sections named on the command line, or all sections if none is named, and
/// prints the results.
///
/// # Errors
/// If an argument is neither the name of a section nor a known flag, or if a section fails.
pub fn main(sections: &[(&str, SectionFn)]) -> Result<(), Box<dyn Error>> {
    let (mut effort, mut is_for_report, mut selected) = (Effort::Full, false, Vec::new());
    for arg in env::args().skip(1) {
        match sections.iter().find(|(name, _)| *name == arg) {
            Some((_, section)) => selected.push(*section),
            None if arg == "--quick" => effort = Effort::Quick,
            None if arg == REPORT_FLAG => is_for_report = true,
            None => return Err(format_usage_message(sections).into()),
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
    part.text += &std::mem::take(&mut part.appendix);
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

fn format_usage_message(sections: &[(&str, SectionFn)]) -> String {
    let names: Vec<&str> = sections.iter().map(|(name, _)| *name).collect();
    format!("unknown argument; valid are --quick and {}", names.join(", "))
}
