//! What nodes count, so that it cannot be miscounted: numbers that only grow, of which the larger is right.
//!
//! A node that starts anew is another [`Incarnation`], and begins with nothing. What one incarnation has charged to
//! one key in one bucket of time is a [`PnCounter`]. Whoever hears of a tally takes the larger of each of its numbers: a
//! message that is lost, repeated, late or replayed changes nothing in the end.

pub use slidegate::algorithm::additive::Shape;

/// One life of a node, from its start to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// What one incarnation has counted on one key in one bucket. Both numbers only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PnCounter {
    /// Units charged. Only this incarnation increases the number.
    pub charged: u64,
    /// Units of these charges that were returned, by any incarnation. Two incarnations that increase the number at the
    /// same time return the same units, so a merge never subtracts later charges.
    pub removed: u64,
}

impl PnCounter {
    /// Returns the units that were charged and not returned.
    pub fn value(&self) -> u64 {
        self.charged.saturating_sub(self.removed)
    }

    /// Takes the larger of each number. Says whether either has grown.
    pub fn merge(&mut self, other: &Self) -> bool {
        let before = *self;
        self.charged = self.charged.max(other.charged);
        self.removed = self.removed.max(other.removed);
        *self != before
    }
}

/// One tally, as nodes tell it to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterUpdate {
    /// The fingerprint of the key and its limit, the same on every node.
    pub key: u64,
    /// How its counter divides time.
    pub shape: Shape,
    /// Who has counted.
    pub incarnation: Incarnation,
    /// When.
    pub bucket: u64,
    /// What.
    pub units: PnCounter,
}
