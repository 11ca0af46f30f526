//! Whom requests are of.

use std::sync::Arc;

/// Of whom is asked.
#[derive(Clone)]
pub enum Draw {
    /// Of any of so many, each as often.
    Uniform(usize),
    /// Of the first most, of the second half as often, of the third a third, and so on.
    Zipf(Arc<[f64]>),
}

impl Draw {
    /// By Zipf's law, of so many.
    pub fn zipf(count: usize) -> Self {
        let shares = (1..=count).scan(0.0, |sum, rank| {
            *sum += 1.0 / rank as f64;
            Some(*sum)
        });
        Self::Zipf(shares.collect())
    }

    /// Draws one.
    pub fn who(&self, rng: &mut fastrand::Rng) -> usize {
        match self {
            Self::Uniform(count) => rng.usize(0..*count),
            Self::Zipf(sums) => {
                let drawn = rng.f64() * sums.last().copied().unwrap_or_default();
                sums.partition_point(|sum| *sum < drawn).min(sums.len() - 1)
            }
        }
    }
}
