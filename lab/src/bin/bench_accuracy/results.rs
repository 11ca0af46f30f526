//! Sums up the accuracy of each algorithm over many keys, loads or limits, and shows it in tables and charts.

use std::error::Error;

use lab::accuracy::{AccuracyStats, is_strict, percent, proven_bound};
use lab::chart::{self, Bar, BarGroup};
use lab::part::ReportPart;
use lab::table::MarkdownTable;
use lab::targets::{BenchTarget, TargetBound};
use slidegate::{Algorithm, Limit};

use crate::{MEASURED_ALGORITHMS, algorithm_label};

const MAX_FALSE_ALLOWS_OF_STRICT_ALGORITHMS: BenchTarget = BenchTarget {
    text: "`sliding_window`, `sliding_log` and `sliding_buckets`, any traffic: false allows",
    bound: TargetBound::AtMost(0.0),
    limited_by: "",
};

const CHARTS_HEADING: &str = "### All arrivals in two charts";

const APPENDIX_INTRODUCTION: &str = "\
### Appendix: wrong decisions

For each request, an exact log of the requests that the algorithm itself allowed determines the correct decision: to \
allow the request if at most max requests are then allowed in the window that ends now. Under overload a limit is at \
max all the time. An algorithm that counts one unit too many then denies request after request wrongly, although it \
allows almost as many requests as an exact log. These shares therefore say little about the requests that clients get.

- **false allows**, **false denies**: requests that were allowed although the window was full, and requests that were \
denied although they fitted. Both are shares of all requests.
- **mean error**: the mean distance of wrong decisions from the limit, as a share of max.
- **wrong near the limit**: the share of wrong decisions among the requests within 20 % of the limit (the exact \
count, including the request, is between 0.8 max and 1.2 max). Decisions far from the limit are always right.";

/// The results of all algorithms with one set of arrivals, such as the recorded arrivals.
pub struct ArrivalsResult {
    /// The name of the set of arrivals in charts.
    pub name: &'static str,
    /// The results in the order of [`MEASURED_ALGORITHMS`].
    pub results: Vec<AlgorithmResult>,
}

/// The accuracy of one algorithm, summed up over several limits.
#[derive(Clone, Copy)]
pub struct AlgorithmResult {
    algorithm: Algorithm,
    stats: AccuracyStats,
    /// The sum of the errors of all wrong decisions, in percent of the maximum of the limit.
    total_error: f64,
    /// The largest error of a wrong decision, in percent of the maximum of the limit.
    largest_error: f64,
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
        largest_error: 0.0,
        worst: 0.0,
        bound: 0.0,
    };
    MEASURED_ALGORITHMS.map(result).to_vec()
}

impl AlgorithmResult {
    /// Returns the name of the algorithm in tables.
    pub fn label(&self) -> String {
        algorithm_label(self.algorithm)
    }

    /// Returns the number of allowed requests as a percentage of the requests that an exact log allows.
    pub fn percent_of_exact_log(&self) -> f64 {
        self.stats.percent_of_exact_log()
    }

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
        self.largest_error =
            self.largest_error.max(percent(stats.max_error_units, limit.quota().max()));
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
        "of an exact log",
        "worst window",
        "bound",
        "false allows",
        "largest error",
    ]);
    for result in results {
        let AlgorithmResult { algorithm, stats, largest_error, worst, bound, .. } = result;
        if is_strict(*algorithm) {
            part.record_target(&MAX_FALSE_ALLOWS_OF_STRICT_ALGORITHMS, stats.false_allows as f64);
        }
        table.add_row([
            result.label(),
            format!("{:.1} %", stats.percent_of_exact_log()),
            format!("{worst:.0} %"),
            format!("{bound:.0} %"),
            format_share(stats.false_allows, stats.allowed),
            format_percent(*largest_error),
        ]);
    }
    part.add_table(&table);
}

/// Adds a table with the shares of wrong decisions for each set of arrivals to the appendix.
pub fn add_wrong_decisions_to_appendix(part: &mut ReportPart, arrivals: &[ArrivalsResult]) {
    part.add_to_appendix(APPENDIX_INTRODUCTION);
    let mut table = MarkdownTable::new([
        "arrivals",
        "algorithm",
        "false allows",
        "false denies",
        "mean error",
        "wrong near the limit",
    ]);
    for kind in arrivals {
        for result in &kind.results {
            let AlgorithmResult { stats, total_error, .. } = result;
            table.add_row([
                kind.name.to_owned(),
                result.label(),
                format_share(stats.false_allows, stats.decisions),
                format_share(stats.false_denies, stats.decisions),
                format_percent(total_error / stats.wrong().max(1) as f64),
                format_share(stats.near_limit_wrong, stats.near_limit),
            ]);
        }
    }
    part.add_to_appendix(table);
}

/// Returns the results that the charts show: one for each algorithm, in the order of [`MEASURED_ALGORITHMS`].
fn results_in_charts(kind: &ArrivalsResult) -> impl Iterator<Item = &AlgorithmResult> {
    kind.results.iter().filter(|result| {
        !matches!(result.algorithm, Algorithm::SlidingWindow { resolution: Some(_) })
    })
}

/// Draws charts of the results with all sets of arrivals, and adds them to the report. There must be at least one set.
pub fn draw(part: &mut ReportPart, arrivals: &[ArrivalsResult]) -> Result<(), Box<dyn Error>> {
    part.add_text(CHARTS_HEADING);
    let names: Vec<&str> =
        results_in_charts(&arrivals[0]).map(|result| result.algorithm.name()).collect();
    let bar = |result: &AlgorithmResult| {
        let percent = result.percent_of_exact_log();
        (percent, format!("{percent:.1} %"))
    };
    let group = |kind: &ArrivalsResult| BarGroup {
        name: kind.name.to_owned(),
        bars: results_in_charts(kind).map(bar).collect(),
    };
    let groups: Vec<BarGroup> = arrivals.iter().map(group).collect();
    let title = "Allowed requests, as a share of the requests that an exact log allows";
    let svg = chart::grouped_bar_chart(title, &names, &groups)?;
    part.add_chart("accuracy-allowed", "Allowed requests by algorithm and arrivals", svg);

    let (mut bars, mut marks) = (Vec::new(), Vec::new());
    for (nth, name) in names.iter().enumerate() {
        let algorithm_results =
            || arrivals.iter().filter_map(|kind| results_in_charts(kind).nth(nth));
        let worst = algorithm_results().map(|result| result.worst).fold(0.0, f64::max);
        let (name, label) = ((*name).to_owned(), format!("{worst:.0} %"));
        bars.push(Bar { name, value: worst, label, is_highlighted: true });
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
