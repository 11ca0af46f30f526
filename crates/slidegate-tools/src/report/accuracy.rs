//! The part of the replay report that compares limits with exact logs, which keep every charge of a key.

use std::fmt;

use serde::Serialize;

use super::{ReplayReport, table};
use crate::accuracy::{Deviation, LimitAccuracy, WindowPeak};

/// The comparison of one limit with exact logs, which keep every charge of a key.
#[derive(Debug, Serialize)]
pub struct AccuracyReport {
    #[serde(flatten)]
    pub deviation: DeviationReport,
    worst_window: WorstWindow,
}

/// The numbers of decisions that differ from an exact log, which keeps every charge of a key.
#[derive(Debug, Serialize)]
pub struct DeviationReport {
    false_allows: u64,
    false_denies: u64,
}

/// The largest number of units that one key received within any window of the limit.
#[derive(Debug, Serialize)]
struct WorstWindow {
    units: u64,
    max: u64,
    percent: Option<u64>,
    over: u64,
}

impl AccuracyReport {
    /// Creates the report of one limit. `max` is its maximum number of units in the policy.
    pub fn new(accuracy: &LimitAccuracy, max: u64) -> Self {
        let worst = accuracy.worst;
        // A limit that allowed no requests has recorded no max, so the max of the policy is shown.
        let worst = if worst.units == 0 { WindowPeak { units: 0, max } } else { worst };
        Self {
            deviation: DeviationReport::new(accuracy.deviation),
            worst_window: WorstWindow {
                units: worst.units,
                max: worst.max,
                percent: worst.percent(),
                over: worst.units_over_max(),
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

/// Writes a table that compares the decisions of each rule and limit with the decisions of an exact log, which keeps
/// the time of each request. Explains the columns.
pub fn write_accuracy_table(f: &mut fmt::Formatter<'_>, report: &ReplayReport<'_>) -> fmt::Result {
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
    table::write(f, "compared with an exact log", head, &rows)?;
    f.write_str(
        "(The exact log keeps the time of every allowed request. False allow: the limit allowed a request\n\
         although its window was full. False deny: the limit denied a request although there was capacity.\n\
         Worst window: the most units that one key received in any period as long as the window, and their\n\
         share of max.)\n",
    )?;
    if report.rules.iter().any(|rule| rule.limits.iter().any(|limit| limit.has_burst)) {
        writeln!(
            f,
            "(A token_bucket allows its burst in addition to max. The worst window includes the burst.)"
        )?;
    }
    write_notes_on_uncompared_requests(f, report)
}

/// Writes notes on the requests and counters that the comparison does not include, with their numbers.
fn write_notes_on_uncompared_requests(
    f: &mut fmt::Formatter<'_>,
    report: &ReplayReport<'_>,
) -> fmt::Result {
    if report.uncounted_by_key > 0 {
        let omitted = report.uncounted_by_key;
        writeln!(
            f,
            "({omitted} requests are not compared, because there were more keys than --max-keys.)"
        )?;
    }
    if report.forgotten_counts > 0 {
        let evicted = report.forgotten_counts;
        writeln!(
            f,
            "({evicted} counters were removed early, because there were more than --max-keys. Their keys may have\n\
             received more than max.)"
        )?;
    }
    Ok(())
}
