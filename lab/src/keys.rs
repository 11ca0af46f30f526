//! The workload's keys: strings of one length in one flat buffer, or their numbers, and whose turn it is.

use std::fmt::Write;
use std::ops::Range;

use crate::draw::Draw;

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
    pub fn draw(&self, seed: u64, draws: usize) -> impl Iterator<Item = (usize, &str)> {
        let mut rng = fastrand::Rng::with_seed(seed);
        (0..draws).map(move |_| {
            let nth = rng.usize(0..self.count);
            (nth, self.get(nth))
        })
    }
}

/// Whose turn it is, drawn beforehand: to draw by Zipf's law takes as long as a decision.
pub struct Course<'k> {
    keys: &'k Keys,
    drawn: Vec<u32>,
}

impl<'k> Course<'k> {
    /// So many draws. The keys that are drawn most do not stand beside each other.
    pub fn new(keys: &'k Keys, draw: &Draw, draws: usize) -> Self {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut places: Vec<u32> = (0..keys.count as u32).collect();
        rng.shuffle(&mut places);
        let drawn = (0..draws).map(|_| places[draw.who(&mut rng)]).collect();
        Self { keys, drawn }
    }

    /// So many keys, each with its number, from a place that the seed chooses.
    pub fn draws(&self, seed: u64, draws: usize) -> Draws<'_> {
        let begin = fastrand::Rng::with_seed(seed).usize(0..self.drawn.len());
        let (before, from) = self.drawn.split_at(begin);
        Draws { keys: self.keys, drawn: from.iter().chain(before).take(draws) }
    }
}

/// Keys of a [`Course`], each with its number.
pub struct Draws<'c> {
    keys: &'c Keys,
    drawn: std::iter::Take<std::iter::Chain<std::slice::Iter<'c, u32>, std::slice::Iter<'c, u32>>>,
}

impl<'c> Iterator for Draws<'c> {
    type Item = (usize, &'c str);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let nth = *self.drawn.next()? as usize;
        Some((nth, self.keys.get(nth)))
    }
}
