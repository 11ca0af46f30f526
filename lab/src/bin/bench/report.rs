//! The document.

use std::error::Error;
use std::fmt::Write;
use std::time::Duration;

use lab::part::{Effort, Part};

use crate::{Program, machine};

/// Everything of one run.
pub struct Report {
    pub effort: Effort,
    /// Whether no part is left out.
    pub is_all: bool,
    pub measured: Vec<Measured>,
    pub took: Duration,
}

/// What a program came to.
pub struct Measured {
    pub program: &'static Program,
    pub part: Part,
    pub took: Duration,
}

impl Report {
    /// In markdown.
    pub fn text(&self) -> Result<String, Box<dyn Error>> {
        let mut text = format!("# Benchmarks\n\n{}\n\n{}\n", self.head(), machine::table());
        writeln!(text, "## Targets\n\n{}", self.targets())?;
        for Measured { program, part, took } in &self.measured {
            let Program { name, title } = program;
            writeln!(text, "## {title}\n\n`make bench-{name}`, {}.\n", span(*took))?;
            writeln!(text, "{}\n", part.text.trim())?;
        }
        Ok(format!("{}\n", text.trim_end()))
    }

    fn head(&self) -> String {
        let parts = if self.is_all { "all parts" } else { "some parts" };
        let command = match self.effort {
            Effort::Full => "make bench",
            Effort::Quick => "make bench ARGS=--quick",
        };
        format!(
            "slidegate beside what one would pick instead: one run of `{command}` on {}, {parts}, {}. It wrote this \
             document; whoever runs it gets their own. Times are medians of rounds in which all contenders take turns, so \
             that a noisy second hits them alike: compare within a table, not across. [docs/ALGORITHMS.md](ALGORITHMS.md) \
             tells what the algorithms are.",
            machine::date(),
            span(self.took)
        )
    }

    /// All targets of all parts, and what limits those that are missed.
    pub fn targets(&self) -> String {
        let mut text = String::new();
        let met = self.measured.iter().map(|measured| measured.part.targets.met());
        let (met, all) = met.fold((0, 0), |sum, its| (sum.0 + its.0, sum.1 + its.1));
        text += &format!("{met} of {all} are met. Of several measures the worst counts.\n");
        for Measured { program, part, .. } in &self.measured {
            if !part.targets.is_empty() {
                text += &format!("\n### {}: targets\n\n{}", program.title, part.targets.table());
                let misses = part.targets.misses();
                if !misses.is_empty() {
                    text += &format!("\nWhat limits those that are missed:\n\n{misses}");
                }
            }
        }
        text
    }
}

fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..120 => format!("{seconds} seconds"),
        _ => format!("{} minutes", (seconds + 30) / 60),
    }
}
