//! Interface between the replication engine and the counters of a node.

use slidegate::Timestamp;

use crate::pn_counter::{CounterUpdate, Incarnation};

/// Sequence number of a flush, which is a broadcast of counter changes to all live members. The first flush of a node
/// has number 1.
pub type FlushSeq = u64;

/// The operations on the counters of a node that the replication engine uses.
pub trait ReplicatedCounters: Send + Sync {
    /// Moves the changed counters of this node into `updates` and marks them as sent in `flush`. Selects at most
    /// `max_keys` keys, namely the keys closest to their limit. Returns `true` if changed keys remain.
    fn drain_changed_counters(
        &self,
        flush: FlushSeq,
        max_keys: usize,
        updates: &mut Vec<CounterUpdate>,
    ) -> bool;

    /// Calls `visit` for each unexpired counter of this node that has changed after `flush`. The change may have been
    /// sent in a later flush, or may not have been sent yet. Also visits counters of other incarnations. If
    /// `include_remote` is `true`, visits all of them; otherwise, only counters from which a node may have
    /// removed units that it has not charged itself.
    fn visit_counters_changed_since(
        &self,
        flush: FlushSeq,
        include_remote: bool,
        now: Timestamp,
        visit: &mut dyn FnMut(CounterUpdate),
    );

    /// Calls `visit` for each unexpired counter of one incarnation, and for counters of any other incarnation from
    /// which a node may have removed units that it has not charged itself.
    fn visit_counters_of_incarnation(
        &self,
        incarnation: Incarnation,
        now: Timestamp,
        visit: &mut dyn FnMut(CounterUpdate),
    );

    /// Merges counter updates that another node has sent.
    fn merge(&self, updates: &[CounterUpdate], now: Timestamp);
}
