//! Measures how right each algorithm decides, beside an exact log of what it allowed itself.
//!
//! `cargo run --release -p lab --bin bench_accuracy [-- --quick | arrivals | size | edge-burst]`. Nothing here is a time:
//! the clock is set by hand and all chance is seeded, so every run has the same figures. Another recording:
//! `ARRIVALS=FILE`, in the format of `lab/data/arrivals.txt`.

mod edge;
mod patterns;
mod picture;
mod pool;
mod recorded;
mod size;

use std::error::Error;
use std::time::Duration;

use lab::part::{Effort, Part};
use slidegate::{Algorithm, Limit, Quota};

fn main() -> Result<(), Box<dyn Error>> {
    lab::part::main(&[("arrivals", arrivals), ("size", size::run), ("edge-burst", picture::run)])
}

/// All kinds of arrivals, and the pictures of them together.
fn arrivals(effort: Effort, part: &mut Part) -> Result<(), Box<dyn Error>> {
    let mut kinds = patterns::run(effort, part)?;
    kinds.push(edge::run(part)?);
    kinds.push(recorded::run(effort, part)?);
    pool::draw(part, &kinds)
}

/// A limit of each algorithm.
fn limits(max: u64, window: Duration) -> Result<Vec<Limit>, Box<dyn Error>> {
    let quota = Quota::new(max, window)?;
    let limits = Algorithm::ALL.into_iter().map(|algorithm| Ok(Limit::new(quota, algorithm)?));
    limits.collect()
}
