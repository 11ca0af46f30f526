//! A queue on the heap for what a state keeps of the past.

use crate::heap::{HeapSize, allocated_bytes};

/// Items, first in, first out. Unlike a `VecDeque` it takes 24 bytes, so that a state's slot in a table is one cache
/// line, and its capacity follows its length down as well as up.
#[derive(Clone, Debug, Default)]
pub(super) struct Ring<T> {
    room: Box<[T]>,
    first: u32,
    len: u32,
}

impl<T: Copy + Default> Ring<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// Items from the oldest to the newest.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = T> + ExactSizeIterator + '_ {
        (0..self.len()).map(|nth| self.room[self.place(nth)])
    }

    #[inline]
    pub(super) fn get(&self, nth: usize) -> Option<T> {
        (nth < self.len()).then(|| self.room[self.place(nth)])
    }

    /// Replaces the `nth` item, which exists.
    pub(super) fn set(&mut self, nth: usize, item: T) {
        let place = self.place(nth);
        self.room[place] = item;
    }

    /// Removes the first `count` items, which exist.
    #[inline(always)]
    pub(super) fn drop_first(&mut self, count: usize) {
        self.first = self.place(count) as u32;
        self.len -= count as u32;
    }

    /// Removes all but the first `count` items, which exist.
    pub(super) fn truncate(&mut self, count: usize) {
        self.len = count as u32;
    }

    /// Removes `count` items from the `nth` on, which exist.
    pub(super) fn remove(&mut self, nth: usize, count: usize) {
        if nth == 0 {
            return self.drop_first(count);
        }
        for later in nth + count..self.len() {
            let item = self.room[self.place(later)];
            self.set(later - count, item);
        }
        self.len -= count as u32;
    }

    /// Where the `nth` item lies, or would.
    #[inline(always)]
    fn place(&self, nth: usize) -> usize {
        let place = self.first as usize + nth;
        if place < self.room.len() { place } else { place - self.room.len() }
    }

    /// Adds an item. The owner never holds more than `most` items, so the capacity does not exceed that either.
    #[inline(always)]
    pub(super) fn push(&mut self, item: T, most: usize) {
        let len = self.len() + 1;
        if len > self.room.len() || 4 * len < self.room.len() {
            self.resize(len, most);
        }
        self.room[self.place(self.len())] = item;
        self.len += 1;
    }

    /// Makes room for `len` items, and half as many again instead of doubling, so that a full ring is never half empty.
    #[cold]
    fn resize(&mut self, len: usize, most: usize) {
        let mut room = Vec::with_capacity(capacity::<T>(len).min(most.max(len)));
        room.extend(self.iter());
        room.resize(room.capacity(), T::default());
        self.room = room.into();
        self.first = 0;
    }
}

impl<T> HeapSize for Ring<T> {
    #[inline(always)]
    fn heap_bytes(&self) -> usize {
        allocated_bytes(size_of_val(&*self.room))
    }
}

/// Capacity of a ring that is resized to `len` items: whole steps of the allocator.
fn capacity<T>(len: usize) -> usize {
    let bytes = size_of::<T>() * (len + len / 2);
    // An allocation of 24, 40, 56... bytes fits an allocator's step of 16 bytes, of which 8 are its own.
    (bytes.max(24) + 8).next_multiple_of(16).saturating_sub(8) / size_of::<T>()
}

/// Returns the heap bytes of a ring at worst, whose owner never holds more than `most` items.
pub(super) fn max_heap_bytes<T>(most: usize) -> usize {
    allocated_bytes(size_of::<T>() * most)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const MAX: usize = 50;

    proptest! {
        #[test]
        fn ring_behaves_like_deque(steps in prop::collection::vec((0..8_u8, 0..60_usize), 1..400)) {
            let (mut ring, mut deque) = (Ring::default(), VecDeque::new());
            for (nth, (what, number)) in steps.into_iter().enumerate() {
                let at = number % deque.len().max(1);
                match what {
                    0 => {
                        ring.drop_first(at);
                        deque.drain(..at);
                    }
                    1 => {
                        ring.truncate(at);
                        deque.truncate(at);
                    }
                    2 => {
                        let count = number / 8 % (deque.len() - at).max(1);
                        ring.remove(at, count);
                        deque.drain(at..at + count);
                    }
                    _ if deque.len() < MAX => {
                        ring.push(nth as u64, MAX);
                        deque.push_back(nth as u64);
                        // A push leaves no more than three quarters of the capacity unused, beyond the smallest.
                        prop_assert!(ring.room.len() <= (4 * deque.len()).max(4));
                    }
                    _ => {}
                }
                prop_assert_eq!(ring.iter().collect::<Vec<_>>(), deque.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(ring.get(at), deque.get(at).copied());
                prop_assert!(ring.heap_bytes() <= max_heap_bytes::<u64>(MAX));
            }
        }
    }

    #[test]
    fn first_push_allocates_tens_of_bytes() {
        let mut ring = Ring::default();
        assert_eq!(ring.heap_bytes(), 0);
        ring.push(1_u64, 1_441);
        assert_eq!(ring.heap_bytes(), 32);
    }
}
