//! Draws a chart of the requests that each algorithm allows over time around the edge of a window.

use std::error::Error;
use std::time::Duration;

use lab::accuracy::{AccuracyMeter, MIDNIGHT_US};
use lab::chart::{LineChart, Series};
use lab::program::BenchRun;
use slidegate::{Algorithm, Align, Limit, Quota};

const MAX_UNITS_PER_WINDOW: u64 = 100;

const LIMIT_WINDOW_US: u64 = 10_000_000;

/// The number of points per window in a chart.
const CHART_POINTS_PER_WINDOW: u64 = 200;

/// Draws the chart of two bursts: max requests within a twentieth of a window before an edge, max requests within a
/// twentieth after it, and then none.
pub fn run(run: &mut BenchRun) -> Result<(), Box<dyn Error>> {
    let svg = draw_allowed_requests_chart(
        "A burst on each side of a window edge",
        generate_evenly_spaced_times(0.95..1.05, 20),
        2.2,
    )?;
    run.write_chart("edge-burst", &svg)
}

/// Returns evenly spaced request times in microseconds. The start and the end of the range `windows` are multiples of
/// the window length. In each window there are `times` times as many requests as the limit allows.
fn generate_evenly_spaced_times(windows: std::ops::Range<f64>, times: u64) -> Vec<u64> {
    let step = LIMIT_WINDOW_US / (times * MAX_UNITS_PER_WINDOW);
    let us = |windows: f64| (windows * LIMIT_WINDOW_US as f64) as u64;
    (us(windows.start)..us(windows.end)).step_by(step as usize).collect()
}

fn draw_allowed_requests_chart(
    title: &str,
    request_times: Vec<u64>,
    end: f64,
) -> Result<String, Box<dyn Error>> {
    let mut lines: Vec<Series> = Vec::new();
    for algorithm in Algorithm::ALL {
        let points = measure_allowed_requests_over_time(
            algorithm,
            &request_times,
            (end * CHART_POINTS_PER_WINDOW as f64) as u64,
        )?;
        // Algorithms with equal lines share one line, and one entry of the legend.
        match lines.iter_mut().find(|line| line.points == points) {
            Some(line) => line.name += &format!(", {algorithm}"),
            None => lines.push(Series { name: algorithm.to_string(), points }),
        }
    }
    let (x_label, y_label) =
        ("time, in windows: the edge is at 1", "allowed within the last window");
    LineChart { title, x_label, y_label, is_log_x: false, lines: &lines }
        .draw_with_reference_line(MAX_UNITS_PER_WINDOW as f64, "max")
}

/// Returns the points of a chart line. The x value is the time, in window lengths. The y value is the number of
/// requests that were allowed in the window that ends at this time. The first point is at x = 0.8.
fn measure_allowed_requests_over_time(
    algorithm: Algorithm,
    request_times: &[u64],
    samples: u64,
) -> Result<Vec<(f64, f64)>, Box<dyn Error>> {
    let algorithm = match algorithm {
        Algorithm::FixedWindow { .. } => Algorithm::FixedWindow { align: Align::Clock },
        other => other,
    };
    let limit = Limit::new(
        Quota::new(MAX_UNITS_PER_WINDOW, Duration::from_micros(LIMIT_WINDOW_US))?,
        algorithm,
    )?;
    let mut meter = AccuracyMeter::new(&limit, 1)?;
    let (mut request_times, mut points) = (request_times.iter().peekable(), Vec::new());
    for sample in CHART_POINTS_PER_WINDOW * 4 / 5..=samples {
        let now_us = sample * LIMIT_WINDOW_US / CHART_POINTS_PER_WINDOW;
        while let Some(&at_us) = request_times.next_if(|&&at_us| at_us <= now_us) {
            meter.check(MIDNIGHT_US + at_us);
        }
        let units_in_window = meter.units_in_window(MIDNIGHT_US + now_us);
        points.push((sample as f64 / CHART_POINTS_PER_WINDOW as f64, units_in_window as f64));
    }
    Ok(points)
}
