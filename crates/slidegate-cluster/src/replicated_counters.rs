//! Where what is told comes from, and where it goes.

use slidegate::Timestamp;

use crate::pn_counter::{CounterUpdate, Incarnation};

/// The number of a flush: each time that a node tells what has changed it counts one up, from 1.
pub type FlushSeq = u64;

/// The counts of this node, seen by what tells them to others.
pub trait ReplicatedCounters: Send + Sync {
    /// Takes the tallies of this node's own charges that changed since they were last taken: of at most so many
    /// keys, those nearest to their limit first. They are noted as told in `flush`. Says whether some are left.
    fn drain_changed(
        &self,
        flush: FlushSeq,
        max_keys: usize,
        updates: &mut Vec<CounterUpdate>,
    ) -> bool;

    /// Tells the tallies of this node's own charges that still count and changed after that flush: those noted as
    /// told in a later one, and those not told yet. With `include_remote` those of all other incarnations, too.
    fn visit_changed_since(
        &self,
        flush: FlushSeq,
        include_remote: bool,
        now: Timestamp,
        visit: &mut dyn FnMut(CounterUpdate),
    );

    /// Tells the tallies of one incarnation that still count.
    fn visit_incarnation(
        &self,
        incarnation: Incarnation,
        now: Timestamp,
        visit: &mut dyn FnMut(CounterUpdate),
    );

    /// Takes in what another node has told.
    fn merge(&self, updates: &[CounterUpdate], now: Timestamp);
}
