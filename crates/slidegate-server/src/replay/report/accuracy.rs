//! How the limits did against an exact log.

use std::fmt;

use serde::Serialize;

use super::{ReplayReport, table};
use crate::replay::accuracy::{Deviation, LimitAccuracy, WindowPeak};

/// A limit against an exact log of each of its keys.
#[derive(Debug, Serialize)]
pub struct AccuracyReport {
    #[serde(flatten)]
    pub deviation: DeviationReport,
    worst_window: WorstWindow,
}

/// Decisions that an exact log would have made otherwise.
#[derive(Debug, Serialize)]
pub struct DeviationReport {
    false_allows: u64,
    false_denies: u64,
}

/// The most that a key was given in any time as long as the limit's window.
#[derive(Debug, Serialize)]
struct WorstWindow {
    units: u64,
    max: u64,
    percent: Option<u64>,
    over: u64,
}

impl AccuracyReport {
    /// Of a limit of this max.
    pub fn new(accuracy: &LimitAccuracy, max: u64) -> Self {
        let worst = accuracy.worst;
        // A limit that nobody has passed has seen no max.
        let worst = if worst.units == 0 { WindowPeak { units: 0, max } } else { worst };
        Self {
            deviation: DeviationReport::new(accuracy.deviation),
            worst_window: WorstWindow {
                units: worst.units,
                max: worst.max,
                percent: worst.percent(),
                over: worst.over(),
            },
        }
    }
}

impl DeviationReport {
    pub fn new(Deviation { false_allows, false_denies }: Deviation) -> Self {
        Self { false_allows, false_denies }
    }
}

impl fmt::Display for WorstWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.units, self.max)?;
        self.percent.map_or(Ok(()), |percent| write!(f, " ({percent} %)"))
    }
}

/// The table of all rules, and what it means.
pub fn write(f: &mut fmt::Formatter<'_>, report: &ReplayReport<'_>) -> fmt::Result {
    let row = |name: &str, deviation: &DeviationReport, worst: String| {
        let counts = [deviation.false_allows, deviation.false_denies].map(|n| n.to_string());
        let [allows, denies] = counts;
        (name.to_owned(), [allows, denies, worst])
    };
    let mut rows = Vec::new();
    for rule in &report.rules {
        rows.push(row(rule.rule, &rule.exact, String::new()));
        let limits = rule.limits.iter();
        rows.extend(limits.map(|limit| {
            row(&limit.text, &limit.exact.deviation, limit.exact.worst_window.to_string())
        }));
    }
    let head = ["false allows", "false denies", "worst window"];
    table::write(f, "against an exact log", head, &rows)?;
    f.write_str(
        "(A false allow: the limit let a request pass though its window was full. A false deny: it said\n\
         no though there was room. The worst window is the most that any one key was given within a time\n\
         as long as the limit's window, and how much that is of max.)\n",
    )?;
    if report.rules.iter().any(|rule| rule.limits.iter().any(|limit| limit.has_burst)) {
        writeln!(f, "(A token_bucket gives its burst on top of max: that shows here too.)")?;
    }
    write_cuts(f, report)
}

fn write_cuts(f: &mut fmt::Formatter<'_>, report: &ReplayReport<'_>) -> fmt::Result {
    if report.uncounted_by_key > 0 {
        let left_out = report.uncounted_by_key;
        writeln!(f, "({left_out} requests of keys beyond --max-keys are not compared.)")?;
    }
    if report.forgotten_counts > 0 {
        let forgotten = report.forgotten_counts;
        writeln!(
            f,
            "(The limits had to forget {forgotten} counts for want of room: see --max-keys.)"
        )?;
    }
    Ok(())
}
