//! Groups of slots, in chunks that are allocated at once, and one word of tags for each group.
//!
//! The lowest seven bytes of a group's word are the tags of its slots. A tag is 0 if the slot is free; otherwise its
//! top bit is set, and the other bits are a part of the key's fingerprint. The highest byte is the number of keys that
//! have passed this group because it was full.

use super::Slot;

/// The number of slots in a group.
pub const SLOTS_PER_GROUP: usize = 7;

/// The number of groups in a chunk.
pub(super) const GROUPS_PER_CHUNK: usize = 8;

/// One in each tag of a word.
const ONES: u64 = 0x0001_0101_0101_0101;

/// The top bit of each tag of a word.
const TOP_BITS: u64 = ONES << 7;

/// The position of the number of passed keys in a word.
const PASSED_SHIFT: u32 = 56;

/// The largest number of passed keys in a word. A number that has reached it is no longer exact, and stays.
const MAX_PASSED: u64 = 0xff;

/// The tags of a group, and the number of keys that have passed the group.
#[derive(Clone, Copy, Default)]
pub(super) struct Tags(u64);

impl Tags {
    /// Returns the tag of a fingerprint, in every byte of a word. The tag consists of the lowest bits, which determine
    /// neither the shard nor the group, and which differ between several limits of one key.
    #[inline(always)]
    pub(super) fn pattern(fingerprint: u64) -> u64 {
        ((fingerprint & 0x7f) | 0x80) * ONES
    }

    /// Returns the slots that may have a fingerprint, given its [`pattern`](Self::pattern): all slots with the same
    /// tag, and rarely others.
    #[inline(always)]
    pub(super) fn matches(self, pattern: u64) -> SlotSet {
        // A byte of `difference` is 0 if the tags are the same. The formula finds all bytes that are 0: see "Determine
        // if a word has a zero byte" in S. E. Anderson's Bit Twiddling Hacks.
        let difference = self.0 ^ pattern;
        SlotSet(difference.wrapping_sub(ONES) & !difference & TOP_BITS)
    }

    /// Returns the slots that contain a key.
    #[inline]
    pub(super) fn used(self) -> SlotSet {
        SlotSet(self.0 & TOP_BITS)
    }

    /// Returns whether a slot contains a key.
    pub(super) fn is_used(self, slot: usize) -> bool {
        self.0 >> (8 * slot) & 0x80 != 0
    }

    /// Returns the index of a free slot; `None` if the group is full.
    #[inline]
    pub(super) fn first_free(self) -> Option<usize> {
        SlotSet(!self.0 & TOP_BITS).next()
    }

    /// Returns whether keys have passed this group, so that a search has to continue.
    #[inline(always)]
    pub(super) fn has_passed_keys(self) -> bool {
        self.0 >> PASSED_SHIFT != 0
    }

    pub(super) fn add_passed_key(&mut self) {
        if self.0 >> PASSED_SHIFT < MAX_PASSED {
            self.0 += 1 << PASSED_SHIFT;
        }
    }

    pub(super) fn remove_passed_key(&mut self) {
        debug_assert!(self.has_passed_keys(), "the key was counted when it passed");
        if self.0 >> PASSED_SHIFT < MAX_PASSED {
            self.0 -= 1 << PASSED_SHIFT;
        }
    }

    /// Sets the tag of a free slot, from the pattern of the slot's fingerprint.
    pub(super) fn occupy(&mut self, slot: usize, pattern: u64) {
        self.0 |= pattern & 0xff << (8 * slot);
    }

    pub(super) fn free(&mut self, slot: usize) {
        self.0 &= !(0xff << (8 * slot));
    }
}

/// A set of slots of one group. Iterates over their indices.
pub(super) struct SlotSet(u64);

impl Iterator for SlotSet {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let index = self.0.trailing_zeros() as usize / 8;
        self.0 &= self.0 - 1;
        Some(index)
    }
}

/// The slots of a group. They are aligned so that a slot of 32 bytes is on one cache line.
#[derive(Default)]
#[repr(align(32))]
pub(super) struct Group<S>(pub(super) [Slot<S>; SLOTS_PER_GROUP]);

/// Some groups that are allocated at once, and their tags.
pub(super) struct Chunk<S> {
    pub(super) tags: [Tags; GROUPS_PER_CHUNK],
    /// The groups; empty until they are [allocated](Self::allocate).
    pub(super) groups: Box<[Group<S>]>,
}

impl<S> Default for Chunk<S> {
    fn default() -> Self {
        Self { tags: Default::default(), groups: Box::default() }
    }
}

impl<S: Default> Chunk<S> {
    /// Allocates the groups, unless they exist.
    pub(super) fn allocate(&mut self) {
        if self.groups.is_empty() {
            self.groups = (0..GROUPS_PER_CHUNK).map(|_| Group::default()).collect();
        }
    }
}

/// Returns the number of bytes that a chunk takes, including the allocator's overhead for the groups, which is their
/// alignment.
pub(super) const fn chunk_bytes<S>() -> usize {
    size_of::<Chunk<S>>() + size_of::<[Group<S>; GROUPS_PER_CHUNK]>() + align_of::<Group<S>>()
}
