//! Creates the keys of the benchmarks, as strings of equal length in one buffer, and sequences of sampled keys.

use std::fmt::Write;

/// The length of a key, in bytes.
pub const KEY_LEN: usize = 20;

/// Returns the key with the number `nth`, padded to `len` bytes, which must be at least [`KEY_LEN`].
pub fn format_key(nth: usize, len: usize) -> String {
    let digits = len - "tenant:".len();
    format!("tenant:{nth:0digits$}")
}

/// Keys in contiguous memory. Reading a key therefore costs every compared limiter the same: one cache line.
pub struct Keys {
    text: String,
    count: usize,
}

impl Keys {
    /// Creates the keys with the numbers from 0 to `count - 1`.
    pub fn new(count: usize) -> Self {
        let mut text = String::with_capacity(count * KEY_LEN);
        for nth in 0..count {
            // Writing into a string cannot fail, so the result is ignored.
            let _ = write!(text, "tenant:{nth:013}");
        }
        Self { text, count }
    }

    /// Returns the number of keys.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the key with the number `nth`.
    #[inline]
    pub fn get(&self, nth: usize) -> &str {
        &self.text[nth * KEY_LEN..(nth + 1) * KEY_LEN]
    }
}

/// A sequence of uniformly sampled keys. It is sampled before a measurement.
pub struct KeySequence<'k> {
    keys: &'k Keys,
    indices: Vec<u32>,
}

impl<'k> KeySequence<'k> {
    /// Samples a sequence of `length` keys.
    pub fn new(keys: &'k Keys, length: usize) -> Self {
        let mut rng = fastrand::Rng::with_seed(1);
        let indices = (0..length).map(|_| rng.u32(0..keys.count as u32)).collect();
        Self { keys, indices }
    }

    /// Returns the keys of the sequence, each as (number, key), again and again.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &str)> {
        self.indices.iter().cycle().map(|nth| (*nth as usize, self.keys.get(*nth as usize)))
    }
}
