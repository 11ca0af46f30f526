//! A 64-bit number that is stored as two 32-bit numbers, so that a struct with other 32-bit numbers needs no padding.

/// A number of 64 bits with the alignment of a `u32`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct CompactU64 {
    high: u32,
    low: u32,
}

impl CompactU64 {
    #[inline]
    pub(crate) fn get(self) -> u64 {
        u64::from(self.high) << 32 | u64::from(self.low)
    }
}

impl From<u64> for CompactU64 {
    #[inline]
    fn from(value: u64) -> Self {
        Self { high: (value >> 32) as u32, low: value as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unchanged() {
        for value in [0, 1, u64::from(u32::MAX), 1 << 32, u64::MAX - 1] {
            assert_eq!(CompactU64::from(value).get(), value);
        }
    }
}
