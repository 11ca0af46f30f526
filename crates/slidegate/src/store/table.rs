//! A table of states by fingerprint: open addressing over blocks of four slots. Stores in memory are made of many,
//! each behind a lock of its own.
//!
//! A slot of a two-count state is 32 bytes, so a block is a pair of cache lines that the processor
//! fetches together, and most look-ups end in their first block, even at fifteen sixteenths full. Growing
//! by a sixteenth, not by doubling, keeps the memory close to what is needed. Nothing is ever marked as
//! deleted: what was pushed on by a full block moves back when that has room again.
//!
//! Blocks are allocated in chunks, which a growing table keeps. If a table were one allocation, each size that it had
//! would leave a hole among the small allocations of states: four times as much memory as is in use.

use std::hint::black_box;

use crate::heap::HeapSize;

/// Blocks in a chunk.
const CHUNK: usize = 16;

/// Bytes that an aligned chunk takes beyond its size.
const CHUNK_EXTRA: usize = align_of::<Block<()>>();

/// Time in steps of 2^16 microseconds since the store began: enough to forget by.
pub type CoarseTime = u32;

/// Slots in a block.
pub const WIDTH: usize = 4;

/// A slot that is denied until then is not evicted at all.
pub const PINNED: CoarseTime = CoarseTime::MAX;

/// The fingerprint of an empty slot.
const EMPTY: u64 = 0;

/// Blocks that a search for a key to evict looks at, at least.
const SAMPLE: usize = 4;

/// One key's state, and what is needed to forget it without knowing its limit.
pub struct Slot<S> {
    fingerprint: u64,
    /// From here on the state is as if never seen.
    pub expires: CoarseTime,
    /// Until here not one unit fits.
    pub denied_until: CoarseTime,
    /// What is kept.
    pub state: S,
}

impl<S: Default> Default for Slot<S> {
    fn default() -> Self {
        Self { fingerprint: EMPTY, expires: 0, denied_until: 0, state: S::default() }
    }
}

#[derive(Default)]
#[repr(align(128))]
struct Block<S>([Slot<S>; WIDTH]);

#[derive(Default)]
struct Chunk<S>([Block<S>; CHUNK]);

/// Returns the bytes of a slot in a table of such states, with its part of what a chunk takes beyond its slots.
pub const fn slot_bytes<S>() -> usize {
    chunk_bytes::<S>() / (CHUNK * WIDTH)
}

/// Returns the bytes of a chunk, with its place in the list of chunks and with what the allocator adds.
const fn chunk_bytes<S>() -> usize {
    size_of::<Chunk<S>>() + CHUNK_EXTRA + size_of::<Box<Chunk<S>>>()
}

impl<S> Block<S> {
    fn is_full(&self) -> bool {
        self.0.iter().all(|slot| slot.fingerprint != EMPTY)
    }
}

/// A key that may be forgotten for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictionCandidate {
    /// Where it is.
    pub at: usize,
    /// When it would have expired, or, of those that are being denied, when it will not be any more.
    pub expires: CoarseTime,
}

/// The part of a table that knows nothing of its states: what forgets.
pub trait Evict {
    /// Blocks in the table.
    fn blocks(&self) -> usize;

    /// Forgets what has expired in the next block; says how many.
    fn sweep(&mut self, now: CoarseTime) -> usize;

    /// Of the next few keys the one that goes first: that which expires the soonest, but none that is
    /// being denied. Looks further only while it finds none.
    fn victim(&mut self, now: CoarseTime) -> Option<EvictionCandidate>;

    /// The key that is the soonest not to be denied any more.
    fn soonest_freed(&self) -> Option<EvictionCandidate>;

    /// Removes the slot at `at`.
    fn remove(&mut self, at: usize);

    /// Returns the bytes of the blocks and of what the states hold on the heap.
    fn bytes(&self) -> usize;

    /// Gives blocks back, if enough slots are free.
    fn trim(&mut self);
}

/// States by fingerprint.
pub struct Table<S> {
    chunks: Box<[Box<Chunk<S>>]>,
    len: u32,
    /// The block that the next sweep looks at.
    hand: u32,
    /// Bytes that the states hold on the heap.
    heap_bytes: usize,
}

impl<S> Default for Table<S> {
    fn default() -> Self {
        Self { chunks: Box::default(), len: 0, hand: 0, heap_bytes: 0 }
    }
}

