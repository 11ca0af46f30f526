//! Measures the accuracy of `sliding_window` with limits of different sizes, and draws a chart.

use std::error::Error;
use std::time::Duration;

use lab::accuracy::{AccuracyStats, measure_accuracy, percent};
use lab::arrivals::ArrivalPattern;
use lab::chart::{LineChart, Series};
use lab::part::{Effort, ReportPart};
use lab::table::MarkdownTable;
use slidegate::{Algorithm, Limit, Quota};

use crate::results::format_percent;

const LIMIT_MAXIMUMS_TO_MEASURE: [u64; 7] = [10, 30, 100, 300, 1_000, 3_000, 10_000];

const LIMIT_WINDOW: Duration = Duration::from_secs(10);

const KEY_COUNT: u64 = 10;

/// Average request rates of the measurement, relative to the rate that the limit allows.
const RELATIVE_LOADS: [f64; 4] = [0.8, 0.9, 1.0, 1.1];

const SECTION_INTRODUCTION: &str = "\
### Accuracy by the size of the limit

`sliding_window` treats the requests of the previous window as evenly spread. For random arrivals (Poisson) the \
error is about the square root of the number of requests, which is a smaller share of a larger limit. So a large \
limit is almost never wrong at request rates below the limit. At a request rate equal to the limit the window is \
always almost full, so a single unit decides: many decisions are wrong by a few units, even for a large limit. The \
table shows the wrong decisions of `sliding_window` among the decisions within 20 % of the limit, by the request \
rate relative to the limit, and the mean error of the wrong decisions as a share of max.";

/// Measures each size of the limit with each relative load, and adds the table and the chart to the report.
pub fn run(effort: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    let requests = effort.pick(2_000_000, 200_000);
    part.progress.add_steps(LIMIT_MAXIMUMS_TO_MEASURE.len());
    part.add_text(SECTION_INTRODUCTION);
    let columns =
        RELATIVE_LOADS.iter().flat_map(|load| [format!("{load}x: wrong"), "mean error".to_owned()]);
    let mut table = MarkdownTable::new(["max".to_owned()].into_iter().chain(columns));
    let mut lines =
        RELATIVE_LOADS.map(|load| Series { name: format!("{load}x"), points: Vec::new() });
    for max in LIMIT_MAXIMUMS_TO_MEASURE {
        part.progress.begin_step(&format!("a limit of {max}"));
        let limit = Limit::new(Quota::new(max, LIMIT_WINDOW)?, Algorithm::SlidingWindow)?;
        let windows = (requests / KEY_COUNT / max).max(20);
        let mut row = vec![max.to_string()];
        for (line, load) in lines.iter_mut().zip(RELATIVE_LOADS) {
            let stats = measure_accuracy_with_poisson_arrivals(&limit, load, windows)?;
            let mean_error = percent(stats.error_units, max) / stats.wrong().max(1) as f64;
            line.points.push((max as f64, stats.near_limit_wrong_percent()));
            row.extend([
                format_percent(stats.near_limit_wrong_percent()),
                format_percent(mean_error),
            ]);
        }
        table.add_row(row);
    }
    part.add_table(&table);
    // The legend then has the same order as the lines.
    lines.reverse();
    let chart = LineChart {
        title: "sliding_window, Poisson arrivals by request rate: wrong decisions near the limit",
        x_label: "max",
        y_label: "% of decisions within 20 % of the limit",
        is_log_x: true,
        lines: &lines,
    };
    part.add_chart("accuracy-size", "Wrong decisions near the limit, by its size", chart.draw()?);
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
