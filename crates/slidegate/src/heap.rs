//! Sizes of what states hold on the heap.

/// Memory that a value holds beyond its own size.
pub trait HeapSize {
    /// Returns the bytes that are allocated for the value on the heap, with what the allocator adds. Its capacity
    /// counts, not its length.
    fn heap_bytes(&self) -> usize {
        0
    }
}

/// Returns the bytes that an allocator takes for an allocation of `bytes`: 8 more of its own, in steps of 16, and 32
/// at least.
#[inline]
pub const fn allocated_bytes(bytes: usize) -> usize {
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
    fn allocation_takes_whole_steps() {
        for (bytes, allocated) in [(0, 0), (1, 32), (24, 32), (25, 48), (40, 48), (41, 64)] {
            assert_eq!(allocated_bytes(bytes), allocated, "{bytes}");
        }
    }
}
