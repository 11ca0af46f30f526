//! Measures several contenders in rounds. The contenders take turns in each round, so noise affects all of them
//! equally.

use std::error::Error;

/// The result of one turn of a contender.
#[derive(Clone, Copy, Default)]
pub struct TurnResult {
    /// The number of requests per second.
    pub per_second: f64,
    /// The CPU time of the server per request in microseconds, which is equal to seconds per million requests.
    pub cpu_us: f64,
    /// The share of denied requests, from 0 to 1.
    pub denied: f64,
}

impl TurnResult {
    /// Returns a result in which each value is the median over all rounds.
    pub fn median(rounds: &[Self]) -> Self {
        Self {
            per_second: median(rounds, |round| round.per_second),
            cpu_us: median(rounds, |round| round.cpu_us),
            denied: median(rounds, |round| round.denied),
        }
    }
}

/// Returns the median of a value over all rounds; 0 if there are no rounds.
pub fn median<T>(rounds: &[T], value: impl Fn(&T) -> f64) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(value).collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Runs rounds in which the contenders take turns. Each round starts with a different contender. `turn` receives the
/// index of a contender and runs its turn. Returns the results of each contender. An additional first round fills
/// tables and caches, and its results are dropped.
pub fn run_interleaved<T>(
    rounds: usize,
    contenders: usize,
    mut turn: impl FnMut(usize) -> Result<T, Box<dyn Error>>,
) -> Result<Vec<Vec<T>>, Box<dyn Error>> {
    let mut all: Vec<Vec<T>> = (0..contenders).map(|_| Vec::new()).collect();
    for round in 0..=rounds {
        for offset in 0..contenders {
            let index = (round + offset) % contenders;
            let measured = turn(index)?;
            if round > 0 {
                all[index].push(measured);
            }
        }
    }
    Ok(all)
}
