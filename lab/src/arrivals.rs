//! Generates the arrival times of the requests of one key, for benchmarks. The random numbers are seeded, so every run
//! has the same times.

use fastrand::Rng;

use crate::accuracy::MIDNIGHT_US;

/// Average request rates of the synthetic arrivals, relative to the rate that the limit allows.
pub const RELATIVE_LOADS: [f64; 4] = [0.8, 1.0, 1.5, 2.0];

/// A random or regular pattern of request times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrivalPattern {
    /// Requests at constant intervals.
    Even,
    /// Independent requests at random times: a Poisson process.
    Poisson,
    /// Bursts at four times the average rate, separated by pauses without requests. The lengths are random: on average,
    /// a burst lasts a quarter of a window, and a pause lasts three quarters of a window.
    Bursts,
}

/// All arrival patterns, in the order of the report.
pub const PATTERNS: [ArrivalPattern; 3] =
    [ArrivalPattern::Even, ArrivalPattern::Poisson, ArrivalPattern::Bursts];

impl ArrivalPattern {
    /// Returns the name of the pattern in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Even => "constant rate",
            Self::Poisson => "Poisson",
            Self::Bursts => "bursts",
        }
    }

    /// Returns sorted request times in microseconds for `windows` windows, with `rate` requests per window on average.
    /// `seed` determines all random numbers, among them the position in a window at which the times start.
    pub fn arrivals(self, window_us: u64, rate: f64, windows: u64, seed: u64) -> Vec<u64> {
        let mut rng = Rng::with_seed(seed);
        let start_us = MIDNIGHT_US + rng.u64(0..window_us);
        let (window, length) = (window_us as f64, (window_us * windows) as f64);
        let mut times_us = match self {
            Self::Even => generate_evenly_spaced_times(window / rate, length),
            Self::Poisson => generate_poisson_times(window / rate, length, &mut rng),
            Self::Bursts => generate_burst_times(window, rate, length, &mut rng),
        };
        times_us.iter_mut().for_each(|time_us| *time_us += start_us);
        times_us
    }
}

fn generate_evenly_spaced_times(step: f64, length: f64) -> Vec<u64> {
    (0..(length / step) as u64).map(|nth| (nth as f64 * step) as u64).collect()
}

fn generate_poisson_times(mean: f64, length: f64, rng: &mut Rng) -> Vec<u64> {
    let (mut now, mut times_us) = (sample_exponential_interval(mean, rng), Vec::new());
    while now < length {
        times_us.push(now as u64);
        now += sample_exponential_interval(mean, rng);
    }
    times_us
}

fn generate_burst_times(window: f64, rate: f64, length: f64, rng: &mut Rng) -> Vec<u64> {
    let (mut now, mut times_us) = (0.0, Vec::new());
    while now < length {
        let burst_length = sample_exponential_interval(window / 4.0, rng);
        let burst = generate_poisson_times(window / (4.0 * rate), burst_length, rng);
        times_us.extend(burst.iter().map(|after| now as u64 + after));
        now += burst_length + sample_exponential_interval(0.75 * window, rng);
    }
    times_us
}

fn sample_exponential_interval(mean: f64, rng: &mut Rng) -> f64 {
    // The argument of the logarithm is in (0, 1], so the result is finite.
    -mean * (1.0 - rng.f64()).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_arrivals_are_sorted_reproducible_and_match_rate() {
        for pattern in PATTERNS {
            let times_us = pattern.arrivals(1_000_000, 50.0, 2_000, 3);
            assert!(times_us.is_sorted(), "{pattern:?}");
            let deviation = times_us.len() as f64 / 100_000.0 - 1.0;
            assert!(deviation.abs() < 0.05, "{pattern:?} deviates by {deviation}");
            assert_eq!(times_us, pattern.arrivals(1_000_000, 50.0, 2_000, 3));
            assert_ne!(times_us, pattern.arrivals(1_000_000, 50.0, 2_000, 4));
        }
    }
}
