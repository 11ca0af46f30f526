//! Keys that are written into small reused buffers before they are used.
//!
//! A server has just parsed the key of a request, so the bytes of the key are in the cache of the processor. A
//! benchmark writes a block of keys, and then measures only the decisions for these keys.

use std::hash::Hash;
use std::ops::Range;

/// The maximum number of keys in a block: so few that their buffers stay in the cache.
pub const MAX_KEYS_PER_BLOCK: usize = 1_024;

/// A key that can be written into a reused buffer.
pub trait BlockKey: Clone + Eq + Hash + Send + Sync + 'static {
    /// The type of the key in headings.
    const NAME: &'static str;

    /// Creates a key. Its buffer has enough space for every key.
    fn new_buffer() -> Self;

    /// Writes the key with the number `nth` into the buffer. Different numbers have different keys.
    fn write(&mut self, nth: u32);
}

impl BlockKey for String {
    const NAME: &'static str = "text keys of 21 bytes";

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

impl BlockKey for u64 {
    const NAME: &'static str = "u64 keys";

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
    buffers: Vec<K>,
    order: Vec<u32>,
    position: usize,
    rng: fastrand::Rng,
}

impl<K: BlockKey> KeyPasses<K> {
    /// Creates passes over the keys with these numbers. The same seed always creates the same passes.
    pub fn new(numbers: Range<u32>, seed: u64) -> Self {
        let order: Vec<u32> = numbers.collect();
        let buffers = (0..MAX_KEYS_PER_BLOCK.min(order.len())).map(|_| K::new_buffer()).collect();
        let mut passes = Self { buffers, order, position: 0, rng: fastrand::Rng::with_seed(seed) };
        passes.begin_pass();
        passes
    }

    fn begin_pass(&mut self) {
        self.rng.shuffle(&mut self.order);
        self.position = 0;
    }

    /// Writes the next keys of the pass into the buffers, at most `max_keys`. Returns an empty slice at the end of a
    /// pass; the next call begins the next pass.
    pub fn next_block(&mut self, max_keys: usize) -> &[K] {
        let numbers = &self.order[self.position..];
        let count = numbers.len().min(self.buffers.len()).min(max_keys);
        for (key, nth) in self.buffers.iter_mut().zip(&numbers[..count]) {
            key.write(*nth);
        }
        self.position += count;
        if count == 0 {
            self.begin_pass();
        }
        &self.buffers[..count]
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
        assert_eq!(String::NAME, format!("text keys of {} bytes", key.len()));
    }

    #[test]
    fn each_pass_contains_every_key_once() {
        const KEYS: usize = 2 * MAX_KEYS_PER_BLOCK + 5;
        let mut passes = KeyPasses::<u64>::new(0..KEYS as u32, 1);
        let mut first_keys = HashSet::new();
        for _ in 0..3 {
            let mut seen = HashSet::new();
            loop {
                let block = passes.next_block(1_000);
                if block.is_empty() {
                    break;
                }
                if seen.is_empty() {
                    first_keys.insert(block[0]);
                }
                seen.extend(block.iter().copied());
            }
            assert_eq!(seen.len(), KEYS);
        }
        assert_eq!(first_keys.len(), 3, "each pass has its own order");
    }
}
