//! Defines performance and accuracy targets, and collects the measurements that meet or miss them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::table::MarkdownTable;

/// A target for a measurement. Each target is a constant in the file that measures it.
#[derive(Clone, Copy)]
pub struct BenchTarget {
    /// The description of the measurement, with its unit.
    pub text: &'static str,
    /// The lowest or highest value with which a measurement meets the target.
    pub bound: TargetBound,
    /// The known reason for which a measurement misses the target; empty if no reason is known. The report shows the
    /// reason only if the target is missed.
    pub limited_by: &'static str,
}

/// The bound of a target: a lower or an upper bound.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum TargetBound {
    /// The measurement must be at least this value.
    AtLeast(f64),
    /// The measurement must be at most this value.
    AtMost(f64),
}

/// The results of all measured targets, in the order in which the targets were first measured.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TargetResults(Vec<BenchTargetResult>);

/// A target, and the worst measurement for it so far.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct BenchTargetResult {
    text: String,
    bound: TargetBound,
    worst: f64,
    limited_by: String,
}

impl TargetResults {
    /// Records a measurement for a target. If a target has several measurements, only the worst one is kept.
    pub fn record(&mut self, target: &BenchTarget, measured: f64) {
        match self.0.iter_mut().find(|result| result.text == target.text) {
            Some(result) => {
                result.worst = result.bound.worse_measurement_of(result.worst, measured)
            }
            None => self.0.push(BenchTargetResult {
                text: target.text.to_owned(),
                bound: target.bound,
                worst: measured,
                limited_by: target.limited_by.to_owned(),
            }),
        }
    }

    /// Returns `true` if no target was measured.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of targets that are met, and the number of all measured targets.
    pub fn count_met(&self) -> (usize, usize) {
        (self.0.iter().filter(|result| result.is_target_met()).count(), self.0.len())
    }

    /// Returns a table with a row for each target: the bound, the worst measurement, and whether the worst measurement
    /// meets the target.
    pub fn table(&self) -> MarkdownTable {
        let mut table = MarkdownTable::new(["target", "bound", "worst measurement", "met"]);
        for result in &self.0 {
            let bound = result.bound.to_string();
            let met = if result.is_target_met() { "yes" } else { "**no**" };
            table.add_row([&result.text, &bound, &result.format_worst_measurement(), met]);
        }
        table
    }

    /// Returns a Markdown list of the missed targets whose reason is known, each with its reason. The text is empty if
    /// there are no such targets.
    pub fn explain_misses(&self) -> String {
        let missed = self.0.iter().filter(|result| !result.is_target_met());
        let explained = missed.filter(|result| !result.limited_by.is_empty());
        explained.map(|result| format!("- **{}**: {}\n", result.text, result.limited_by)).collect()
    }
}

impl BenchTargetResult {
    fn is_target_met(&self) -> bool {
        self.bound.is_met_by(self.worst)
    }

    /// Formats the worst measurement with two digits after the decimal point. If two digits would not show the
    /// difference to the bound, or if the bound is below 0.1 but not 0, uses four digits.
    fn format_worst_measurement(&self) -> String {
        let (TargetBound::AtLeast(target) | TargetBound::AtMost(target)) = self.bound;
        let rounded = format!("{:.2}", self.worst);
        let is_distinguishable = rounded.parse() != Ok(target) || self.worst == target;
        if is_distinguishable && (target == 0.0 || target >= 0.1) {
            rounded
        } else {
            format!("{:.4}", self.worst)
        }
    }
}

impl TargetBound {
    /// Returns `true` if a measurement meets a target with this bound.
    pub fn is_met_by(self, measured: f64) -> bool {
        match self {
            Self::AtLeast(target) => measured >= target,
            Self::AtMost(target) => measured <= target,
        }
    }

    fn worse_measurement_of(self, first: f64, second: f64) -> f64 {
        match self {
            Self::AtLeast(_) => first.min(second),
            Self::AtMost(_) => first.max(second),
        }
    }
}

impl fmt::Display for TargetBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(target) => write!(f, "at least {target}"),
            Self::AtMost(target) => write!(f, "at most {target}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN_SPEED_TARGET: BenchTarget =
        BenchTarget { text: "fast", bound: TargetBound::AtLeast(2.0), limited_by: "the clock" };

    const MAX_SIZE_TARGET: BenchTarget =
        BenchTarget { text: "small", bound: TargetBound::AtMost(0.65), limited_by: "" };

    #[test]
    fn worst_measurement_decides_whether_target_is_met() {
        let mut targets = TargetResults::default();
        for measured in [2.5, 1.5, 3.0] {
            targets.record(&MIN_SPEED_TARGET, measured);
        }
        targets.record(&MAX_SIZE_TARGET, 0.6);
        assert_eq!(targets.count_met(), (1, 2));
        assert_eq!(targets.explain_misses(), "- **fast**: the clock\n");
    }

    #[test]
    fn narrowly_missed_target_is_formatted_with_four_decimals() {
        let mut targets = TargetResults::default();
        targets.record(&MAX_SIZE_TARGET, 0.6501);
        assert!(targets.table().to_string().contains("| 0.6501 | **no** |"));
    }
}
