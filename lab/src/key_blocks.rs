//! Keys that are written into small reused buffers before they are used.
//!
//! A server has just parsed the key of a request, so the bytes of the key are in the cache of the processor. A
//! benchmark writes a block of keys, and then measures only the decisions for these keys.

use std::hash::Hash;
use std::ops::Range;

/// The number of keys in a block: so few that their buffers stay in the cache.
pub const KEYS_PER_BLOCK: usize = 1_000;

/// A key that can be written into a reused buffer.
pub trait ReusableKey: Clone + Eq + Hash + Send + Sync + 'static {
    /// Creates a key. Its buffer has enough space for every key.
    fn new_buffer() -> Self;

    /// Writes the key with the number `nth` into the buffer. Different numbers have different keys.
    fn write(&mut self, nth: u32);
}

impl ReusableKey for String {
    fn new_buffer() -> Self {
        let mut key = Self::new();
        key.write(0);
        key
    }

    /// Writes for example `tenant:00001234:/v1/x`. Formatting with `write!` would take longer than a decision, so two
    /// threads would rarely decide at the same time.
    fn write(&mut self, nth: u32) {
        self.clear();
        self.push_str("tenant:");
        let mut unit = 10_000_000;
        while unit > 0 {
            self.push(char::from(b'0' + (nth / unit % 10) as u8));
            unit /= 10;
        }
        self.push_str(":/v1/x");
    }
}

impl ReusableKey for u64 {
    fn new_buffer() -> Self {
        0
    }

    /// Writes a number whose bits look random: a step of SplitMix64.
    fn write(&mut self, nth: u32) {
        let z = u64::from(nth).wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        *self = z ^ (z >> 31);
    }
}

/// Passes over a range of keys. Each pass contains every key once, in a random order of its own.
pub struct KeyPasses<K> {
    block: Vec<K>,
    order: Vec<u32>,
    position: usize,
    rng: fastrand::Rng,
}

impl<K: ReusableKey> KeyPasses<K> {
    /// Creates passes over the keys with these numbers, which must be a multiple of [`KEYS_PER_BLOCK`]. The same seed
    /// always creates the same passes.
    pub fn new(numbers: Range<u32>, seed: u64) -> Self {
        let order: Vec<u32> = numbers.collect();
        assert!(order.len().is_multiple_of(KEYS_PER_BLOCK), "a pass consists of whole blocks");
        let block = (0..KEYS_PER_BLOCK).map(|_| K::new_buffer()).collect();
        let position = order.len();
        Self { block, order, position, rng: fastrand::Rng::with_seed(seed) }
    }

    /// Writes the next keys into the block and returns it. After the end of a pass, the next pass begins.
    pub fn next_block(&mut self) -> &[K] {
        if self.position == self.order.len() {
            self.rng.shuffle(&mut self.order);
            self.position = 0;
        }
        let numbers = &self.order[self.position..][..KEYS_PER_BLOCK];
        self.block.iter_mut().zip(numbers).for_each(|(key, nth)| key.write(*nth));
        self.position += KEYS_PER_BLOCK;
        &self.block
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn text_key_contains_padded_number() {
        let mut key = String::new_buffer();
        key.write(12_345_678);
        key.write(1_234);
        assert_eq!(key, "tenant:00001234:/v1/x");
    }

    #[test]
    fn each_pass_contains_every_key_once() {
        const BLOCKS: usize = 3;
        let mut passes = KeyPasses::<u64>::new(0..(BLOCKS * KEYS_PER_BLOCK) as u32, 1);
        let mut first_keys = HashSet::new();
        for _ in 0..3 {
            let blocks: Vec<Vec<u64>> = (0..BLOCKS).map(|_| passes.next_block().to_vec()).collect();
            first_keys.insert(blocks[0][0]);
            let seen: HashSet<u64> = blocks.concat().into_iter().collect();
            assert_eq!(seen.len(), BLOCKS * KEYS_PER_BLOCK);
        }
        assert_eq!(first_keys.len(), 3, "each pass has its own order");
    }
}
