//! A hash table of states by fingerprint, with open addressing over blocks of four slots. Stores in memory consist of
//! many tables, each behind its own lock.
//!
//! A slot with a state of two counts takes 32 bytes, so a block is a pair of cache lines that the processor fetches
//! together, and most lookups end in their first block, even if fifteen sixteenths of the slots are used. A table grows
//! by a sixteenth instead of doubling, so that little memory is unused. There are no tombstones: a slot that a full
//! block has displaced moves back when that block has a free slot.
//!
//! Blocks are allocated in chunks, which are kept when a table grows. If a table were one allocation, each former size
//! would leave a gap between the small allocations of states, and the process would take four times the memory in use.

use std::fmt;
use std::hint::black_box;

use crate::heap::HeapSize;

/// The number of blocks in a chunk.
const BLOCKS_PER_CHUNK: usize = 16;

/// The number of bytes by which the allocation of a chunk exceeds the size of the chunk, because the chunk is aligned.
const CHUNK_OVERHEAD_BYTES: usize = align_of::<Block<()>>();

/// A time in steps of 2^16 microseconds since the start of the store, precise enough for the expiry of keys.
pub type CoarseTime = u32;

/// The number of slots in a block.
pub const SLOTS_PER_BLOCK: usize = 4;

/// The value of [`Slot::denied_until`] that marks a key as not evictable.
pub const PINNED: CoarseTime = CoarseTime::MAX;

/// The fingerprint in an empty slot.
const EMPTY_SLOT_FINGERPRINT: u64 = 0;

/// The minimum number of blocks that are examined to find an eviction candidate.
const MIN_BLOCKS_PER_EVICTION_SAMPLE: usize = 4;

/// The state of one key, with the times that determine whether it may be evicted.
#[derive(Debug)]
pub struct Slot<S> {
    fingerprint: u64,
    /// The time from which the state is equivalent to the state of a new key.
    pub expires: CoarseTime,
    /// The time until which the key is denied, because no unit fits.
    pub denied_until: CoarseTime,
    /// The state of the key.
    pub state: S,
}

impl<S: Default> Default for Slot<S> {
    fn default() -> Self {
        Self {
            fingerprint: EMPTY_SLOT_FINGERPRINT,
            expires: 0,
            denied_until: 0,
            state: S::default(),
        }
    }
}

/// A group of slots that is searched at once, aligned to a pair of cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Block<S>([Slot<S>; SLOTS_PER_BLOCK]);

/// A group of blocks that is allocated at once.
#[derive(Default)]
struct Chunk<S>([Block<S>; BLOCKS_PER_CHUNK]);

/// Returns the number of bytes that a slot takes in a table with states of the type `S`, including the slot's part of
/// the overhead of a chunk.
pub const fn slot_bytes<S>() -> usize {
    chunk_bytes::<S>() / (BLOCKS_PER_CHUNK * SLOTS_PER_BLOCK)
}

/// Returns the number of bytes that a chunk takes, including its pointer in the list of chunks and the allocator's
/// overhead.
const fn chunk_bytes<S>() -> usize {
    size_of::<Chunk<S>>() + CHUNK_OVERHEAD_BYTES + size_of::<Box<Chunk<S>>>()
}

impl<S> Block<S> {
    fn is_full(&self) -> bool {
        self.0.iter().all(|slot| slot.fingerprint != EMPTY_SLOT_FINGERPRINT)
    }
}

/// A key that may be evicted to make capacity for another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictionCandidate {
    /// The index of the key's slot in the table.
    pub slot: usize,
    /// The time at which the key expires, or, if the key is being denied, the time at which its denial ends.
    pub expires: CoarseTime,
}

/// A table from which keys can be evicted. This trait has the operations that do not depend on the type of the states.
pub trait Evict {
    /// Returns the number of blocks in the table.
    fn blocks(&self) -> usize;

    /// Removes the expired keys in the next block, and returns the number of removed keys.
    fn sweep(&mut self, now: CoarseTime) -> usize;

