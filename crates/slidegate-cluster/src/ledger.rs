//! Where what is told comes from, and where it goes.

use slidegate::Timestamp;

use crate::counts::{Incarnation, Told};

/// The number of a flush: each time that a node tells what has changed it counts one up, from 1.
pub type Flush = u64;

/// The counts of this node, seen by what tells them to others.
pub trait Ledger: Send + Sync {
    /// Takes the tallies of this node's own charges that changed since they were last taken: of at most so many
    /// keys, those nearest to their limit first. They are noted as told in `flush`. Says whether some are left.
    fn take_changed(&self, flush: Flush, most_keys: usize, told: &mut Vec<Told>) -> bool;

    /// Tells the tallies of this node's own charges that still count and changed after that flush: those noted as
    /// told in a later one, and those not told yet. With `others` those of all other incarnations, too.
    fn changed_since(&self, flush: Flush, others: bool, now: Timestamp, tell: &mut dyn FnMut(Told));

    /// Tells the tallies of one incarnation that still count.
    fn of(&self, incarnation: Incarnation, now: Timestamp, tell: &mut dyn FnMut(Told));

    /// Takes in what another node has told.
    fn merge(&self, told: &[Told], now: Timestamp);
}
