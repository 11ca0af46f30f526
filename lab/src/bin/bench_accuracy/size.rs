//! Measures the accuracy of `sliding_window` with limits of different sizes, and draws a chart.

use std::error::Error;
use std::time::Duration;

use lab::accuracy::{AccuracyStats, measure_accuracy};
use lab::arrivals::ArrivalPattern;
use lab::chart::{LineChart, Series};
use lab::part::{Effort, ReportPart};
use lab::table::MarkdownTable;
use slidegate::{Algorithm, Limit, Quota};

const LIMIT_MAXIMUMS_TO_MEASURE: [u64; 7] = [10, 30, 100, 300, 1_000, 3_000, 10_000];

const LIMIT_WINDOW: Duration = Duration::from_secs(10);

const KEY_COUNT: u64 = 10;

/// Average request rates of the measurement, relative to the rate that the limit allows.
const RELATIVE_LOADS: [f64; 4] = [0.9, 1.0, 1.5, 2.0];

const SECTION_INTRODUCTION: &str = "\
### Accuracy by the size of the limit

`sliding_window` with the default resolution of 32 counts up to ceil(max / 32) units in one entry, until a window after \
the last of them. A limit of at most 32 is exact. A larger limit counts at most ceil(max / 32) - 1 units too many. The \
table shows the requests that it allowed, as a share of the requests that an exact log allows, for random arrivals \
(Poisson) by the request rate relative to the limit, and the largest number of units that were still available when a \
request was denied.";

/// Measures each size of the limit with each relative load, and adds the table and the chart to the report.
pub fn run(effort: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    let requests = effort.pick(1_000_000, 100_000);
    part.progress.add_steps(LIMIT_MAXIMUMS_TO_MEASURE.len());
    part.add_text(SECTION_INTRODUCTION);
    let columns = RELATIVE_LOADS.iter().map(|load| format!("{load}x"));
    let columns = ["max".to_owned()].into_iter().chain(columns);
    let mut table = MarkdownTable::new(columns.chain(["largest error, units".to_owned()]));
    let mut lines =
        RELATIVE_LOADS.map(|load| Series { name: format!("{load}x"), points: Vec::new() });
    for max in LIMIT_MAXIMUMS_TO_MEASURE {
        part.progress.begin_step(&format!("a limit of {max}"));
        let limit = Limit::new(Quota::new(max, LIMIT_WINDOW)?, Algorithm::default())?;
        let windows = (requests / KEY_COUNT / max).max(20);
        let (mut row, mut max_error_units) = (vec![max.to_string()], 0);
        for (line, load) in lines.iter_mut().zip(RELATIVE_LOADS) {
            let stats = measure_accuracy_with_poisson_arrivals(&limit, load, windows)?;
            let percent = stats.percent_of_exact_log();
            line.points.push((max as f64, 100.0 - percent));
            row.push(format!("{percent:.2} %"));
            max_error_units = max_error_units.max(stats.max_error_units);
        }
        row.push(max_error_units.to_string());
        table.add_row(row);
    }
    part.add_table(&table);
    // The legend then has the same order as the lines.
    lines.reverse();
    let chart = LineChart {
        title: "sliding_window, Poisson arrivals by request rate: requests lost",
        x_label: "max",
        y_label: "% fewer requests than an exact log",
        is_log_x: true,
        lines: &lines,
    };
    part.add_chart("accuracy-size", "Requests lost, by the size of the limit", chart.draw()?);
    Ok(())
}

fn measure_accuracy_with_poisson_arrivals(
    limit: &Limit,
    load: f64,
    windows: u64,
) -> Result<AccuracyStats, Box<dyn Error>> {
    let (rate, window_us) = (load * limit.quota().max() as f64, LIMIT_WINDOW.as_micros() as u64);
    let mut total = AccuracyStats::default();
    for key in 0..KEY_COUNT {
        total += measure_accuracy(
            limit,
            key,
            &ArrivalPattern::Poisson.arrivals(window_us, rate, windows, key),
        )?;
    }
    Ok(total)
}
