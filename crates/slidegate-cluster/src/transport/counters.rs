//! Counts what goes over links.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Traffic;
use crate::counts::Incarnation;

/// [`Traffic`], as several tasks count it.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) sent_frames: Count,
    pub(super) sent_bytes: Count,
    pub(super) received_frames: Count,
    pub(super) received_bytes: Count,
    pub(super) dropped_frames: Count,
}

#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, more: usize) {
        self.0.fetch_add(more as u64, Ordering::Relaxed);
    }

    fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    fn read(&self) -> Traffic {
        Traffic {
            sent_frames: self.sent_frames.read(),
            sent_bytes: self.sent_bytes.read(),
            received_frames: self.received_frames.read(),
            received_bytes: self.received_bytes.read(),
            dropped_frames: self.dropped_frames.read(),
        }
    }
}

/// The counters of every node.
#[derive(Debug, Default)]
pub(super) struct AllCounters(Mutex<HashMap<Incarnation, Arc<Counters>>>);

impl AllCounters {
    pub(super) fn of(&self, node: Incarnation) -> Arc<Counters> {
        Arc::clone(self.lock().entry(node).or_default())
    }

    /// Forgets those of nodes that are not kept and over whose links nothing goes.
    pub(super) fn keep(&self, kept: impl Fn(Incarnation) -> bool) {
        self.lock().retain(|node, counters| kept(*node) || Arc::strong_count(counters) > 1);
    }

    pub(super) fn read(&self) -> Vec<(Incarnation, Traffic)> {
        self.lock().iter().map(|(node, counters)| (*node, counters.read())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Incarnation, Arc<Counters>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