impl<S: Default + HeapSize> Table<S> {
    /// Whether it has no states.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The block in which a fingerprint belongs. The shard is chosen by the upper half of the
    /// fingerprint, the block by the lower.
    #[inline]
    fn home(&self, fingerprint: u64) -> usize {
        (((fingerprint & u64::from(u32::MAX)) * self.blocks() as u64) >> 32) as usize
    }

    #[inline(always)]
    fn block(&self, block: usize) -> &Block<S> {
        &self.chunks[block / CHUNK].0[block % CHUNK]
    }

    fn next(&self, block: usize) -> usize {
        if block + 1 == self.blocks() { 0 } else { block + 1 }
    }

    /// Loads where a fingerprint belongs, so that the loads of several may overlap.
    #[inline]
    pub fn touch(&self, fingerprint: u64) {
        let home = self.home(fingerprint);
        if let Some(chunk) = self.chunks.get(home / CHUNK) {
            let block = &chunk.0[home % CHUNK];
            black_box(block.0[0].fingerprint ^ block.0[WIDTH / 2].fingerprint);
        }
    }

    /// Where the slot of a fingerprint is.
    #[inline]
    pub fn find(&self, fingerprint: u64) -> Option<usize> {
        let mut block = self.home(fingerprint);
        for _ in 0..self.blocks() {
            // All four at once: which of them it is, is no branch to guess.
            let found_in = self.block(block);
            let slots = &found_in.0;
            let at = |nth: usize| u32::from(slots[nth].fingerprint == fingerprint) << nth;
            let found = at(0) | at(1) | at(2) | at(3);
            if found != 0 {
                return Some(block * WIDTH + found.trailing_zeros() as usize);
            }
            if !found_in.is_full() {
                return None;
            }
            block = self.next(block);
        }
        None
    }

    /// The slot at a place that [`find`](Self::find) or [`insert`](Self::insert) has told.
    #[inline(always)]
    pub fn slot(&self, at: usize) -> &Slot<S> {
        &self.block(at / WIDTH).0[at % WIDTH]
    }

    /// Changes the state in a slot. Also returns by how many bytes the state has grown on the heap.
    #[inline(always)]
    pub fn change<R>(&mut self, at: usize, change: impl FnOnce(&mut Slot<S>) -> R) -> (R, isize) {
        let slot = self.slot_mut(at);
        let before = slot.state.heap_bytes();
        let result = change(slot);
        let after = slot.state.heap_bytes();
        (result, self.count_heap(before, after))
    }

    /// Counts that a state took `before` bytes on the heap, and takes `after` now. Returns by how many it has grown.
    #[inline(always)]
    pub fn count_heap(&mut self, before: usize, after: usize) -> isize {
        if before == after {
            return 0;
        }
        self.heap_bytes = self.heap_bytes + after - before;
        after as isize - before as isize
    }

    /// [`slot`](Self::slot), to change anything that does not change the size of its state on the heap.
    #[inline(always)]
    pub fn slot_mut(&mut self, at: usize) -> &mut Slot<S> {
        let block = at / WIDTH;
        &mut self.chunks[block / CHUNK].0[block % CHUNK].0[at % WIDTH]
    }

    /// Gives a fingerprint that is not in the table an empty state, and says where.
    pub fn insert(&mut self, fingerprint: u64) -> usize {
        debug_assert_ne!(fingerprint, EMPTY);
        let step = self.chunks_to_add(fingerprint);
        if step > 0 {
            self.rebuild(self.chunks.len() + step);
        }
        self.place(Slot { fingerprint, ..Slot::default() })
    }

    /// Chunks that the table needs more for one more fingerprint.
    #[inline]
    fn chunks_to_add(&self, fingerprint: u64) -> usize {
        if (self.len as usize + 1) * 16 <= self.blocks() * WIDTH * 15 {
            return 0;
        }
        // By a sixteenth or a little more: if all shards grew by the same steps, they would all grow
        // at the same time, and none could use the room that another has left.
        let chunks = self.chunks.len();
        (chunks / 16).max(1) + fingerprint as usize % (chunks / 16 + 1)
    }

    /// Returns by how many bytes the table grows if that fingerprint is inserted.
    pub fn growth(&self, fingerprint: u64) -> usize {
        self.chunks_to_add(fingerprint) * chunk_bytes::<S>()
    }

