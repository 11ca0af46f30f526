//! Samples the key of each request, uniformly or by Zipf's law.

use std::sync::Arc;

/// A probability distribution from which the index of the key of a request is sampled.
#[derive(Clone)]
pub enum KeyDistribution {
    /// Every key is equally frequent. The value is the number of keys.
    Uniform(usize),
    /// Zipf's law: the second key is half as frequent as the first key, the third key a third as frequent, and so on.
    /// The values are cumulative weights: each entry is the sum of the weights of all keys up to this one.
    Zipf(Arc<[f64]>),
}

impl KeyDistribution {
    /// Creates a distribution by Zipf's law over `count` keys.
    pub fn zipf(count: usize) -> Self {
        let weights = (1..=count).scan(0.0, |sum, rank| {
            *sum += 1.0 / rank as f64;
            Some(*sum)
        });
        Self::Zipf(weights.collect())
    }

    /// Returns the index of a randomly sampled key.
    pub fn sample(&self, rng: &mut fastrand::Rng) -> usize {
        match self {
            Self::Uniform(count) => rng.usize(0..*count),
            Self::Zipf(sums) => {
                let sampled = rng.f64() * sums.last().copied().unwrap_or_default();
                sums.partition_point(|sum| *sum < sampled).min(sums.len() - 1)
            }
        }
    }
}
