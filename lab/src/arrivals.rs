//! When requests of one key come: made ones, seeded, the same in every run.

use fastrand::Rng;

use crate::accuracy::MIDNIGHT_US;

/// Requests beside what the limit holds, on average.
pub const LOADS: [f64; 4] = [0.8, 1.0, 1.5, 2.0];

/// A kind of arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Each as long after the one before.
    Even,
    /// Each on its own, at random: a Poisson process.
    Poisson,
    /// Spells of four times the pace, and spells of silence: of random lengths, a quarter of a window and three
    /// quarters on average.
    Bursts,
}

/// All kinds.
pub const PATTERNS: [Pattern; 3] = [Pattern::Even, Pattern::Poisson, Pattern::Bursts];

impl Pattern {
    /// What it is called in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Even => "even pace",
            Self::Poisson => "Poisson",
            Self::Bursts => "bursts",
        }
    }

    /// Moments over so many windows, `rate` in each on average. They begin anywhere in a window, by the seed.
    pub fn arrivals(self, window_us: u64, rate: f64, windows: u64, seed: u64) -> Vec<u64> {
        let mut rng = Rng::with_seed(seed);
        let begin = MIDNIGHT_US + rng.u64(0..window_us);
        let (window, until) = (window_us as f64, (window_us * windows) as f64);
        let mut at = match self {
            Self::Even => every(window / rate, until),
            Self::Poisson => random(window / rate, until, &mut rng),
            Self::Bursts => bursts(window, rate, until, &mut rng),
        };
        at.iter_mut().for_each(|at| *at += begin);
        at
    }
}

fn every(step: f64, until: f64) -> Vec<u64> {
    (0..(until / step) as u64).map(|nth| (nth as f64 * step) as u64).collect()
}

fn random(mean: f64, until: f64, rng: &mut Rng) -> Vec<u64> {
    let (mut now, mut at) = (exponential(mean, rng), Vec::new());
    while now < until {
        at.push(now as u64);
        now += exponential(mean, rng);
    }
    at
}

fn bursts(window: f64, rate: f64, until: f64, rng: &mut Rng) -> Vec<u64> {
    let (mut now, mut at) = (0.0, Vec::new());
    while now < until {
        let spell = exponential(window / 4.0, rng);
        let burst = random(window / (4.0 * rate), spell, rng);
        at.extend(burst.iter().map(|after| now as u64 + after));
        now += spell + exponential(0.75 * window, rng);
    }
    at
}

fn exponential(mean: f64, rng: &mut Rng) -> f64 {
    // The argument is in (0, 1].
    -mean * (1.0 - rng.f64()).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_keeps_time_its_rate_and_its_seed() {
        for pattern in PATTERNS {
            let at = pattern.arrivals(1_000_000, 50.0, 2_000, 3);
            assert!(at.is_sorted(), "{pattern:?}");
            let off = at.len() as f64 / 100_000.0 - 1.0;
            assert!(off.abs() < 0.05, "{pattern:?} is off by {off}");
            assert_eq!(at, pattern.arrivals(1_000_000, 50.0, 2_000, 3));
            assert_ne!(at, pattern.arrivals(1_000_000, 50.0, 2_000, 4));
        }
    }
}
