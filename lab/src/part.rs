//! A part of the report: what a benchmark came to, and the command line that all benchmarks share.

use std::error::Error;
use std::fmt::Display;
use std::path::Path;
use std::{env, fs};

use serde::{Deserialize, Serialize};

use crate::progress::Progress;
use crate::table::Table;
use crate::targets::{Aim, Targets};

/// What a benchmark came to so far.
#[derive(Default, Serialize, Deserialize)]
pub struct Part {
    /// Its sections, in markdown.
    pub text: String,
    /// What it held against its aims.
    pub targets: Targets,
    /// Its pictures.
    pub charts: Vec<Chart>,
    /// Where it is.
    #[serde(skip)]
    pub progress: Progress,
}

/// A picture of a part.
#[derive(Serialize, Deserialize)]
pub struct Chart {
    /// The name of its file, without the ending.
    pub name: String,
    /// The SVG.
    pub svg: String,
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// As in the report.
    Full,
    /// Enough to see that all works, and about where it stands.
    Quick,
}

/// Measures one section of a part.
pub type Section = fn(Effort, &mut Part) -> Result<(), Box<dyn Error>>;

impl Effort {
    /// One of two, by the effort.
    pub fn pick<T>(self, full: T, quick: T) -> T {
        match self {
            Self::Full => full,
            Self::Quick => quick,
        }
    }

    /// Rounds of which the median is taken.
    pub fn rounds(self) -> usize {
        self.pick(7, 3)
    }
}

impl Part {
    /// Adds a paragraph, a heading, or a table.
    pub fn say(&mut self, what: impl Display) {
        self.text += what.to_string().trim();
        self.text += "\n\n";
    }

    /// Adds a table.
    pub fn table(&mut self, table: &Table) {
        self.say(table);
    }

    /// Adds a picture; `tells` is for those who do not see it.
    pub fn chart(&mut self, name: &str, tells: &str, svg: String) {
        self.say(format!("![{tells}]({FOLDER}/{name}.svg)"));
        self.charts.push(Chart { name: name.to_owned(), svg });
    }

    /// Holds a measure against an aim; the worst of several counts.
    pub fn hold(&mut self, aim: &Aim, measured: f64) {
        self.targets.hold(aim, measured);
    }

    /// Writes the pictures into the folder that the text names, beside the document.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn draw_beside(&self, document: &Path) -> std::io::Result<()> {
        let folder = document.with_file_name(FOLDER);
        fs::create_dir_all(&folder)?;
        for Chart { name, svg } in &self.charts {
            fs::write(folder.join(format!("{name}.svg")), svg)?;
        }
        Ok(())
    }
}

/// Where the pictures of a document are.
const FOLDER: &str = "benchmarks";

/// By which a part is told to the report instead of to people.
pub const FOR_THE_REPORT: &str = "--for-the-report";

/// The main function of a benchmark: measures all of its sections, or those that its arguments name, and prints them.
///
/// # Errors
/// If an argument is neither a section nor `--quick`, or a section fails.
pub fn main(sections: &[(&str, Section)]) -> Result<(), Box<dyn Error>> {
    let (mut effort, mut for_the_report, mut named) = (Effort::Full, false, Vec::new());
    for arg in env::args().skip(1) {
        match sections.iter().find(|(name, _)| *name == arg) {
            Some((_, section)) => named.push(*section),
            None if arg == "--quick" => effort = Effort::Quick,
            None if arg == FOR_THE_REPORT => for_the_report = true,
            None => return Err(usage(sections).into()),
        }
    }
    if named.is_empty() {
        named.extend(sections.iter().map(|(_, section)| section));
    }
    let mut part = Part::default();
    for section in named {
        section(effort, &mut part)?;
    }
    part.progress.end();
    if for_the_report {
        println!("{}", serde_json::to_string(&part)?);
        return Ok(());
    }
    part.draw_beside(Path::new("target/bench/part.md"))?;
    println!("{}", part.text);
    if !part.targets.is_empty() {
        println!("### Targets\n\n{}\n{}", part.targets.table(), part.targets.misses());
    }
    Ok(())
}

fn usage(sections: &[(&str, Section)]) -> String {
    let names: Vec<&str> = sections.iter().map(|(name, _)| *name).collect();
    format!("arguments are --quick and any of: {}", names.join(", "))
}
