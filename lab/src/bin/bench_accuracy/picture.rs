//! What each algorithm allows over time around a window's edge.

use std::error::Error;
use std::time::Duration;

use lab::accuracy::{Judge, MIDNIGHT_US};
use lab::chart::{Line, Lines};
use lab::part::{Effort, Part};
use slidegate::{Algorithm, Align, Limit, Quota};

const MAX: u64 = 100;

const WINDOW_US: u64 = 10_000_000;

/// Looks at the counts in each window.
const LOOKS: u64 = 200;

const BURST: &str = "\
### At a window's edge

A client sends as many requests as the limit holds within a twentieth of a window before an edge, as many again within \
a twentieth after it, and then none. The lines are what it was given within the last window: above the dashed line it \
had more than max. (`fixed_window` has its edges on the calendar here, so that all algorithms have theirs at 1.)";

const GREEDY: &str = "\
A client that goes on asking, ten times as fast as the limit allows, shows what the bounds are about. `sliding_window` \
counts its first burst as if it had been spread over the whole window before the edge, and makes room while that fades; \
`token_bucket` fills at its rate all the time. Both come close to twice max until the burst has left the window. From \
then on they settle. `sliding_log` and `sliding_buckets` never pass max; the buckets make room only when a whole bucket has \
left, a tenth of a window after what it holds.";

/// Draws both.
pub fn run(_: Effort, part: &mut Part) -> Result<(), Box<dyn Error>> {
    part.progress.expect(1);
    part.progress.step("edge-burst");
    part.say(BURST);
    let svg = draw("A burst on each side of a window's edge", at(0.95..1.05, 20), 2.2)?;
    part.chart("edge-burst", "What each algorithm allows around a window's edge", svg);
    part.say(GREEDY);
    let svg = draw("A client that goes on asking from just before an edge", at(0.9..3.5, 10), 3.5)?;
    part.chart("edge-greedy", "What each algorithm allows a client that goes on asking", svg);
    Ok(())
}

/// Moments of requests, in microseconds: so many times max in a window, spread evenly.
fn at(windows: std::ops::Range<f64>, times: u64) -> Vec<u64> {
    let step = WINDOW_US / (times * MAX);
    let us = |windows: f64| (windows * WINDOW_US as f64) as u64;
    (us(windows.start)..us(windows.end)).step_by(step as usize).collect()
}

fn draw(title: &str, asks: Vec<u64>, until: f64) -> Result<String, Box<dyn Error>> {
    let mut lines: Vec<Line> = Vec::new();
    for algorithm in Algorithm::ALL {
        let points = given(algorithm, &asks, (until * LOOKS as f64) as u64)?;
        // Lines that cover each other are one.
        match lines.iter_mut().find(|line| line.points == points) {
            Some(line) => line.name += &format!(", {algorithm}"),
            None => lines.push(Line { name: algorithm.to_string(), points }),
        }
    }
    let (x, y) = ("time, in windows: the edge is at 1", "allowed within the last window");
    Lines { title, x, y, is_log_x: false, lines: &lines }.draw_with_level(MAX as f64, "max")
}

/// What is counted in the last window, look by look, from four fifths of a window on.
fn given(
    algorithm: Algorithm,
    asks: &[u64],
    looks: u64,
) -> Result<Vec<(f64, f64)>, Box<dyn Error>> {
    let algorithm = match algorithm {
        Algorithm::FixedWindow { .. } => Algorithm::FixedWindow { align: Align::Clock },
        other => other,
    };
    let limit = Limit::new(Quota::new(MAX, Duration::from_micros(WINDOW_US))?, algorithm)?;
    let mut judge = Judge::new(&limit, 1)?;
    let (mut asks, mut points) = (asks.iter().peekable(), Vec::new());
    for look in LOOKS * 4 / 5..=looks {
        let now_us = look * WINDOW_US / LOOKS;
        while let Some(&at_us) = asks.next_if(|&&at_us| at_us <= now_us) {
            judge.ask(MIDNIGHT_US + at_us);
        }
        let inside = judge.inside(MIDNIGHT_US + now_us);
        points.push((look as f64 / LOOKS as f64, inside as f64));
    }
    Ok(points)
}
