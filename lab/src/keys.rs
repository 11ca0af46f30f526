//! The keys of the workload, as strings of equal length in one flat buffer or as numbers, and the order in which
//! they are requested.

use std::fmt::Write;
use std::ops::Range;

use crate::key_distribution::KeyDistribution;

/// The default length of a key, in bytes.
pub const KEY_LEN: usize = 20;

/// The number of digits at the end of a key.
const KEY_DIGITS: usize = 13;

/// Writes keys, one after the other, into the same buffer.
pub struct KeyWriter {
    text: String,
    prefix_len: usize,
}

impl KeyWriter {
    /// Creates a writer of keys of `len` bytes, at least 13.
    pub fn new(len: usize) -> Self {
        let prefix_len = len.saturating_sub(KEY_DIGITS);
        Self { text: format!("{:t<prefix_len$}", "tenant:"), prefix_len }
    }

    /// Writes the `nth` key and returns it.
    pub fn write(&mut self, nth: usize) -> &str {
        self.text.truncate(self.prefix_len);
        // Writing into a string cannot fail.
        let _ = write!(self.text, "{nth:0KEY_DIGITS$}");
        &self.text
    }
}

/// Keys in contiguous memory, so that reading a key costs every limiter the same single cache line.
pub struct Keys {
    text: String,
    count: usize,
}

impl Keys {
    /// Creates the first `count` keys.
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

    /// Returns the `nth` key.
    #[inline]
    pub fn get(&self, nth: usize) -> &str {
        &self.text[nth * KEY_LEN..(nth + 1) * KEY_LEN]
    }

    /// Returns a range of the keys, each with its number.
    pub fn range(&self, range: Range<usize>) -> impl Iterator<Item = (usize, &str)> {
        range.map(|nth| (nth, self.get(nth)))
    }

    /// Samples `count` keys uniformly. The same seed returns the same keys.
    pub fn sample_uniform(&self, seed: u64, count: usize) -> impl Iterator<Item = (usize, &str)> {
        let mut rng = fastrand::Rng::with_seed(seed);
        (0..count).map(move |_| {
            let nth = rng.usize(0..self.count);
            (nth, self.get(nth))
        })
    }
}

/// A precomputed sequence of keys: sampling by Zipf's law takes as long as a decision.
pub struct KeySequence<'k> {
    keys: &'k Keys,
    indices: Vec<u32>,
}

impl<'k> KeySequence<'k> {
    /// Samples a sequence of `length` keys. Frequent keys are not adjacent in memory.
    pub fn new(keys: &'k Keys, distribution: &KeyDistribution, length: usize) -> Self {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut permutation: Vec<u32> = (0..keys.count as u32).collect();
        rng.shuffle(&mut permutation);
        let indices = (0..length).map(|_| permutation[distribution.sample(&mut rng)]).collect();
        Self { keys, indices }
    }

    /// Returns `count` keys, each with its number, from a position that depends on the seed.
    pub fn iter(&self, seed: u64, count: usize) -> KeyIter<'_> {
        let begin = fastrand::Rng::with_seed(seed).usize(0..self.indices.len());
        let (before, from) = self.indices.split_at(begin);
        KeyIter { keys: self.keys, indices: from.iter().chain(before).take(count) }
    }
}

/// An iterator over keys of a [`KeySequence`], each with its number.
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
