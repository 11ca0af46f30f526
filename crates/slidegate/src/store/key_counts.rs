//! The number of keys of a store, in all and of each group.

use crate::key::KeyGroup;
use crate::sync::{AtomicUsize, Ordering};

/// The number of keys of a store.
#[derive(Debug)]
pub struct KeyCounts {
    total: AtomicUsize,
    /// The number of keys of each group.
    by_group: [AtomicUsize; KeyGroup::MAX as usize + 1],
    /// The number of groups that have keys.
    groups: AtomicUsize,
}

impl Default for KeyCounts {
    fn default() -> Self {
        Self {
            total: AtomicUsize::new(0),
            by_group: std::array::from_fn(|_| AtomicUsize::new(0)),
            groups: AtomicUsize::new(0),
        }
    }
}

impl KeyCounts {
    /// Returns the number of keys.
    pub fn total(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    /// Counts a new key of a group. Returns the number of keys before this one.
    pub fn count_new_key(&self, group: KeyGroup) -> usize {
        if self.by_group[usize::from(group)].fetch_add(1, Ordering::Relaxed) == 0 {
            self.groups.fetch_add(1, Ordering::Relaxed);
        }
        self.total.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts the removal of a key of a group.
    pub fn count_removed_key(&self, group: KeyGroup) {
        if self.by_group[usize::from(group)].fetch_sub(1, Ordering::Relaxed) == 1 {
            self.groups.fetch_sub(1, Ordering::Relaxed);
        }
        self.total.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns whether a group has at least its share of the keys, which is the same for all groups that have keys.
    pub fn has_full_share(&self, group: KeyGroup) -> bool {
        let keys = self.by_group[usize::from(group)].load(Ordering::Relaxed);
        keys.saturating_mul(self.groups.load(Ordering::Relaxed)) >= self.total()
    }
}
