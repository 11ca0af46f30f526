//! Interface between the replication engine and the counters of a node.

use slidegate::Timestamp;

use crate::pn_counter::{CounterUpdate, Incarnation};

/// Sequence number of a flush, from 1. Each broadcast of changes increases it by one.
pub type FlushSeq = u64;

/// The counters of this node, as the replication engine uses them.
pub trait ReplicatedCounters: Send + Sync {
    /// Drains the changed counters of this node into `updates`, at most `max_keys` keys, closest to their limit first,
    /// and marks them as sent in `flush`. Returns `true` if changed keys remain.
    fn drain_changed(
        &self,
        flush: FlushSeq,
        max_keys: usize,
        updates: &mut Vec<CounterUpdate>,
    ) -> bool;

    /// Calls `visit` for each unexpired counter of this node that has changed after `flush`: sent in a later flush, or
    /// not sent yet. Also visits counters of other incarnations: all of them with `include_remote`, otherwise those
    /// from which a node other than the owner may have removed units.
    fn visit_changed_since(
        &self,
        flush: FlushSeq,
        include_remote: bool,
        now: Timestamp,
        visit: &mut dyn FnMut(CounterUpdate),
    );

    /// Calls `visit` for each unexpired counter of one incarnation, and for counters of any other incarnation from
    /// which a node other than the owner may have removed units.
    fn visit_incarnation(
        &self,
        incarnation: Incarnation,
        now: Timestamp,
        visit: &mut dyn FnMut(CounterUpdate),
    );

    /// Merges updates of another node.
    fn merge(&self, updates: &[CounterUpdate], now: Timestamp);
}
