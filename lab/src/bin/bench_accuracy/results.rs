//! Sums up the accuracy of each algorithm over many keys, loads or limits, for a table and a chart.

use std::error::Error;

use lab::accuracy::{AccuracyStats, MEASURED_ALGORITHMS, percent, proven_max_units};
use lab::chart::{BarGroup, grouped_bar_chart};
use lab::program::BenchRun;
use slidegate::{Algorithm, Limit};

/// The results of all algorithms with one set of arrivals, such as the recorded arrivals.
pub struct ArrivalsResult {
    /// The name of the set of arrivals.
    pub name: &'static str,
    /// The results in the order of [`MEASURED_ALGORITHMS`].
    pub results: Vec<AlgorithmResult>,
}

/// The accuracy of one algorithm, summed up over several limits.
#[derive(Clone, Copy)]
pub struct AlgorithmResult {
    algorithm: Algorithm,
    stats: AccuracyStats,
    /// The largest number of units allowed in any window, in percent of the maximum of the limit.
    fullest_window_percent: f64,
}

impl ArrivalsResult {
    /// Creates a result without measurements.
    pub fn new(name: &'static str) -> Self {
        let result = |algorithm| AlgorithmResult {
            algorithm,
            stats: AccuracyStats::default(),
            fullest_window_percent: 0.0,
        };
        Self { name, results: MEASURED_ALGORITHMS.map(result).to_vec() }
    }

    /// Records the results in the column of these arrivals.
    pub fn record(&self, run: &mut BenchRun) {
        for result in &self.results {
            let (row, allowed) = (result.label(), result.stats.percent_of_exact_log());
            run.record(["accuracy-allowed", &row, self.name], allowed);
            run.record(["accuracy-fullest-window", &row, self.name], result.fullest_window_percent);
        }
    }
}

impl AlgorithmResult {
    /// Returns the name of the algorithm in tables, with the resolution if it is not the default.
    pub fn label(&self) -> String {
        match self.algorithm {
            Algorithm::SlidingWindow { resolution: Some(resolution) } => {
                format!("`sliding_window`, resolution {resolution}")
            }
            algorithm => format!("`{algorithm}`"),
        }
    }

    /// Adds the results of a limit, which must use the algorithm of this result.
    ///
    /// # Errors
    /// If the limit allowed more units in a window than its proven bound.
    pub fn add_limit_stats(
        &mut self,
        limit: &Limit,
        stats: &AccuracyStats,
    ) -> Result<(), Box<dyn Error>> {
        let (max, bound) = (limit.quota().max(), proven_max_units(limit));
        if stats.max_in_window > bound {
            return Err(format!(
                "{limit} allowed {} in a window, more than {bound}",
                stats.max_in_window
            )
            .into());
        }
        self.stats += *stats;
        self.fullest_window_percent =
            self.fullest_window_percent.max(percent(stats.max_in_window, max));
        Ok(())
    }
}

/// Draws a chart of the allowed requests with all sets of arrivals. Other resolutions than the default are left out.
pub fn draw_accuracy_chart(
    run: &BenchRun,
    arrivals: &[ArrivalsResult],
) -> Result<(), Box<dyn Error>> {
    let is_in_chart = |result: &&AlgorithmResult| {
        !matches!(result.algorithm, Algorithm::SlidingWindow { resolution: Some(_) })
    };
    let names: Vec<&str> = arrivals[0]
        .results
        .iter()
        .filter(is_in_chart)
        .map(|result| result.algorithm.name())
        .collect();
    let bar = |result: &AlgorithmResult| {
        let percent = result.stats.percent_of_exact_log();
        (percent, format!("{percent:.1} %"))
    };
    let group = |kind: &ArrivalsResult| BarGroup {
        name: kind.name.to_owned(),
        bars: kind.results.iter().filter(is_in_chart).map(bar).collect(),
    };
    let groups: Vec<BarGroup> = arrivals.iter().map(group).collect();
    let title = "Allowed requests, as a share of the requests that an exact log allows";
    run.write_chart("accuracy-allowed", &grouped_bar_chart(title, &names, &groups)?)
}
