//! Replicated counters (PN-counters): pairs of numbers that only grow and are merged by maximum.
//!
//! A node that restarts is a new [`Incarnation`] with empty counters. One [`PnCounter`] holds the charges of one
//! incarnation to one key in one time bucket. A merge takes the larger of each number, so lost, repeated, late and
//! replayed messages do not change the final result. This module is pure: no I/O, no clock.

pub use slidegate::algorithm::BucketLayout;

/// One run of a node, from its start to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// A replicated counter for the charges of one incarnation to one key in one time bucket.
///
/// It contains the number of charged units, and the number of these units that were removed. Both numbers only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PnCounter {
    /// Units charged. Only the incarnation that owns the counter increases this number.
    pub charged: u64,
    /// Number of the charged units that were removed by a revert, a refund or a reset, on any node. If two nodes
    /// increase the number at the same time, they remove the same units, and a merge takes the larger number. A merge
    /// thus never removes later charges.
    pub removed: u64,
}

impl PnCounter {
    /// Returns the number of units that were charged and not removed.
    pub fn value(&self) -> u64 {
        self.charged.saturating_sub(self.removed)
    }

    /// Merges another replica of this counter: takes the larger of each number. Returns `true` if either number has
    /// grown.
    pub fn merge(&mut self, other: &Self) -> bool {
        let before = *self;
        self.charged = self.charged.max(other.charged);
        self.removed = self.removed.max(other.removed);
        *self != before
    }
}

/// The complete state of one replicated counter, as nodes send it to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterUpdate {
    /// Fingerprint of the key and its limit, identical on every node.
    pub key: u64,
    /// Bucket length and number of buckets of the key's counter.
    pub layout: BucketLayout,
    /// The incarnation that charged the units.
    pub incarnation: Incarnation,
    /// Index of the time bucket.
    pub bucket: u64,
    /// Number of units charged and removed.
    pub units: PnCounter,
}
