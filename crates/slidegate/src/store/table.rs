//! A hash table of states by fingerprint, with open addressing over groups of seven slots. Stores in memory consist of
//! many tables, each behind its own lock.
//!
//! A search reads one word of tags, which has one byte for each slot of a group, and then only the slot that has the
//! key. Most searches end in the first group, even if almost all slots are used. A table grows by a sixteenth on average
//! instead of doubling, so that little memory is unused.
//!
//! A key that finds its group full passes to a later group, and each passed group counts it. A search ends at the first
//! group that no key has passed. A removed key is subtracted from the groups that it had passed, so there are no
//! tombstones, and other keys stay where they are.
//!
//! Slots are allocated in chunks, which are kept when a table grows. If they were one allocation, each former size would
//! leave a gap between the small allocations of states, and the process would take four times the memory in use. The tags
//! of all groups are together in one small allocation, so that the tags of a large table stay in the cache.

mod evict;
mod group;
#[cfg(test)]
mod tests;

use std::fmt;
use std::hint::black_box;

use crate::heap::HeapSize;

use group::{Chunk, GROUPS_PER_CHUNK, Tags, chunk_bytes};

pub use evict::{Evict, EvictionCandidate};
pub use group::SLOTS_PER_GROUP;

/// A time in steps of 2^16 microseconds since the start of the store, precise enough for the expiry of keys.
pub type CoarseTime = u32;

/// The value of [`Slot::denied_until`] that marks a key as not evictable.
pub const PINNED: CoarseTime = CoarseTime::MAX;

/// A table grows by at least its size divided by this number, and by less than twice as much.
const GROWTH_DIVISOR: usize = 24;

/// The number of probe steps whose length increases, so that keys that pass the same full group spread over several
/// groups. All later steps have the length 1, so that a search reaches every group.
const INCREASING_STEPS: usize = 4;

/// The number of bytes in which the heap memory of a table is counted. All allocations are multiples of it.
const HEAP_UNIT_BYTES: usize = 16;

/// The state of one key, with the times that determine whether it may be evicted.
#[derive(Debug, Default)]
pub struct Slot<S> {
    fingerprint: u64,
    /// The time from which the state is equivalent to the state of a new key.
    pub expires: CoarseTime,
    /// The time until which the key is denied, because no unit fits.
    pub denied_until: CoarseTime,
    /// The state of the key.
    pub state: S,
}

/// The position of a slot in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotIndex {
    group: usize,
    slot: usize,
}

/// Returns the number of bytes that a slot takes in a table with states of the type `S`, including the slot's part of
/// the tags and of the overhead of a chunk.
pub const fn slot_bytes<S>() -> usize {
    chunk_bytes::<S>().div_ceil(GROUPS_PER_CHUNK * SLOTS_PER_GROUP)
}

/// A hash table of states by fingerprint.
pub struct Table<S> {
    /// The chunks, and space for further ones, which have no slots yet.
    chunks: Box<[Chunk<S>]>,
    /// The number of chunks with slots.
    chunk_count: u32,
    /// The number of keys.
    len: u32,
    /// The index of the next group to sweep or to search for an eviction candidate.
    next_group: u32,
    /// The heap memory of the states, in units of [`HEAP_UNIT_BYTES`].
    heap_units: u32,
}

impl<S> fmt::Debug for Table<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("len", &self.len).finish_non_exhaustive()
    }
}

impl<S> Default for Table<S> {
    fn default() -> Self {
        Self { chunks: Box::default(), chunk_count: 0, len: 0, next_group: 0, heap_units: 0 }
    }
}

/// The groups in which a key may be, in the order in which they are searched.
struct ProbeSequence {
    group: usize,
    steps: usize,
}

impl ProbeSequence {
    /// Returns the sequence of a fingerprint. Its first group depends on the lower half of the fingerprint; the upper
    /// half determines the shard.
    #[inline(always)]
    fn new(fingerprint: u64, groups: usize) -> Self {
        let group = (((fingerprint & u64::from(u32::MAX)) * groups as u64) >> 32) as usize;
        Self { group, steps: 0 }
    }

    #[cold]
    fn advance(&mut self, groups: usize) {
        self.steps += 1;
        self.group += if self.steps <= INCREASING_STEPS { self.steps } else { 1 };
        if self.group >= groups {
            self.group %= groups;
        }
    }

    /// Returns whether every group has been visited.
    fn is_complete(&self, groups: usize) -> bool {
        self.steps > INCREASING_STEPS + groups
    }
}

impl<S: Default + HeapSize> Table<S> {
    #[inline(always)]
    fn chunk_count(&self) -> usize {
        self.chunk_count as usize
    }

    #[inline(always)]
    fn groups(&self) -> usize {
        self.chunk_count() * GROUPS_PER_CHUNK
    }

    #[inline(always)]
    fn tags(&self, group: usize) -> Tags {
        self.chunks[group / GROUPS_PER_CHUNK].tags[group % GROUPS_PER_CHUNK]
    }