    /// Puts a slot into the first free place from its home on. There is one: the table is never full.
    fn place(&mut self, slot: Slot<S>) -> usize {
        let mut block = self.home(slot.fingerprint);
        loop {
            let slots = &self.block(block).0;
            if let Some(nth) = slots.iter().position(|slot| slot.fingerprint == EMPTY) {
                let at = block * WIDTH + nth;
                *self.slot_mut(at) = slot;
                self.len += 1;
                return at;
            }
            block = self.next(block);
        }
    }

    fn rebuild(&mut self, chunks: usize) {
        // It stays where it was among the homes, so that a table that keeps growing is swept to its end.
        self.hand = (self.hand as usize * chunks / self.chunks.len().max(1)) as u32;
        let mut slots = Vec::with_capacity(self.len as usize);
        let blocks = self.chunks.iter_mut().flat_map(|chunk| &mut chunk.0);
        for slot in blocks.flat_map(|block| &mut block.0) {
            if slot.fingerprint != EMPTY {
                slots.push(std::mem::take(slot));
            }
        }
        let mut list = std::mem::take(&mut self.chunks).into_vec();
        list.reserve_exact(chunks.saturating_sub(list.len()));
        list.resize_with(chunks, Box::default);
        self.chunks = list.into();
        self.len = 0;
        for slot in slots {
            self.place(slot);
        }
    }

    /// Blocks from one to another, going round.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.blocks() - from }
    }
}

impl<S> Table<S> {
    /// All states with their fingerprints, in no order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut Slot<S>)> {
        let blocks = self.chunks.iter_mut().flat_map(|chunk| &mut chunk.0);
        let slots = blocks.flat_map(|block| &mut block.0);
        slots.filter(|slot| slot.fingerprint != EMPTY).map(|slot| (slot.fingerprint, slot))
    }
}

impl<S: Default + HeapSize> Evict for Table<S> {
    #[inline(always)]
    fn blocks(&self) -> usize {
        self.chunks.len() * CHUNK
    }

    fn sweep(&mut self, now: CoarseTime) -> usize {
        if self.is_empty() {
            return 0;
        }
        let mut swept = 0;
        let first = self.hand as usize * WIDTH;
        while let Some(at) = (first..first + WIDTH).find(|&at| {
            let slot = self.slot(at);
            slot.fingerprint != EMPTY && slot.expires < now
        }) {
            self.remove(at);
            swept += 1;
        }
        self.hand = self.next(self.hand as usize) as u32;
        let slots = self.blocks() * WIDTH;
        if self.chunks.len() > 1 && (self.len as usize) * 10 < slots * 4 {
            self.rebuild((self.len as usize * 5).div_ceil(CHUNK * WIDTH * 4).max(1));
        }
        swept
    }

    fn victim(&mut self, now: CoarseTime) -> Option<EvictionCandidate> {
        let mut soonest: Option<EvictionCandidate> = None;
        for looked_at in 0..self.blocks() {
            if looked_at >= SAMPLE && soonest.is_some() {
                break;
            }
            let first = self.hand as usize * WIDTH;
            for at in first..first + WIDTH {
                let slot = self.slot(at);
                let may_go = slot.fingerprint != EMPTY && slot.denied_until <= now;
                if may_go && soonest.is_none_or(|soonest| slot.expires < soonest.expires) {
                    soonest = Some(EvictionCandidate { at, expires: slot.expires });
                }
            }
            self.hand = self.next(self.hand as usize) as u32;
        }
        soonest
    }

    fn soonest_freed(&self) -> Option<EvictionCandidate> {
        let may_go = |slot: &Slot<S>| slot.fingerprint != EMPTY && slot.denied_until != PINNED;
        let slots = (0..self.blocks() * WIDTH).filter(|&at| may_go(self.slot(at)));
        slots
            .min_by_key(|&at| self.slot(at).denied_until)
            .map(|at| EvictionCandidate { at, expires: self.slot(at).denied_until })
    }

