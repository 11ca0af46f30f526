//! Measures the accuracy of `sliding_window` with limits of different sizes, and draws a chart.

use std::error::Error;
use std::time::Duration;

use lab::accuracy::{AccuracyStats, measure_accuracy};
use lab::arrivals::ArrivalPattern;
use lab::chart::{LineChart, Series};
use lab::program::BenchRun;
use slidegate::{Algorithm, Limit, Quota};

const LIMIT_MAXIMUMS_TO_MEASURE: [u64; 7] = [10, 30, 100, 300, 1_000, 3_000, 10_000];

const LIMIT_WINDOW: Duration = Duration::from_secs(10);

const KEY_COUNT: u64 = 10;

/// Average request rates of the measurement, relative to the rate that the limit allows.
const RELATIVE_LOADS: [f64; 4] = [0.9, 1.0, 1.5, 2.0];

/// Measures each size of the limit with each relative load, and draws a chart of the lost requests.
pub fn run(run: &mut BenchRun) -> Result<(), Box<dyn Error>> {
    let requests = run.effort.full_or_quick(1_000_000, 100_000);
    let mut lines =
        RELATIVE_LOADS.map(|load| Series { name: format!("{load}x"), points: Vec::new() });
    for max in LIMIT_MAXIMUMS_TO_MEASURE {
        let limit = Limit::new(Quota::new(max, LIMIT_WINDOW)?, Algorithm::default())?;
        let windows = (requests / KEY_COUNT / max).max(20);
        let (row, mut max_error_units) = (format!("max {max}"), 0);
        for (line, load) in lines.iter_mut().zip(RELATIVE_LOADS) {
            let stats = measure_accuracy_with_poisson_arrivals(&limit, load, windows)?;
            let percent = stats.percent_of_exact_log();
            line.points.push((max as f64, 100.0 - percent));
            run.record(["accuracy-size", &row, &line.name], percent);
            max_error_units = max_error_units.max(stats.max_error_units);
        }
        run.record(["accuracy-size", &row, "largest error, units"], max_error_units as f64);
    }
    // Reverses the order, so that the legend has the same order as the lines in the chart.
    lines.reverse();
    let chart = LineChart {
        title: "sliding_window, Poisson arrivals by request rate: requests lost",
        x_label: "max",
        y_label: "% fewer requests than an exact log",
        is_log_x: true,
        lines: &lines,
    };
    run.write_chart("accuracy-size", &chart.draw()?)
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