    /// Returns the key that expires first in a sample of the next blocks. Keys that are being denied are not returned;
    /// if the sample has no other key, further blocks are examined until one is found. Returns `None` if all keys of
    /// the table are being denied.
    fn eviction_candidate(&mut self, now: CoarseTime) -> Option<EvictionCandidate>;

    /// Returns the key with the earliest `denied_until`, that is, a key that is not being denied, or else the key whose
    /// denial ends first. Returns `None` if no key may be evicted.
    fn candidate_by_denial_end(&self) -> Option<EvictionCandidate>;

    /// Removes the key in the slot at this index.
    fn remove(&mut self, slot: usize);

    /// Returns the number of bytes that the blocks and the heap allocations of states take.
    fn bytes(&self) -> usize;

    /// Frees blocks if the table has enough free slots.
    fn trim(&mut self);
}

/// A hash table of states by fingerprint.
pub struct Table<S> {
    chunks: Box<[Box<Chunk<S>>]>,
    /// The number of keys.
    len: u32,
    /// The index of the next block to sweep or to search for an eviction candidate.
    next_block: u32,
    /// The bytes of the heap allocations of states.
    heap_bytes: usize,
}

impl<S> fmt::Debug for Table<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("len", &self.len).finish_non_exhaustive()
    }
}

impl<S> Default for Table<S> {
    fn default() -> Self {
        Self { chunks: Box::default(), len: 0, next_block: 0, heap_bytes: 0 }
    }
}

impl<S: Default + HeapSize> Table<S> {
    /// Returns whether the table has no keys.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the index of the first block in the probe sequence of a fingerprint. The index depends on the lower half
    /// of the fingerprint; the upper half selects the shard.
    #[inline]
    fn first_probe_block(&self, fingerprint: u64) -> usize {
        (((fingerprint & u64::from(u32::MAX)) * self.blocks() as u64) >> 32) as usize
    }

    #[inline(always)]
    fn block(&self, block: usize) -> &Block<S> {
        &self.chunks[block / BLOCKS_PER_CHUNK].0[block % BLOCKS_PER_CHUNK]
    }

    /// Returns the index of the block that follows `block` in the probe sequence.
    fn next_probe_block(&self, block: usize) -> usize {
        if block + 1 == self.blocks() { 0 } else { block + 1 }
    }

    /// Loads the first block in the probe sequence of a fingerprint into the cache. Calls for several fingerprints let
    /// their memory accesses overlap.
    #[inline]
    pub fn prefetch(&self, fingerprint: u64) {
        let home = self.first_probe_block(fingerprint);
        if let Some(chunk) = self.chunks.get(home / BLOCKS_PER_CHUNK) {
            let block = &chunk.0[home % BLOCKS_PER_CHUNK];
            black_box(block.0[0].fingerprint ^ block.0[SLOTS_PER_BLOCK / 2].fingerprint);
        }
    }

    /// Returns the index of the slot that has a fingerprint; `None` if the table does not contain the fingerprint.
    #[inline]
    pub fn find(&self, fingerprint: u64) -> Option<usize> {
        let mut block = self.first_probe_block(fingerprint);
        for _ in 0..self.blocks() {
            // Compares all four slots without branches, which could be mispredicted.
            let current = self.block(block);
            let slots = &current.0;
            let bit = |nth: usize| u32::from(slots[nth].fingerprint == fingerprint) << nth;
            let matches = bit(0) | bit(1) | bit(2) | bit(3);
            if matches != 0 {
                return Some(block * SLOTS_PER_BLOCK + matches.trailing_zeros() as usize);
            }
            if !current.is_full() {
                return None;
            }
            block = self.next_probe_block(block);
        }
        None
    }

    /// Returns the slot at an index that [`find`](Self::find) or [`insert`](Self::insert) has returned.
    #[inline(always)]
    pub fn slot(&self, index: usize) -> &Slot<S> {
        &self.block(index / SLOTS_PER_BLOCK).0[index % SLOTS_PER_BLOCK]
    }

    /// Updates the state in a slot. Returns the result of `update`, and the bytes by which the heap allocations of the
    /// state have grown.
    #[inline(always)]
    pub fn update<R>(
        &mut self,
        index: usize,
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
        self.heap_bytes = self.heap_bytes + after - before;
        after as isize - before as isize
    }

