//! Creates the keys of the benchmarks, as strings of equal length in one buffer, and sequences of sampled keys.

use std::fmt::Write;
use std::ops::Range;

use crate::key_distribution::KeyDistribution;

/// The default length of a key, in bytes.
pub const KEY_LEN: usize = 20;

/// The number of decimal digits at the end of each key.
const DECIMAL_DIGITS_PER_KEY: usize = 13;

/// A writer that formats one key after the other in the same buffer.
pub struct KeyWriter {
    text: String,
    prefix_len: usize,
}

impl KeyWriter {
    /// Creates a writer of keys with a length of `len` bytes. The minimum length is 13.
    pub fn new(len: usize) -> Self {
        let prefix_len = len.saturating_sub(DECIMAL_DIGITS_PER_KEY);
        Self { text: format!("{:t<prefix_len$}", "tenant:"), prefix_len }
    }

    /// Formats the key with the number `nth` in the buffer and returns the key.
    pub fn write(&mut self, nth: usize) -> &str {
        self.text.truncate(self.prefix_len);
        // Writing into a string cannot fail.
        let _ = write!(self.text, "{nth:0DECIMAL_DIGITS_PER_KEY$}");
        &self.text
    }
}

/// Keys in contiguous memory. Reading a key therefore costs every compared limiter the same: one cache line.
pub struct Keys {
    text: String,
    count: usize,
}

impl Keys {
    /// Creates the keys with the numbers from 0 to `count - 1`.
    pub fn new(count: usize) -> Self {
        let mut writer = KeyWriter::new(KEY_LEN);
        let mut text = String::with_capacity(count * KEY_LEN);
        (0..count).for_each(|nth| text.push_str(writer.write(nth)));
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

    /// Returns the keys with the numbers in `range`, each as (number, key).
    pub fn range(&self, range: Range<usize>) -> impl Iterator<Item = (usize, &str)> {
        range.map(|nth| (nth, self.get(nth)))
    }

    /// Samples `count` keys uniformly and returns each as (number, key). The same seed always returns the same keys.
    pub fn sample_uniform(&self, seed: u64, count: usize) -> impl Iterator<Item = (usize, &str)> {
        let mut rng = fastrand::Rng::with_seed(seed);
        (0..count).map(move |_| {
            let nth = rng.usize(0..self.count);
            (nth, self.get(nth))
        })
    }
}

/// A sequence of keys that is sampled before a measurement, because sampling by Zipf's law takes as long as a decision.
pub struct KeySequence<'k> {
    keys: &'k Keys,
    indices: Vec<u32>,
}

impl<'k> KeySequence<'k> {
    /// Samples a sequence of `length` keys. The distribution is applied to a random permutation of the keys, so that
    /// frequent keys are not adjacent in memory.
    pub fn new(keys: &'k Keys, distribution: &KeyDistribution, length: usize) -> Self {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut permutation: Vec<u32> = (0..keys.count as u32).collect();
        rng.shuffle(&mut permutation);
        let indices = (0..length).map(|_| permutation[distribution.sample(&mut rng)]).collect();
        Self { keys, indices }
    }

    /// Returns `count` successive keys of the sequence, each as (number, key). The seed determines the first of them.
    pub fn iter(&self, seed: u64, count: usize) -> KeyIter<'_> {
        let begin = fastrand::Rng::with_seed(seed).usize(0..self.indices.len());
        let (before, from) = self.indices.split_at(begin);
        KeyIter { keys: self.keys, indices: from.iter().chain(before).take(count) }
    }
}

/// An iterator over keys of a [`KeySequence`], each as (number, key).
pub struct KeyIter<'c> {
    keys: &'c Keys,
    indices:
        std::iter::Take<std::iter::Chain<std::slice::Iter<'c, u32>, std::slice::Iter<'c, u32>>>,
}

impl<'c> Iterator for KeyIter<'c> {
    type Item = (usize, &'c str);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let nth = *self.indices.next()? as usize;
        Some((nth, self.keys.get(nth)))
    }
}