    fn tags_mut(&mut self, group: usize) -> &mut Tags {
        &mut self.chunks[group / GROUPS_PER_CHUNK].tags[group % GROUPS_PER_CHUNK]
    }

    /// Loads the cache lines that a search for a fingerprint touches. Calls for several fingerprints let their memory
    /// accesses overlap.
    #[inline]
    pub fn prefetch(&self, fingerprint: u64) {
        black_box(self.find(fingerprint));
    }

    /// Returns the position of the slot that has a fingerprint; `None` if the table does not contain the fingerprint.
    #[inline(always)]
    pub fn find(&self, fingerprint: u64) -> Option<SlotIndex> {
        match self.find_first(fingerprint) {
            Some((chunk, nth, slot)) => {
                Some(SlotIndex { group: chunk * GROUPS_PER_CHUNK + nth, slot })
            }
            None => self.find_among_passed_groups(fingerprint),
        }
    }

    /// Returns the chunk, the group and the slot of a fingerprint if it is in the first slot that has its tag. Nearly every
    /// search for a key in the table ends there.
    #[inline(always)]
    fn find_first(&self, fingerprint: u64) -> Option<(usize, usize, usize)> {
        let ProbeSequence { group, .. } = ProbeSequence::new(fingerprint, self.groups());
        let (chunk, nth) = (group / GROUPS_PER_CHUNK, group % GROUPS_PER_CHUNK);
        // `None` if the table has no groups.
        let Chunk { tags, groups } = self.chunks.get(chunk)?;
        let slot = tags[nth].matches(Tags::pattern(fingerprint)).next()?;
        let found = groups.get(nth)?.0.get(slot)?;
        (found.fingerprint == fingerprint).then_some((chunk, nth, slot))
    }

    /// Finds a fingerprint as [`find`](Self::find) does, in all groups in which it may be.
    #[inline(never)]
    fn find_among_passed_groups(&self, fingerprint: u64) -> Option<SlotIndex> {
        let groups = self.groups();
        if groups == 0 {
            return None;
        }
        let mut probe = ProbeSequence::new(fingerprint, groups);
        let pattern = Tags::pattern(fingerprint);
        loop {
            let group = probe.group;
            let tags = self.tags(group);
            let mut matches = tags.matches(pattern).map(|slot| SlotIndex { group, slot });
            if let Some(index) = matches.find(|index| self.slot(*index).fingerprint == fingerprint)
            {
                return Some(index);
            }
            if !tags.has_passed_keys() || probe.is_complete(groups) {
                return None;
            }
            probe.advance(groups);
        }
    }

    /// Returns the slot that has a fingerprint, as [`slot_mut`](Self::slot_mut) does.
    #[inline(always)]
    pub fn find_mut(&mut self, fingerprint: u64) -> Option<&mut Slot<S>> {
        match self.find_first(fingerprint) {
            Some((chunk, nth, slot)) => {
                self.chunks.get_mut(chunk)?.groups.get_mut(nth)?.0.get_mut(slot)
            }
            None => {
                let index = self.find_among_passed_groups(fingerprint)?;
                Some(self.slot_mut(index))
            }
        }
    }

    /// Returns the slot at a position that [`find`](Self::find) or [`insert`](Self::insert) has returned.
    #[inline(always)]
    pub fn slot(&self, SlotIndex { group, slot }: SlotIndex) -> &Slot<S> {
        &self.chunks[group / GROUPS_PER_CHUNK].groups[group % GROUPS_PER_CHUNK].0[slot]
    }

    /// Returns the slot at a position. The caller must not change the heap allocations of its state;
    /// [`update`](Self::update) does that.
    #[inline(always)]
    pub fn slot_mut(&mut self, SlotIndex { group, slot }: SlotIndex) -> &mut Slot<S> {
        &mut self.chunks[group / GROUPS_PER_CHUNK].groups[group % GROUPS_PER_CHUNK].0[slot]
    }

    /// Updates the state in a slot. Returns the result of `update`, and the bytes by which the heap allocations of the
    /// state have grown.
    #[inline(always)]
    pub fn update<R>(
        &mut self,
        index: SlotIndex,
        update: impl FnOnce(&mut Slot<S>) -> R,
    ) -> (R, isize) {
        let slot = self.slot_mut(index);
        let before = slot.state.heap_bytes();
        let result = update(slot);
        let after = slot.state.heap_bytes();
        (result, self.record_heap_change(before, after))
    }

    /// Records that the heap allocations of a state have changed from `before` to `after` bytes. Returns the growth in
    /// bytes.
    #[inline(always)]
    pub fn record_heap_change(&mut self, before: usize, after: usize) -> isize {
        if before == after {
            return 0;
        }
        self.heap_units = self.heap_units + heap_units(after) - heap_units(before);
        after as isize - before as isize
    }