    /// Returns the slot at an index. The caller must not change the heap allocations of its state;
    /// [`update`](Self::update) does that.
    #[inline(always)]
    pub fn slot_mut(&mut self, index: usize) -> &mut Slot<S> {
        let block = index / SLOTS_PER_BLOCK;
        &mut self.chunks[block / BLOCKS_PER_CHUNK].0[block % BLOCKS_PER_CHUNK].0
            [index % SLOTS_PER_BLOCK]
    }

    /// Inserts a fingerprint that is not in the table, with a default state. Returns the index of its slot.
    pub fn insert(&mut self, fingerprint: u64) -> usize {
        debug_assert_ne!(fingerprint, EMPTY_SLOT_FINGERPRINT);
        let chunks = self.chunks_to_add(fingerprint);
        if chunks > 0 {
            self.rebuild(self.chunks.len() + chunks);
        }
        self.place_slot(Slot { fingerprint, ..Slot::default() })
    }

    /// Returns the number of chunks that must be added to the table before a fingerprint is inserted; 0 if it has
    /// enough free slots.
    #[inline]
    fn chunks_to_add(&self, fingerprint: u64) -> usize {
        if (self.len as usize + 1) * 16 <= self.blocks() * SLOTS_PER_BLOCK * 15 {
            return 0;
        }
        // Grows by a sixteenth or slightly more, depending on the fingerprint. If all shards grew by the same steps,
        // they would grow at the same time, and none could reuse the memory that another has freed.
        let chunks = self.chunks.len();
        (chunks / 16).max(1) + fingerprint as usize % (chunks / 16 + 1)
    }

    /// Returns the number of bytes by which the table would grow if the fingerprint were inserted.
    pub fn growth_bytes(&self, fingerprint: u64) -> usize {
        self.chunks_to_add(fingerprint) * chunk_bytes::<S>()
    }

    /// Moves a slot into the first free slot of its probe sequence, which exists since the table is never full. Returns
    /// the index of that slot.
    fn place_slot(&mut self, slot: Slot<S>) -> usize {
        let mut block = self.first_probe_block(slot.fingerprint);
        loop {
            let slots = &self.block(block).0;
            if let Some(nth) =
                slots.iter().position(|slot| slot.fingerprint == EMPTY_SLOT_FINGERPRINT)
            {
                let index = block * SLOTS_PER_BLOCK + nth;
                *self.slot_mut(index) = slot;
                self.len += 1;
                return index;
            }
            block = self.next_probe_block(block);
        }
    }

    /// Rebuilds the table with the given number of chunks.
    fn rebuild(&mut self, chunks: usize) {
        // The relative position of the sweep is kept, so that a table that keeps growing is swept to its end.
        self.next_block = (self.next_block as usize * chunks / self.chunks.len().max(1)) as u32;
        let mut slots = Vec::with_capacity(self.len as usize);
        let blocks = self.chunks.iter_mut().flat_map(|chunk| &mut chunk.0);
        for slot in blocks.flat_map(|block| &mut block.0) {
            if slot.fingerprint != EMPTY_SLOT_FINGERPRINT {
                slots.push(std::mem::take(slot));
            }
        }
        let mut list = std::mem::take(&mut self.chunks).into_vec();
        list.reserve_exact(chunks.saturating_sub(list.len()));
        list.resize_with(chunks, Box::default);
        self.chunks = list.into();
        self.len = 0;
        for slot in slots {
            self.place_slot(slot);
        }
    }

    /// Returns the number of steps of the probe sequence from the block `from` to the block `to`.
    fn probe_distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.blocks() - from }
    }
}

impl<S> Table<S> {
    /// Iterates over all fingerprints and slots in arbitrary order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut Slot<S>)> {
        let blocks = self.chunks.iter_mut().flat_map(|chunk| &mut chunk.0);
        let slots = blocks.flat_map(|block| &mut block.0);
        slots
            .filter(|slot| slot.fingerprint != EMPTY_SLOT_FINGERPRINT)
            .map(|slot| (slot.fingerprint, slot))
    }
}

