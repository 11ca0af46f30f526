//! Measured overshoot: units counted above max.
//!
//! A bucket is recorded when an update of its key arrives in a later bucket, so the last bucket of a key without
//! further updates is not recorded. Debts are included.

use std::sync::atomic::{AtomicU64, Ordering};

/// Upper bounds of the histogram buckets, as a share of max in thousandths. One further bucket counts larger shares.
pub const OVERSHOOT_BOUNDS_PERMILLE: [u64; 8] = [1, 5, 10, 25, 50, 100, 250, 500];

/// Overshoot of one time bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BucketOvershoot {
    pub(crate) bucket: u64,
    /// Units above max.
    pub(crate) units: u64,
    pub(crate) max: u64,
}

/// Histogram of time buckets that exceeded max, by the excess as a share of max.
#[derive(Debug, Default)]
pub struct OvershootHistogram {
    counts: [AtomicU64; OVERSHOOT_BOUNDS_PERMILLE.len() + 1],
    /// Sum of the shares, in thousandths.
    sum: AtomicU64,
}

impl OvershootHistogram {
    /// Records the overshoot of one time bucket.
    pub(crate) fn record(&self, overshoot: &BucketOvershoot) {
        let share = overshoot.units.saturating_mul(1000).div_ceil(overshoot.max.max(1));
        let bucket = OVERSHOOT_BOUNDS_PERMILLE.partition_point(|bound| *bound < share);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(share, Ordering::Relaxed);
    }

    /// Returns the count of each histogram bucket, and the sum of the shares (1.0 is max).
    pub fn snapshot(&self) -> (Vec<u64>, f64) {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        (counts, self.sum.load(Ordering::Relaxed) as f64 / 1000.0)
    }
}
