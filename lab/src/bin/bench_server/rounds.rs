//! Rounds in which all contenders take turns.

use std::error::Error;

/// What came of a contender's turn.
#[derive(Clone, Copy, Default)]
pub struct Measured {
    /// Requests a second.
    pub per_second: f64,
    /// CPU time of the server for a request, in microseconds; so in seconds for a million.
    pub cpu_us: f64,
    /// The share that was denied.
    pub denied: f64,
}

impl Measured {
    /// Of each figure the median.
    pub fn median(rounds: &[Self]) -> Self {
        Self {
            per_second: median(rounds, |round| round.per_second),
            cpu_us: median(rounds, |round| round.cpu_us),
            denied: median(rounds, |round| round.denied),
        }
    }
}

/// The median of a figure; zero if there are no rounds.
pub fn median<T>(rounds: &[T], of: impl Fn(&T) -> f64) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(of).collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Rounds in which so many contenders take turns, and begin in turn: of each what its turns came to. One round more is
/// made and forgotten: it fills tables and caches.
pub fn interleaved<T>(
    rounds: usize,
    contenders: usize,
    mut turn: impl FnMut(usize) -> Result<T, Box<dyn Error>>,
) -> Result<Vec<Vec<T>>, Box<dyn Error>> {
    let mut all: Vec<Vec<T>> = (0..contenders).map(|_| Vec::new()).collect();
    for round in 0..=rounds {
        for place in 0..contenders {
            let which = (round + place) % contenders;
            let measured = turn(which)?;
            if round > 0 {
                all[which].push(measured);
            }
        }
    }
    Ok(all)
}