    /// Lets what was pushed on by its full block move back.
    fn remove(&mut self, at: usize) {
        let mut block = at / WIDTH;
        let mut hole = at;
        let mut was_full = self.block(block).is_full();
        let removed = std::mem::take(self.slot_mut(hole));
        self.heap_bytes -= removed.state.heap_bytes();
        self.len -= 1;
        while was_full {
            block = self.next(block);
            if block == at / WIDTH {
                return;
            }
            was_full = self.block(block).is_full();
            let hole_block = hole / WIDTH;
            let pushed_on = (0..WIDTH).map(|nth| block * WIDTH + nth).find(|&at| {
                let slot = self.slot(at);
                slot.fingerprint != EMPTY
                    && self.distance(self.home(slot.fingerprint), block)
                        >= self.distance(hole_block, block)
            });
            if let Some(from) = pushed_on {
                *self.slot_mut(hole) = std::mem::take(self.slot_mut(from));
                hole = from;
            }
        }
    }

    #[inline]
    fn bytes(&self) -> usize {
        self.chunks.len() * chunk_bytes::<S>() + self.heap_bytes
    }

    /// Below thirteen sixteenths full it is rebuilt at fourteen, so that it neither grows again at the next key nor is
    /// rebuilt for each that goes.
    fn trim(&mut self) {
        let chunks = (self.len as usize * 16).div_ceil(CHUNK * WIDTH * 14);
        let is_sparse = (self.len as usize) * 16 < self.blocks() * WIDTH * 13;
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

    fn states(table: &Table<u32>) -> HashMap<u64, u32> {
        let blocks = table.chunks.iter().flat_map(|chunk| &chunk.0);
        let all = blocks.flat_map(|block| &block.0);
        all.filter(|slot| slot.fingerprint != EMPTY)
            .map(|slot| (slot.fingerprint, slot.state))
            .collect()
    }

    proptest! {
        /// Few homes, so that blocks overflow, wrap around and move back.
        #[test]
        fn holds_what_a_map_holds(
            steps in proptest::collection::vec((any::<bool>(), 0u64..40, any::<u32>()), 1..400),
        ) {
            let mut table = Table::default();
            let mut map = HashMap::new();
            for (put, key, state) in steps {
                let fingerprint = ((key << 32) | ((key % 5) * 0x3fff_ffff)) + 1;
                match (put, table.find(fingerprint)) {
                    (true, found) => {
                        let at = found.unwrap_or_else(|| table.insert(fingerprint));
                        table.slot_mut(at).state = state;
                        map.insert(fingerprint, state);
                    }
                    (false, Some(at)) => {
                        table.remove(at);
                        map.remove(&fingerprint);
                    }
                    (false, None) => prop_assert!(!map.contains_key(&fingerprint)),
                }
                prop_assert_eq!(&states(&table), &map);
                for (&fingerprint, &state) in &map {
                    let at = table.find(fingerprint);
                    prop_assert_eq!(at.map(|at| table.slot(at).state), Some(state));
                }
            }
        }

        #[test]
        fn a_sweep_takes_the_expired_and_nothing_else(
            expires in proptest::collection::vec(0u32..10, 1..300),
            now in 0u32..10,
        ) {
            let mut table = Table::<u32>::default();
            for (key, &expires) in expires.iter().enumerate() {
                let at = table.insert((key as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                table.slot_mut(at).expires = expires;
            }
            let mut swept = 0;
            for _ in 0..2 * expires.len() + CHUNK {
                swept += table.sweep(now);
            }
            let expired = expires.iter().filter(|&&expires| expires < now).count();
            prop_assert_eq!(swept, expired);
            prop_assert_eq!(states(&table).len(), expires.len() - expired);
        }
    }

    #[test]
    fn a_slot_of_two_counts_is_half_a_cache_line() {
        type State = crate::algorithm::sliding_window::State;
        assert_eq!(size_of::<Slot<State>>(), 32);
        assert_eq!(size_of::<Block<State>>(), 128);
    }

    #[test]
    fn the_victim_expires_soonest_and_is_not_being_denied() {
        let mut table = Table::<u32>::default();
        for (key, expires, denied_until) in [(1, 9, 0), (2, 5, 0), (3, 1, 8)] {
            let at = table.insert(key << 8);
            table.slot_mut(at).expires = expires;
            table.slot_mut(at).denied_until = denied_until;
        }
        let victim = table.victim(7).unwrap();
        assert_eq!(table.slot(victim.at).fingerprint, 2 << 8);
        table.remove(victim.at);
        let victim = table.victim(7).unwrap();
        assert_eq!(table.slot(victim.at).fingerprint, 1 << 8);
        table.remove(victim.at);
        assert_eq!(table.victim(7), None);
        assert!(table.victim(8).is_some(), "no longer denied");
    }
}
