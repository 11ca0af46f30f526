//! Performance and accuracy targets, and the measurements that meet or miss them.

use serde::{Deserialize, Serialize};

use crate::table::MarkdownTable;

/// A target for a measurement. Targets are constants in the file that measures them.
#[derive(Clone, Copy)]
pub struct BenchTarget {
    /// The measurement and its unit.
    pub text: &'static str,
    /// The bound that the measurement should keep.
    pub bound: TargetBound,
    /// The reason for missing the target, if known from a profile. It is shown only if the target is missed.
    pub limited_by: &'static str,
}

/// A lower or an upper bound.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum TargetBound {
    /// This value or more.
    AtLeast(f64),
    /// This value or less.
    AtMost(f64),
}

/// Results in the order of the first measurement of each target.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TargetResults(Vec<TargetResult>);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct TargetResult {
    text: String,
    bound: TargetBound,
    worst: f64,
    limited_by: String,
}

impl TargetResults {
    /// Records a measurement for a target. The worst of several measurements counts.
    pub fn record(&mut self, target: &BenchTarget, measured: f64) {
        match self.0.iter_mut().find(|result| result.text == target.text) {
            Some(result) => result.worst = result.bound.worse(result.worst, measured),
            None => self.0.push(TargetResult {
                text: target.text.to_owned(),
                bound: target.bound,
                worst: measured,
                limited_by: target.limited_by.to_owned(),
            }),
        }
    }

    /// Returns whether there are no measurements.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of targets that are met, and the number of all targets.
    pub fn count_met(&self) -> (usize, usize) {
        (self.0.iter().filter(|result| result.is_met()).count(), self.0.len())
    }

    /// Returns a table of all targets with the worst measurement and whether it meets the target.
    pub fn table(&self) -> MarkdownTable {
        let mut table = MarkdownTable::new(["target", "bound", "worst measurement", "met"]);
        for result in &self.0 {
            let target = match result.bound {
                TargetBound::AtLeast(target) => format!("at least {target}"),
                TargetBound::AtMost(target) => format!("at most {target}"),
            };
            let met = if result.is_met() { "yes" } else { "**no**" };
            table.add_row([&result.text, &target, &result.format_worst(), met]);
        }
        table
    }

    /// Returns a list of the reasons for missed targets; empty if there are none.
    pub fn explain_misses(&self) -> String {
        let missed = self.0.iter().filter(|result| !result.is_met());
        let explained = missed.filter(|result| !result.limited_by.is_empty());
        explained.map(|result| format!("- **{}**: {}\n", result.text, result.limited_by)).collect()
    }
}

impl TargetResult {
    fn is_met(&self) -> bool {
        match self.bound {
            TargetBound::AtLeast(target) => self.worst >= target,
            TargetBound::AtMost(target) => self.worst <= target,
        }
    }

    /// Formats the worst measurement with enough digits to distinguish it from the bound.
    fn format_worst(&self) -> String {
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
    fn worse(self, first: f64, second: f64) -> f64 {
        match self {
            Self::AtLeast(_) => first.min(second),
            Self::AtMost(_) => first.max(second),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: BenchTarget =
        BenchTarget { text: "fast", bound: TargetBound::AtLeast(2.0), limited_by: "the clock" };

    const SMALL: BenchTarget =
        BenchTarget { text: "small", bound: TargetBound::AtMost(0.65), limited_by: "" };

    #[test]
    fn worst_measurement_counts() {
        let mut targets = TargetResults::default();
        for measured in [2.5, 1.5, 3.0] {
            targets.record(&FAST, measured);
        }
        targets.record(&SMALL, 0.6);
        assert_eq!(targets.count_met(), (1, 2));
        assert_eq!(targets.explain_misses(), "- **fast**: the clock\n");
    }

    #[test]
    fn narrow_miss_is_distinguishable_from_bound() {
        let mut targets = TargetResults::default();
        targets.record(&SMALL, 0.6501);
        assert!(targets.table().to_string().contains("| 0.6501 | **no** |"));
    }
}
