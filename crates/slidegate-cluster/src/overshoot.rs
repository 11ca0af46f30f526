//! How far counts went beyond max, as measured: noted when news of the key come in a later bucket, so what nothing
//! follows is not. Debts are among it.

use std::sync::atomic::{AtomicU64, Ordering};

/// The upper ends of the shares of max that are told apart, in thousandths; one more is beyond.
pub const OVERSHOOT_BOUNDS_PERMILLE: [u64; 8] = [1, 5, 10, 25, 50, 100, 250, 500];

/// What a bucket came to beyond max.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BucketOvershoot {
    pub(crate) bucket: u64,
    /// Units beyond max.
    pub(crate) units: u64,
    pub(crate) max: u64,
}

/// Buckets of time in which more was counted than max, by the share of max.
#[derive(Debug, Default)]
pub struct OvershootHistogram {
    counts: [AtomicU64; OVERSHOOT_BOUNDS_PERMILLE.len() + 1],
    /// Sum of the shares, in thousandths.
    sum: AtomicU64,
}

impl OvershootHistogram {
    /// Notes what a bucket came to.
    pub(crate) fn record(&self, overshoot: &BucketOvershoot) {
        let share = overshoot.units.saturating_mul(1000).div_ceil(overshoot.max.max(1));
        let bucket = OVERSHOOT_BOUNDS_PERMILLE.partition_point(|bound| *bound < share);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(share, Ordering::Relaxed);
    }

    /// How often each share was seen, and their sum as a part of max.
    pub fn snapshot(&self) -> (Vec<u64>, f64) {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        (counts, self.sum.load(Ordering::Relaxed) as f64 / 1000.0)
    }
}
