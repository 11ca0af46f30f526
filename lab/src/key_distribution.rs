//! The distribution of requests over keys.

use std::sync::Arc;

/// The distribution of requests over a number of keys.
#[derive(Clone)]
pub enum KeyDistribution {
    /// Uniform over this number of keys.
    Uniform(usize),
    /// Zipf's law, as cumulative weights: the second key has half the weight of the first, the third a third, and so
    /// on.
    Zipf(Arc<[f64]>),
}

impl KeyDistribution {
    /// Creates Zipf's law over `count` keys.
    pub fn zipf(count: usize) -> Self {
        let weights = (1..=count).scan(0.0, |sum, rank| {
            *sum += 1.0 / rank as f64;
            Some(*sum)
        });
        Self::Zipf(weights.collect())
    }

    /// Samples the index of a key.
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
