//! Traffic counters of the links to and from other nodes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::LinkTraffic;
use crate::pn_counter::Incarnation;

/// The traffic counters of one node, which several tasks update. [`LinkTraffic`] is a snapshot of them.
#[derive(Debug, Default)]
pub(super) struct LinkCounters {
    pub(super) sent_frames: AtomicCount,
    pub(super) sent_bytes: AtomicCount,
    pub(super) received_frames: AtomicCount,
    pub(super) received_bytes: AtomicCount,
    pub(super) dropped_frames: AtomicCount,
}

#[derive(Debug, Default)]
pub(super) struct AtomicCount(AtomicU64);

impl AtomicCount {
    pub(super) fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Ordering::Relaxed);
    }

    fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl LinkCounters {
    fn to_link_traffic(&self) -> LinkTraffic {
        LinkTraffic {
            sent_frames: self.sent_frames.read(),
            sent_bytes: self.sent_bytes.read(),
            received_frames: self.received_frames.read(),
            received_bytes: self.received_bytes.read(),
            dropped_frames: self.dropped_frames.read(),
        }
    }
}

/// The traffic counters of all nodes, by incarnation.
#[derive(Debug, Default)]
pub(super) struct LinkCountersByNode(Mutex<HashMap<Incarnation, Arc<LinkCounters>>>);

impl LinkCountersByNode {
    pub(super) fn get_or_create(&self, node: Incarnation) -> Arc<LinkCounters> {
        Arc::clone(self.lock().entry(node).or_default())
    }

    /// Removes counters of nodes for which `is_kept` returns `false` and that have no open stream.
    pub(super) fn retain(&self, is_kept: impl Fn(Incarnation) -> bool) {
        self.lock().retain(|node, counters| is_kept(*node) || Arc::strong_count(counters) > 1);
    }

    pub(super) fn traffic_of_all_nodes(&self) -> Vec<(Incarnation, LinkTraffic)> {
        self.lock().iter().map(|(node, counters)| (*node, counters.to_link_traffic())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Incarnation, Arc<LinkCounters>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