impl<S: Default + HeapSize> Evict for Table<S> {
    #[inline(always)]
    fn blocks(&self) -> usize {
        self.chunks.len() * BLOCKS_PER_CHUNK
    }

    fn sweep(&mut self, now: CoarseTime) -> usize {
        if self.is_empty() {
            return 0;
        }
        let mut swept = 0;
        let first = self.next_block as usize * SLOTS_PER_BLOCK;
        while let Some(index) = (first..first + SLOTS_PER_BLOCK).find(|&index| {
            let slot = self.slot(index);
            slot.fingerprint != EMPTY_SLOT_FINGERPRINT && slot.expires < now
        }) {
            self.remove(index);
            swept += 1;
        }
        self.next_block = self.next_probe_block(self.next_block as usize) as u32;
        let slots = self.blocks() * SLOTS_PER_BLOCK;
        if self.chunks.len() > 1 && (self.len as usize) * 10 < slots * 4 {
            self.rebuild(
                (self.len as usize * 5).div_ceil(BLOCKS_PER_CHUNK * SLOTS_PER_BLOCK * 4).max(1),
            );
        }
        swept
    }

    fn eviction_candidate(&mut self, now: CoarseTime) -> Option<EvictionCandidate> {
        let mut soonest: Option<EvictionCandidate> = None;
        for examined in 0..self.blocks() {
            if examined >= MIN_BLOCKS_PER_EVICTION_SAMPLE && soonest.is_some() {
                break;
            }
            let first = self.next_block as usize * SLOTS_PER_BLOCK;
            for index in first..first + SLOTS_PER_BLOCK {
                let slot = self.slot(index);
                let is_evictable =
                    slot.fingerprint != EMPTY_SLOT_FINGERPRINT && slot.denied_until <= now;
                if is_evictable && soonest.is_none_or(|soonest| slot.expires < soonest.expires) {
                    soonest = Some(EvictionCandidate { slot: index, expires: slot.expires });
                }
            }
            self.next_block = self.next_probe_block(self.next_block as usize) as u32;
        }
        soonest
    }

    fn candidate_by_denial_end(&self) -> Option<EvictionCandidate> {
        let is_evictable = |slot: &Slot<S>| {
            slot.fingerprint != EMPTY_SLOT_FINGERPRINT && slot.denied_until != PINNED
        };
        let slots =
            (0..self.blocks() * SLOTS_PER_BLOCK).filter(|&index| is_evictable(self.slot(index)));
        slots
            .min_by_key(|&index| self.slot(index).denied_until)
            .map(|slot| EvictionCandidate { slot, expires: self.slot(slot).denied_until })
    }

    /// Removes the key in a slot. Then closes the gap in the probe sequences: slots that full blocks have displaced
    /// into later blocks move back towards the first blocks of their probe sequences.
    fn remove(&mut self, slot: usize) {
        let mut block = slot / SLOTS_PER_BLOCK;
        let mut hole = slot;
        let mut was_full = self.block(block).is_full();
        let removed = std::mem::take(self.slot_mut(hole));
        self.heap_bytes -= removed.state.heap_bytes();
        self.len -= 1;
        while was_full {
            block = self.next_probe_block(block);
            if block == slot / SLOTS_PER_BLOCK {
                return;
            }
            was_full = self.block(block).is_full();
            let hole_block = hole / SLOTS_PER_BLOCK;
            let displaced =
                (0..SLOTS_PER_BLOCK).map(|nth| block * SLOTS_PER_BLOCK + nth).find(|&index| {
                    let slot = self.slot(index);
                    slot.fingerprint != EMPTY_SLOT_FINGERPRINT
                        && self.probe_distance(self.first_probe_block(slot.fingerprint), block)
                            >= self.probe_distance(hole_block, block)
                });
            if let Some(from) = displaced {
                *self.slot_mut(hole) = std::mem::take(self.slot_mut(from));
                hole = from;
            }
        }
    }

    #[inline]
    fn bytes(&self) -> usize {
        self.chunks.len() * chunk_bytes::<S>() + self.heap_bytes
    }

