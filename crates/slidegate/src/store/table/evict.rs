//! Removal of expired keys, and the choice of keys to evict.

use super::group::{GROUPS_PER_CHUNK, chunk_bytes};
use super::{CoarseTime, HEAP_UNIT_BYTES, PINNED, SLOTS_PER_GROUP, Slot, SlotIndex, Table};

/// The number of slots in a chunk.
const SLOTS_PER_CHUNK: usize = GROUPS_PER_CHUNK * SLOTS_PER_GROUP;
use crate::heap::HeapSize;

/// The minimum number of groups that are examined to find an eviction candidate.
const MIN_GROUPS_PER_EVICTION_SAMPLE: usize = 3;

/// A key that may be evicted to make capacity for another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictionCandidate {
    /// The position of the key's slot in the table.
    pub slot: SlotIndex,
    /// The time at which the key expires, or, if the key is being denied, the time at which its denial ends.
    pub expires: CoarseTime,
}

/// A table from which keys can be evicted. This trait has the operations that do not depend on the type of the states.
pub trait Evict {
    /// Returns the number of groups in the table.
    fn group_count(&self) -> usize;

    /// Removes the expired keys in the next group, and returns the number of removed keys.
    fn sweep(&mut self, now: CoarseTime) -> usize;

    /// Returns the key that expires first in a sample of the next groups. Keys that are being denied are not returned;
    /// if the sample has no other key, further groups are examined until one is found. Returns `None` if all keys of
    /// the table are being denied.
    fn eviction_candidate(&mut self, now: CoarseTime) -> Option<EvictionCandidate>;

    /// Returns the key with the earliest `denied_until`, that is, a key that is not being denied, or else the key whose
    /// denial ends first. Returns `None` if no key may be evicted.
    fn candidate_by_denial_end(&self) -> Option<EvictionCandidate>;

    /// Removes the key in the slot at this position.
    fn remove(&mut self, slot: SlotIndex);

    /// Returns the number of bytes that the groups and the heap allocations of states take.
    fn bytes(&self) -> usize;

    /// Frees groups if the table has enough free slots.
    fn trim(&mut self);
}

impl<S: Default + HeapSize> Table<S> {
    /// Iterates over the used slots of a group, with their positions.
    fn used_slots(&self, group: usize) -> impl Iterator<Item = (SlotIndex, &Slot<S>)> {
        self.tags(group).used().map(move |slot| {
            let index = SlotIndex { group, slot };
            (index, self.slot(index))
        })
    }

    /// Returns the index of the group at which the next sweep or search for a candidate begins, and advances it.
    fn advance_next_group(&mut self) -> usize {
        let group = self.next_group as usize;
        self.next_group = if group + 1 == self.groups() { 0 } else { group as u32 + 1 };
        group
    }
}

impl<S: Default + HeapSize> Evict for Table<S> {
    #[inline(always)]
    fn group_count(&self) -> usize {
        self.groups()
    }

    fn sweep(&mut self, now: CoarseTime) -> usize {
        if self.len == 0 {
            return 0;
        }
        let group = self.advance_next_group();
        let before = self.len;
        for slot in self.tags(group).used() {
            let index = SlotIndex { group, slot };
            if self.slot(index).expires < now {
                self.take(index);
            }
        }
        let (len, slots) = (self.len as usize, self.chunk_count() * SLOTS_PER_CHUNK);
        if self.chunk_count() > 1 && len * 10 < slots * 4 {
            self.rebuild((len * 5).div_ceil(SLOTS_PER_CHUNK * 4).max(1));
        }
        (before - self.len) as usize
    }

    fn eviction_candidate(&mut self, now: CoarseTime) -> Option<EvictionCandidate> {
        let mut soonest: Option<EvictionCandidate> = None;
        for examined in 0..self.groups() {
            if examined >= MIN_GROUPS_PER_EVICTION_SAMPLE && soonest.is_some() {
                break;
            }
            let group = self.advance_next_group();
            let evictable = self.used_slots(group).filter(|(_, slot)| slot.denied_until <= now);
            let candidates = evictable
                .map(|(index, slot)| EvictionCandidate { slot: index, expires: slot.expires });
            soonest = soonest.into_iter().chain(candidates).min_by_key(|found| found.expires);
        }
        soonest
    }

    fn candidate_by_denial_end(&self) -> Option<EvictionCandidate> {
        let slots = (0..self.groups()).flat_map(|group| self.used_slots(group));
        slots
            .filter(|(_, slot)| slot.denied_until != PINNED)
            .map(|(index, slot)| EvictionCandidate { slot: index, expires: slot.denied_until })
            .min_by_key(|candidate| candidate.expires)
    }

    fn remove(&mut self, slot: SlotIndex) {
        self.take(slot);
    }

    #[inline]
    fn bytes(&self) -> usize {
        self.chunk_count() * chunk_bytes::<S>() + self.heap_units as usize * HEAP_UNIT_BYTES
    }

    /// Rebuilds the table if less than thirteen sixteenths of its slots are used. Afterwards fourteen sixteenths are
    /// used, so the table neither grows at the next insertion nor is rebuilt at each removal.
    fn trim(&mut self) {
        let len = self.len as usize;
        let chunks = (len * 16).div_ceil(SLOTS_PER_CHUNK * 14);
        let is_sparse = len * 16 < self.chunk_count() * SLOTS_PER_CHUNK * 13;
        if is_sparse && chunks < self.chunk_count() {
            self.rebuild(chunks);
        }
    }
}
