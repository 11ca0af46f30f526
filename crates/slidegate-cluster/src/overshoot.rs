//! Measured overshoot: units of a key that are counted above the maximum of its limit.
//!
//! The overshoot of a time bucket is recorded when an update of the key arrives in a later bucket. So the last bucket
//! of a key without further updates is not recorded. Debts, which are units charged regardless of the limit, are
//! included.

use std::sync::atomic::{AtomicU64, Ordering};

/// Upper bounds of the histogram buckets, in thousandths of the limit's maximum.
///
/// A recorded value is the number of units above the maximum, divided by the maximum. Values above the last bound are
/// counted in one further bucket.
pub const OVERSHOOT_BOUNDS_PERMILLE: [u64; 8] = [1, 5, 10, 25, 50, 100, 250, 500];

/// The overshoot of one key in one time bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BucketOvershoot {
    pub(crate) bucket: u64,
    /// Units counted above the limit's maximum.
    pub(crate) units: u64,
    pub(crate) max: u64,
}

/// A histogram of the time buckets in which a key exceeded the maximum of its limit.
///
/// The value that is recorded for a time bucket is the number of units above the maximum, divided by the maximum.
#[derive(Debug, Default)]
pub struct OvershootHistogram {
    counts: [AtomicU64; OVERSHOOT_BOUNDS_PERMILLE.len() + 1],
    /// Sum of all recorded values, in thousandths of the limit's maximum.
    sum: AtomicU64,
}

impl OvershootHistogram {
    /// Records the overshoot of one key in one time bucket.
    pub(crate) fn record_bucket_overshoot(&self, overshoot: &BucketOvershoot) {
        let share = overshoot.units.saturating_mul(1000).div_ceil(overshoot.max.max(1));
        let bucket = OVERSHOOT_BOUNDS_PERMILLE.partition_point(|bound| *bound < share);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(share, Ordering::Relaxed);
    }

    /// Returns the number of recorded values in each histogram bucket, and the sum of all recorded values. A value of
    /// 1.0 means that the number of counted units was twice the limit's maximum.
    pub fn snapshot(&self) -> (Vec<u64>, f64) {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        (counts, self.sum.load(Ordering::Relaxed) as f64 / 1000.0)
    }
}
