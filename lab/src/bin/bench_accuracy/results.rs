//! Sums up the accuracy of each algorithm over many keys, loads or limits, and shows it in tables and charts.

use std::error::Error;

use lab::accuracy::{AccuracyStats, is_strict, percent, proven_bound};
use lab::chart::{self, Bar, BarGroup};
use lab::part::ReportPart;
use lab::table::MarkdownTable;
use lab::targets::{BenchTarget, TargetBound};
use slidegate::{Algorithm, Limit};

const MAX_FALSE_ALLOWS_OF_STRICT_ALGORITHMS: BenchTarget = BenchTarget {
    text: "`sliding_log` and `sliding_buckets`, any traffic: false allows",
    bound: TargetBound::AtMost(0.0),
    limited_by: "",
};

const CHARTS_INTRODUCTION: &str = "\
### All arrivals in two charts

The charts do not show the size of the errors: see *mean error* in the tables. Most wrong denials of \
`sliding_window` at a constant rate are wrong by one unit.";

/// The results of all algorithms with one set of arrivals, such as the recorded arrivals.
pub struct ArrivalsResult {
    /// The name of the set of arrivals in charts.
    pub name: &'static str,
    /// The results in the order of [`Algorithm::ALL`].
    pub results: Vec<AlgorithmResult>,
}

/// The accuracy of one algorithm, summed up over several limits.
#[derive(Clone, Copy)]
pub struct AlgorithmResult {
    algorithm: Algorithm,
    stats: AccuracyStats,
    /// The sum of the errors of all wrong decisions, in percent of the maximum of the limit.
    total_error: f64,
    /// The maximum number of units that were allowed in any window, in percent of the maximum of the limit.
    worst: f64,
    /// The proven upper bound of the units allowed in any window, in percent of the maximum of the limit.
    bound: f64,
}

/// Returns an empty result for each algorithm.
pub fn empty_results() -> Vec<AlgorithmResult> {
    let result = |algorithm| AlgorithmResult {
        algorithm,
        stats: AccuracyStats::default(),
        total_error: 0.0,
        worst: 0.0,
        bound: 0.0,
    };
    Algorithm::ALL.map(result).to_vec()
}

impl AlgorithmResult {
    /// Adds the results of a limit, which must use the algorithm of this result.
    ///
    /// # Errors
    /// If the limit allowed more units in a window than its proven bound.
    pub fn add(&mut self, limit: &Limit, stats: &AccuracyStats) -> Result<(), Box<dyn Error>> {
        if stats.max_in_window > proven_bound(limit) {
            return Err(format!(
                "{limit} allowed {} in a window, more than its proven bound",
                stats.max_in_window
            )
            .into());
        }
        self.stats += *stats;
        self.total_error += percent(stats.error_units, limit.quota().max());
        self.worst = self.worst.max(percent(stats.max_in_window, limit.quota().max()));
        self.bound = self.bound.max(percent(proven_bound(limit), limit.quota().max()));
        Ok(())
    }
}

/// Adds a table to the report with a row for each algorithm. Records the target of the strict algorithms, which must
/// never allow more than the maximum in a window.
pub fn add_results_table(part: &mut ReportPart, results: &[AlgorithmResult]) {
    let mut table = MarkdownTable::new([
        "algorithm",
        "allowed",
        "false allows",
        "false denies",
        "mean error",
        "wrong near the limit",
        "worst window",
        "bound",
    ]);
    for AlgorithmResult { algorithm, stats, total_error, worst, bound } in results {
        if is_strict(*algorithm) {
            part.record_target(&MAX_FALSE_ALLOWS_OF_STRICT_ALGORITHMS, stats.false_allows as f64);
        }
        table.add_row([
            format!("`{algorithm}`"),
            format_share(stats.allowed, stats.decisions),
            format_share(stats.false_allows, stats.decisions),
            format_share(stats.false_denies, stats.decisions),
            format_percent(total_error / stats.wrong().max(1) as f64),
            format_share(stats.near_limit_wrong, stats.near_limit),
            format!("{worst:.0} %"),
            format!("{bound:.0} %"),
        ]);
    }
    part.add_table(&table);
}

/// Draws charts of the results with all sets of arrivals, and adds them to the report.
pub fn draw(part: &mut ReportPart, arrivals: &[ArrivalsResult]) -> Result<(), Box<dyn Error>> {
    part.add_text(CHARTS_INTRODUCTION);
    let names = Algorithm::ALL.map(|algorithm| algorithm.name());
    let bar = |result: &AlgorithmResult| {
        (result.stats.wrong_percent(), format_percent(result.stats.wrong_percent()))
    };
    let group = |kind: &ArrivalsResult| BarGroup {
        name: kind.name.to_owned(),
        bars: kind.results.iter().map(bar).collect(),
    };
    let groups: Vec<BarGroup> = arrivals.iter().map(group).collect();
    let svg = chart::grouped_bar_chart("Wrong decisions, share of all requests", &names, &groups)?;
    part.add_chart("accuracy-wrong", "Wrong decisions by algorithm and arrivals", svg);

    let (mut bars, mut marks) = (Vec::new(), Vec::new());
    for (nth, algorithm) in Algorithm::ALL.into_iter().enumerate() {
        let algorithm_results = || arrivals.iter().map(|kind| &kind.results[nth]);
        let worst = algorithm_results().map(|result| result.worst).fold(0.0, f64::max);
        let label = format!("{worst:.0} %");
        bars.push(Bar { name: algorithm.to_string(), value: worst, label, is_highlighted: true });
        marks.push(algorithm_results().map(|result| result.bound).fold(0.0, f64::max));
    }
    let title = "Maximum allowed in any window, as a share of max: worst of all arrivals";
    let svg = chart::bar_chart_with_marks(title, &bars, &marks, "proven bound")?;
    part.add_chart("accuracy-worst", "The worst window of each algorithm and its bound", svg);
    Ok(())
}

/// Formats `part` as a percentage of `total` with two significant digits.
pub fn format_share(part: u64, total: u64) -> String {
    format_percent(percent(part, total))
}

/// Formats a percentage with two significant digits, for example 0.51 %.
pub fn format_percent(percent: f64) -> String {
    match percent {
        0.0 => "0".to_owned(),
        10.0.. => format!("{percent:.0} %"),
        1.0.. => format!("{percent:.1} %"),
        _ => format!("{percent:.*} %", (1.0 - percent.log10().floor()) as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_have_two_significant_digits() {
        let formatted = [0.0, 0.004_23, 0.51, 1.04, 12.3, 100.0].map(format_percent);
        assert_eq!(formatted, ["0", "0.0042 %", "0.51 %", "1.0 %", "12 %", "100 %"]);
    }
}
