//! Where a log keeps its words.

use std::iter::repeat_n;

/// Words, first in, first out. Unlike a `VecDeque` it leaves the state at 48 bytes, so that its slot in a
/// table is one cache line.
#[derive(Clone, Debug, Default)]
pub(super) struct Ring {
    room: Box<[u32]>,
    first: u32,
    len: u32,
}

impl Ring {
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.len()).map(|nth| self.room[self.place(nth)])
    }

    pub(super) fn get(&self, nth: usize) -> Option<u32> {
        (nth < self.len()).then(|| self.room[self.place(nth)])
    }

    /// Puts another word in the place of the `nth`, which is there.
    pub(super) fn set(&mut self, nth: usize, word: u32) {
        let place = self.place(nth);
        self.room[place] = word;
    }

    /// Forgets the first so many words, which are there.
    #[inline(always)]
    pub(super) fn drop_first(&mut self, words: usize) {
        self.first = self.place(words) as u32;
        self.len -= words as u32;
    }

    /// Forgets all but the first so many words, which are there.
    pub(super) fn truncate(&mut self, words: usize) {
        self.len = words as u32;
    }

    /// Where the `nth` word lies, or would.
    fn place(&self, nth: usize) -> usize {
        let place = self.first as usize + nth;
        if place < self.room.len() { place } else { place - self.room.len() }
    }

    #[inline(always)]
    pub(super) fn push(&mut self, word: u32) {
        let len = self.len() + 1;
        if len > self.room.len() || 4 * len < self.room.len() {
            self.resize(len);
        }
        self.room[self.place(self.len())] = word;
        self.len += 1;
    }

    /// Makes room for so many words, and half again, not double: a full log shall not be half empty.
    #[cold]
    fn resize(&mut self, len: usize) {
        let spare = len - self.len() + (len / 2).max(3);
        self.room = self.iter().chain(repeat_n(0, spare)).collect();
        self.first = 0;
    }
}
