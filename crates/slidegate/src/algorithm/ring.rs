//! A compact ring buffer on the heap, for states that keep a history.

use crate::layout::{HeapSize, allocator_block_bytes};

/// A first-in, first-out queue. It takes 24 bytes, less than a `VecDeque`, so that the slot of a state in a hash table
/// fits into one cache line. The capacity grows and shrinks with the number of items.
#[derive(Clone, Debug, Default)]
pub(super) struct RingBuffer<T> {
    buffer: Box<[T]>,
    first: u32,
    len: u32,
}

impl<T: Copy + Default> RingBuffer<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// Iterates over the items from the oldest to the newest.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = T> + ExactSizeIterator + '_ {
        (0..self.len()).map(|index| self.buffer[self.buffer_index(index)])
    }

    pub(super) fn get(&self, index: usize) -> Option<T> {
        (index < self.len()).then(|| self.buffer[self.buffer_index(index)])
    }

    /// Replaces the item at `index`, which must exist.
    pub(super) fn set(&mut self, index: usize, item: T) {
        let position = self.buffer_index(index);
        self.buffer[position] = item;
    }

    /// Removes the first `count` items, which must exist.
    pub(super) fn remove_first(&mut self, count: usize) {
        self.first = self.buffer_index(count) as u32;
        self.len -= count as u32;
    }

    /// Keeps the first `count` items, which must exist, and removes the others.
    pub(super) fn truncate(&mut self, count: usize) {
        self.len = count as u32;
    }

    /// Removes `count` items, the first of which is at `index`. All of them must exist.
    pub(super) fn remove(&mut self, index: usize, count: usize) {
        if index == 0 {
            return self.remove_first(count);
        }
        for later in index + count..self.len() {
            let item = self.buffer[self.buffer_index(later)];
            self.set(later - count, item);
        }
        self.len -= count as u32;
    }

    /// Converts an index, counted from the oldest item, into an index in `buffer`, in which the items wrap around.
    /// There may be no item at this index yet.
    fn buffer_index(&self, index: usize) -> usize {
        let position = self.first as usize + index;
        if position < self.buffer.len() { position } else { position - self.buffer.len() }
    }

    /// Appends an item. The caller never stores more than `max_len` items, so the capacity is at most `max_len`.
    pub(super) fn push(&mut self, item: T, max_len: usize) {
        let len = self.len() + 1;
        if len > self.buffer.len() || 4 * len < self.buffer.len() {
            self.resize(len, max_len);
        }
        self.buffer[self.buffer_index(self.len())] = item;
        self.len += 1;
    }

    /// Sets the capacity to about 1.5 times `len` items, but at most `max_len`. Doubling would leave up to half of the
    /// capacity unused.
    fn resize(&mut self, len: usize, max_len: usize) {
        let mut buffer = Vec::with_capacity(capacity_for_len::<T>(len).min(max_len.max(len)));
        buffer.extend(self.iter());
        buffer.resize(buffer.capacity(), T::default());
        self.buffer = buffer.into();
        self.first = 0;
    }
}

impl<T> HeapSize for RingBuffer<T> {
    fn heap_bytes(&self) -> usize {
        allocator_block_bytes(size_of_val(&*self.buffer))
    }
}

/// Returns the capacity, in items, to which a ring with `len` items is resized. The capacity fills the memory block
/// that an allocator reserves.
fn capacity_for_len<T>(len: usize) -> usize {
    let bytes = size_of::<T>() * (len + len / 2);
    // Allocators round up to 16 bytes and add a header of 8, so allocations of 24, 40, 56... bytes waste nothing.
    (bytes.max(24) + 8).next_multiple_of(16).saturating_sub(8) / size_of::<T>()
}

/// Returns the largest number of heap bytes of a ring with at most `max_len` items.
pub(super) fn max_heap_bytes<T>(max_len: usize) -> usize {
    allocator_block_bytes(size_of::<T>() * max_len)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const MAX_TEST_RING_LEN: usize = 50;

    proptest! {
        #[test]
        fn ring_behaves_like_vec_deque(steps in prop::collection::vec((0..8_u8, 0..60_usize), 1..400)) {
            let (mut ring, mut deque) = (RingBuffer::default(), VecDeque::new());
            for (nth, (operation, number)) in steps.into_iter().enumerate() {
                let at = number % deque.len().max(1);
                match operation {
                    0 => {
                        ring.remove_first(at);
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
                    _ if deque.len() < MAX_TEST_RING_LEN => {
                        ring.push(nth as u64, MAX_TEST_RING_LEN);
                        deque.push_back(nth as u64);
                        // After a push at most three quarters of the capacity are unused, except at the smallest size.
                        prop_assert!(ring.buffer.len() <= (4 * deque.len()).max(4));
                    }
                    _ => {}
                }
                prop_assert_eq!(ring.iter().collect::<Vec<_>>(), deque.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(ring.get(at), deque.get(at).copied());
                prop_assert!(ring.heap_bytes() <= max_heap_bytes::<u64>(MAX_TEST_RING_LEN));
            }
        }
    }

    #[test]
    fn first_ring_push_allocates_32_bytes() {
        let mut ring = RingBuffer::default();
        assert_eq!(ring.heap_bytes(), 0);
        ring.push(1_u64, 1_441);
        assert_eq!(ring.heap_bytes(), 32);
    }
}