    /// Inserts a fingerprint that is not in the table, with a default state. Returns the position of its slot.
    pub fn insert(&mut self, fingerprint: u64) -> SlotIndex {
        let added = self.chunks_to_add(fingerprint);
        if added > 0 {
            self.rebuild(self.chunk_count() + added);
        }
        self.place(Slot { fingerprint, ..Slot::default() })
    }

    /// Returns the number of chunks that must be added to the table before a fingerprint is inserted; 0 if it has
    /// enough free slots, that is, if no more than 31 of 32 slots will be used.
    #[inline]
    fn chunks_to_add(&self, fingerprint: u64) -> usize {
        if (self.len as usize + 1) * 32 <= self.groups() * SLOTS_PER_GROUP * 31 {
            return 0;
        }
        // The growth depends on the fingerprint. If all shards grew by the same steps, they would grow at the same
        // time, and none could reuse the memory that another has freed.
        let step = self.chunk_count() / GROWTH_DIVISOR;
        step.max(1) + fingerprint as usize % (step + 1)
    }

    /// Returns the number of bytes by which the table would grow if the fingerprint were inserted.
    pub fn growth_bytes(&self, fingerprint: u64) -> usize {
        self.chunks_to_add(fingerprint) * chunk_bytes::<S>()
    }

    /// Moves a slot into the first free slot of its probe sequence, which exists since the table is never full. Returns
    /// the position of that slot.
    fn place(&mut self, slot: Slot<S>) -> SlotIndex {
        let (fingerprint, groups) = (slot.fingerprint, self.groups());
        let mut probe = ProbeSequence::new(fingerprint, groups);
        loop {
            let tags = self.tags_mut(probe.group);
            if let Some(free) = tags.first_free() {
                tags.occupy(free, Tags::pattern(fingerprint));
                let index = SlotIndex { group: probe.group, slot: free };
                *self.slot_mut(index) = slot;
                self.len += 1;
                return index;
            }
            tags.add_passed_key();
            probe.advance(groups);
        }
    }

    /// Removes a slot from the table, and returns it.
    fn take(&mut self, index: SlotIndex) -> Slot<S> {
        let groups = self.groups();
        let slot = std::mem::take(self.slot_mut(index));
        let mut probe = ProbeSequence::new(slot.fingerprint, groups);
        while probe.group != index.group {
            self.tags_mut(probe.group).remove_passed_key();
            probe.advance(groups);
        }
        self.tags_mut(index.group).free(index.slot);
        self.heap_units -= heap_units(slot.state.heap_bytes());
        self.len -= 1;
        slot
    }

    /// Rebuilds the table with the given number of chunks.
    fn rebuild(&mut self, chunks: usize) {
        // The relative position of the sweep is kept, so that a table that keeps growing is swept to its end.
        self.next_group = (self.next_group as usize * chunks / self.chunk_count().max(1)) as u32;
        let mut slots = Vec::with_capacity(self.len as usize);
        for chunk in &mut self.chunks {
            for (tags, group) in chunk.tags.iter_mut().zip(&mut *chunk.groups) {
                let used = std::mem::take(tags).used();
                slots.extend(used.map(|slot| std::mem::take(&mut group.0[slot])));
            }
        }
        if !(chunks..=chunks * 2).contains(&self.chunks.len()) {
            // Space for a quarter more chunks, because each list that is replaced leaves a gap in the memory.
            let mut list = std::mem::take(&mut self.chunks).into_vec();
            let space = chunks + chunks / 4;
            list.reserve_exact(space.saturating_sub(list.len()));
            list.resize_with(space, Chunk::default);
            self.chunks = list.into();
        }
        self.chunks[..chunks].iter_mut().for_each(Chunk::allocate);
        self.chunks[chunks..].iter_mut().for_each(|chunk| *chunk = Chunk::default());
        self.chunk_count = chunks as u32;
        self.len = 0;
        for slot in slots {
            self.place(slot);
        }
    }
}

impl<S> Table<S> {
    /// Iterates over all fingerprints and slots in arbitrary order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut Slot<S>)> {
        let groups =
            self.chunks.iter_mut().flat_map(|chunk| chunk.tags.iter().zip(&mut *chunk.groups));
        let slots = groups.flat_map(|(tags, group)| {
            let is_used = std::array::from_fn::<_, SLOTS_PER_GROUP, _>(|slot| tags.is_used(slot));
            group.0.iter_mut().zip(is_used)
        });
        slots.filter(|(_, is_used)| *is_used).map(|(slot, _)| (slot.fingerprint, slot))
    }
}

/// Converts the size of heap allocations to units of [`HEAP_UNIT_BYTES`].
#[inline]
fn heap_units(bytes: usize) -> u32 {
    debug_assert!(bytes.is_multiple_of(HEAP_UNIT_BYTES), "{bytes} bytes");
    (bytes / HEAP_UNIT_BYTES) as u32
}
