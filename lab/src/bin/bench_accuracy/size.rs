//! Wrong decisions by the size of the limit.

use std::error::Error;
use std::time::Duration;

use lab::accuracy::{Tally, judge, percent};
use lab::arrivals::Pattern;
use lab::chart::{Line, Lines};
use lab::part::{Effort, Part};
use lab::table::Table;
use slidegate::{Algorithm, Limit, Quota};

use crate::pool::shown;

const SIZES: [u64; 7] = [10, 30, 100, 300, 1_000, 3_000, 10_000];

const WINDOW: Duration = Duration::from_secs(10);

const KEYS: u64 = 10;

/// Requests beside what the limit holds, on average.
const PACES: [f64; 4] = [0.8, 0.9, 1.0, 1.1];

const TEXT: &str = "\
### By the size of the limit

`sliding_window` takes the requests of the previous window as spread evenly over it. Of requests that come by chance \
(Poisson) that is wrong by about the square root of their number, which is a smaller share of a larger limit. So under a \
pace below the limit a large one is hardly ever wrong. At the pace that it holds a limit is always about to be full, so \
that a unit decides, and many decisions are wrong by few units, however large it is. The table has the wrong decisions \
of `sliding_window` among those within 20 % of the limit, by how much is asked beside what it holds, and how far from the \
limit the wrong ones were, of max.";

/// Measures each size.
pub fn run(effort: Effort, part: &mut Part) -> Result<(), Box<dyn Error>> {
    let requests = effort.pick(2_000_000, 200_000);
    part.progress.expect(SIZES.len());
    part.say(TEXT);
    let columns = PACES.iter().flat_map(|pace| [format!("{pace}x: wrong"), "off by".to_owned()]);
    let mut table = Table::new(["max".to_owned()].into_iter().chain(columns));
    let mut lines = PACES.map(|pace| Line { name: format!("{pace}x"), points: Vec::new() });
    for max in SIZES {
        part.progress.step(&format!("a limit of {max}"));
        let limit = Limit::new(Quota::new(max, WINDOW)?, Algorithm::SlidingWindow)?;
        let windows = (requests / KEYS / max).max(20);
        let mut row = vec![max.to_string()];
        for (line, pace) in lines.iter_mut().zip(PACES) {
            let all = measure(&limit, pace, windows)?;
            let off = percent(all.off, max) / all.wrong().max(1) as f64;
            line.points.push((max as f64, all.near_wrong_percent()));
            row.extend([shown(all.near_wrong_percent()), shown(off)]);
        }
        table.row(row);
    }
    part.table(&table);
    // The upper line has the upper name.
    lines.reverse();
    let picture = Lines {
        title: "sliding_window, Poisson arrivals by their pace: wrong decisions near the limit",
        x: "max",
        y: "% of those within 20 % of the limit",
        is_log_x: true,
        lines: &lines,
    };
    part.chart("accuracy-size", "Wrong decisions near the limit, by its size", picture.draw()?);
    Ok(())
}

fn measure(limit: &Limit, pace: f64, windows: u64) -> Result<Tally, Box<dyn Error>> {
    let (rate, window_us) = (pace * limit.quota().max() as f64, WINDOW.as_micros() as u64);
    let mut all = Tally::default();
    for key in 0..KEYS {
        all += judge(limit, key, &Pattern::Poisson.arrivals(window_us, rate, windows, key))?;
    }
    Ok(all)
}