    /// Rebuilds the table if less than thirteen sixteenths of its slots are used. Afterwards fourteen sixteenths are
    /// used, so the table neither grows at the next insertion nor is rebuilt at each removal.
    fn trim(&mut self) {
        let chunks = (self.len as usize * 16).div_ceil(BLOCKS_PER_CHUNK * SLOTS_PER_BLOCK * 14);
        let is_sparse = (self.len as usize) * 16 < self.blocks() * SLOTS_PER_BLOCK * 13;
        if is_sparse && chunks < self.chunks.len() {
            self.rebuild(chunks);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn collect_states(table: &Table<u32>) -> HashMap<u64, u32> {
        let blocks = table.chunks.iter().flat_map(|chunk| &chunk.0);
        let all = blocks.flat_map(|block| &block.0);
        all.filter(|slot| slot.fingerprint != EMPTY_SLOT_FINGERPRINT)
            .map(|slot| (slot.fingerprint, slot.state))
            .collect()
    }

    proptest! {
        /// Compares a table with a `HashMap`. The probe sequences of the fingerprints begin at only a few blocks, so
        /// that blocks overflow, and slots wrap around and are moved back.
        #[test]
        fn state_table_behaves_like_hash_map(
            steps in proptest::collection::vec((any::<bool>(), 0u64..40, any::<u32>()), 1..400),
        ) {
            let mut table = Table::default();
            let mut map = HashMap::new();
            for (is_insert, key, state) in steps {
                let fingerprint = ((key << 32) | ((key % 5) * 0x3fff_ffff)) + 1;
                match (is_insert, table.find(fingerprint)) {
                    (true, found) => {
                        let index = found.unwrap_or_else(|| table.insert(fingerprint));
                        table.slot_mut(index).state = state;
                        map.insert(fingerprint, state);
                    }
                    (false, Some(index)) => {
                        table.remove(index);
                        map.remove(&fingerprint);
                    }
                    (false, None) => prop_assert!(!map.contains_key(&fingerprint)),
                }
                prop_assert_eq!(&collect_states(&table), &map);
                for (&fingerprint, &state) in &map {
                    let found = table.find(fingerprint).map(|index| table.slot(index).state);
                    prop_assert_eq!(found, Some(state));
                }
            }
        }

        #[test]
        fn table_sweep_removes_only_expired_keys(
            expires in proptest::collection::vec(0u32..10, 1..300),
            now in 0u32..10,
        ) {
            let mut table = Table::<u32>::default();
            for (key, &expires) in expires.iter().enumerate() {
                let index = table.insert((key as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                table.slot_mut(index).expires = expires;
            }
            let mut swept = 0;
            for _ in 0..2 * expires.len() + BLOCKS_PER_CHUNK {
                swept += table.sweep(now);
            }
            let expired = expires.iter().filter(|&&expires| expires < now).count();
            prop_assert_eq!(swept, expired);
            prop_assert_eq!(collect_states(&table).len(), expires.len() - expired);
        }
    }

    #[test]
    fn sliding_window_slot_takes_half_cache_line() {
        type State = crate::algorithm::sliding_window::State;
        assert_eq!(size_of::<Slot<State>>(), 32);
        assert_eq!(size_of::<Block<State>>(), 128);
    }

    #[test]
    fn eviction_candidate_is_undenied_and_expires_first() {
        let mut table = Table::<u32>::default();
        for (key, expires, denied_until) in [(1, 9, 0), (2, 5, 0), (3, 1, 8)] {
            let index = table.insert(key << 8);
            table.slot_mut(index).expires = expires;
            table.slot_mut(index).denied_until = denied_until;
        }
        let candidate = table.eviction_candidate(7).unwrap();
        assert_eq!(table.slot(candidate.slot).fingerprint, 2 << 8);
        table.remove(candidate.slot);
        let candidate = table.eviction_candidate(7).unwrap();
        assert_eq!(table.slot(candidate.slot).fingerprint, 1 << 8);
        table.remove(candidate.slot);
        assert_eq!(table.eviction_candidate(7), None);
        assert!(table.eviction_candidate(8).is_some(), "no longer denied");
    }
}
