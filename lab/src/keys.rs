//! The workload's keys: strings of one length in one flat buffer, drawn uniformly.

use std::fmt::Write;
use std::ops::Range;

/// Bytes of a key, unless a benchmark says otherwise.
pub const KEY_LEN: usize = 20;

/// Digits at a key's end.
const DIGITS: usize = 13;

/// Writes key after key into the same memory.
pub struct KeyWriter {
    text: String,
    prefix: usize,
}

impl KeyWriter {
    /// A writer of keys of `len` bytes, at least 13.
    pub fn new(len: usize) -> Self {
        let prefix = len.saturating_sub(DIGITS);
        Self { text: format!("{:t<prefix$}", "tenant:"), prefix }
    }

    /// The `nth` key.
    pub fn write(&mut self, nth: usize) -> &str {
        self.text.truncate(self.prefix);
        // Writing into a string cannot fail.
        let _ = write!(self.text, "{nth:0DIGITS$}");
        &self.text
    }
}

/// Keys side by side, so that to read one costs every peer the same one cache line.
pub struct Keys {
    text: String,
    count: usize,
}

impl Keys {
    /// The first `count` keys.
    pub fn new(count: usize) -> Self {
        let mut writer = KeyWriter::new(KEY_LEN);
        let mut text = String::with_capacity(count * KEY_LEN);
        (0..count).for_each(|nth| text.push_str(writer.write(nth)));
        Self { text, count }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The `nth` key.
    #[inline]
    pub fn get(&self, nth: usize) -> &str {
        &self.text[nth * KEY_LEN..(nth + 1) * KEY_LEN]
    }

    /// Some of the keys, each with its number.
    pub fn range(&self, range: Range<usize>) -> impl Iterator<Item = (usize, &str)> {
        range.map(|nth| (nth, self.get(nth)))
    }

    /// So many uniformly drawn keys; a seed always draws the same.
    pub fn draw(&self, seed: u64, draws: usize) -> Draws<'_> {
        Draws { keys: self, rng: fastrand::Rng::with_seed(seed), left: draws }
    }
}

/// Uniformly drawn keys, each with its number.
pub struct Draws<'k> {
    keys: &'k Keys,
    rng: fastrand::Rng,
    left: usize,
}

impl<'k> Iterator for Draws<'k> {
    type Item = (usize, &'k str);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let nth = self.rng.usize(0..self.keys.count);
        Some((nth, self.keys.get(nth)))
    }
}
