//! The targets in `lab/targets.json`, compared with the results.

use std::error::Error;

use lab::results::{Measurement, Results};
use serde::Deserialize;

/// A target: a bound of values in tables, or of their ratios to other columns.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    /// The description of the value, with its unit.
    name: String,
    tables: Vec<String>,
    /// The rows that must meet the bound; all rows if empty.
    #[serde(default)]
    rows: Vec<String>,
    /// The columns that must meet the bound; all columns if empty.
    #[serde(default)]
    columns: Vec<String>,
    /// The columns with which each value is compared. If there are several columns, the best of them counts.
    #[serde(default)]
    relative_to: Vec<String>,
    at_most: Option<f64>,
    at_least: Option<f64>,
    /// The explanation in the report if the target is missed.
    #[serde(default)]
    reason: String,
}

const TARGETS: &str = include_str!("../../../targets.json");

/// Returns the number of targets that are met, and one line for each target that is missed.
pub fn format_targets(results: &Results) -> Result<String, Box<dyn Error>> {
    let targets: Vec<Target> = serde_json::from_str(TARGETS)?;
    let measure = |target| Some((target, Target::worst_value(target, results)?));
    let measured: Vec<(&Target, f64)> = targets.iter().filter_map(measure).collect();
    let missed: Vec<_> =
        measured.iter().filter(|(target, worst)| !target.is_met_by(*worst)).collect();
    let met = measured.len() - missed.len();
    let mut text = format!(
        "{met} of {} targets are met. The worst value of each target counts. Missed targets:\n\n",
        measured.len()
    );
    for (target, worst) in missed {
        let bound = match (target.at_most, target.at_least) {
            (Some(bound), _) => format!("at most {bound}"),
            (None, bound) => format!("at least {}", bound.unwrap_or_default()),
        };
        let colon = if target.reason.is_empty() { "" } else { ": " };
        text +=
            &format!("- {}: **{worst:.2}**, target {bound}{colon}{}\n", target.name, target.reason);
    }
    Ok(text)
}

impl Target {
    fn is_met_by(&self, value: f64) -> bool {
        self.at_most.is_none_or(|bound| value <= bound)
            && self.at_least.is_none_or(|bound| value >= bound)
    }

    /// Returns the worse one of two values.
    fn worse(&self, one: f64, other: f64) -> f64 {
        if self.at_most.is_some() { one.max(other) } else { one.min(other) }
    }

    /// Returns the worst measured value; `None` if there is none.
    fn worst_value(&self, results: &Results) -> Option<f64> {
        let includes = |names: &[String], name: &String| names.is_empty() || names.contains(name);
        let cells = self.tables.iter().flat_map(|table| results.table(table));
        cells
            .filter(|cell| includes(&self.rows, &cell.row) && includes(&self.columns, &cell.column))
            .filter_map(|cell| self.value(results, cell))
            .reduce(|one, other| self.worse(one, other))
    }

    fn value(&self, results: &Results, cell: &Measurement) -> Option<f64> {
        let peer = |column: &String| results.value([&cell.table, &cell.row, column]);
        let ratios = self.relative_to.iter().filter_map(|column| Some(cell.value / peer(column)?));
        // Of several compared columns, the best one has the worst ratio, so the worst ratio counts.
        if self.relative_to.is_empty() {
            Some(cell.value)
        } else {
            ratios.reduce(|one, other| self.worse(one, other))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_targets_are_listed_with_worst_ratio() -> Result<(), Box<dyn Error>> {
        let mut results = Results::default();
        for (endpoint, own, peers) in
            [("`/v1/check`", 80.0, [90.0, 100.0]), ("`/v1/auth`", 1.0, [100.0, 100.0])]
        {
            results.add(["server-http-rate", endpoint, "slidegate"], own);
            results.add(["server-http-rate", endpoint, "axum, one thread"], peers[0]);
            results.add(["server-http-rate", endpoint, "axum, a worker per core"], peers[1]);
        }
        results.add(["server-startup", "slidegate", "start, ms"], 12.0);
        let text = format_targets(&results)?;
        assert!(text.starts_with("1 of 2 targets are met"), "{text}");
        assert!(text.contains(": **0.80**, target at least 0.95: a check"), "{text}");
        Ok(())
    }
}
