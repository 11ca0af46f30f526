//! The memory that values take: allocations on the heap, as counted against the memory budget of a store, and numbers
//! that need no padding.

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

/// A number of 64 bits with the alignment of a `u32`, so that a struct with other 32-bit numbers needs no padding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(Rust, packed(4))]
pub(crate) struct CompactU64(u64);

impl CompactU64 {
    #[inline]
    pub(crate) fn get(self) -> u64 {
        self.0
    }
}

impl From<u64> for CompactU64 {
    #[inline]
    fn from(value: u64) -> Self {
        Self(value)
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

    #[test]
    fn compact_number_needs_no_padding() {
        assert_eq!(size_of::<(CompactU64, u32)>(), 12);
    }
}
