//! The size of heap allocations, as counted against the memory budget of a store.

/// A value that can report the size of its heap allocations.
pub trait HeapSize {
    /// Returns the bytes allocated on the heap for the value, including the allocator's overhead. For a collection,
    /// this is the memory of its whole capacity, including unused capacity.
    fn heap_bytes(&self) -> usize {
        0
    }
}

/// Returns the bytes that an allocator reserves for an allocation of `bytes`: a header of 8 bytes is added, the sum is
/// rounded up to a multiple of 16, and the minimum is 32.
pub const fn allocator_block_bytes(bytes: usize) -> usize {
    match bytes {
        0..=24 => 32 * (bytes != 0) as usize,
        _ => bytes.saturating_add(8).next_multiple_of(16),
    }
}

#[cfg(test)]
impl HeapSize for u32 {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocated_bytes_are_rounded_up() {
        for (bytes, allocated) in [(0, 0), (1, 32), (24, 32), (25, 48), (40, 48), (41, 64)] {
            assert_eq!(allocator_block_bytes(bytes), allocated, "{bytes}");
        }
    }
}
