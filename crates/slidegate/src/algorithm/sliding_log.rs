//! Every charge in the window, exactly.
//!
//! The log is a ring of 32-bit words, oldest first. A word holds the tick of a charge modulo 2^31; a
//! charge of more than one unit takes a second word for its cost, and both have their top bit set. So an
//! entry takes four bytes, and a cost of 10,000 takes eight. A charge is entered at its tick rounded **up**, and the
//! present is rounded down, so an entry never leaves before its window is over.
//!
//! The wrap is harmless: whatever is in the log lies within one window of the last charge, whose tick is
//! kept whole, and a window is at most 2^30 ticks. Older entries leave before a new one is written.

use std::collections::VecDeque;

use super::{Charged, Counter, Scale, lasts_us, saturate};
use crate::clock::Timestamp;
use crate::outcome::Outcome;
use crate::quota::Quota;

/// A window is at most this many ticks: half of what a word can tell apart.
const MOST_TICKS: u32 = 1 << 30;

/// Set in both words of an entry that has a cost, so that it can be read from either end.
const HAS_COST: u32 = 1 << 31;

/// The largest max of a log: a key that is full of single units then takes 4 MB.
pub const MOST_ENTRIES: u64 = 1_000_000;

/// A quota, held against a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingLog {
    max: u32,
    scale: Scale,
}

/// The charges of the last window, as of the last charge.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Tick of the last charge, rounded down.
    last: u64,
    /// Sum of the costs in the log.
    total: u64,
    words: VecDeque<u32>,
}

/// One charge.
#[derive(Clone, Copy)]
struct Entry {
    tick: u64,
    cost: u32,
}

impl Entry {
    fn words(&self) -> usize {
        if self.cost == 1 { 1 } else { 2 }
    }
}

impl State {
    /// The charges, oldest first.
    fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            let entry = self.entry(at)?;
            at += entry.words();
            Some(entry)
        })
    }

    /// The charge whose first word stands at `at`.
    fn entry(&self, at: usize) -> Option<Entry> {
        let word = *self.words.get(at)?;
        let cost = if word & HAS_COST == 0 { 1 } else { self.words.get(at + 1)? & !HAS_COST };
        // An entry may lie one tick after the last charge, which was rounded down.
        let newest = self.last + 1;
        let age = (newest as u32).wrapping_sub(word) & !HAS_COST;
        Some(Entry { tick: newest.saturating_sub(u64::from(age)), cost })
    }

    fn newest(&self) -> Option<Entry> {
        let words = if self.words.back()? & HAS_COST == 0 { 1 } else { 2 };
        self.entry(self.words.len() - words)
    }

    /// Removes the oldest entries up to `tick`, which have left the window.
    fn forget_until(&mut self, tick: u64) {
        while let Some(oldest) = self.entry(0).filter(|oldest| oldest.tick <= tick) {
            for _ in 0..oldest.words() {
                self.words.pop_front();
            }
            self.total -= u64::from(oldest.cost);
        }
    }

    fn forget_newest(&mut self) -> Option<Entry> {
        let newest = self.newest()?;
        self.words.truncate(self.words.len() - newest.words());
        self.total -= u64::from(newest.cost);
        Some(newest)
    }

    fn push(&mut self, entry: Entry) {
        // Half again, not double: a full log shall not be half empty.
        if self.words.len() + 2 > self.words.capacity() {
            let more = (self.words.len() / 2).max(4);
            self.words.reserve_exact(more);
        }
        let word = entry.tick as u32 & !HAS_COST;
        if entry.cost == 1 {
            self.words.push_back(word);
        } else {
            self.words.extend([word | HAS_COST, entry.cost | HAS_COST]);
        }
        self.total += u64::from(entry.cost);
    }
}

impl SlidingLog {
    pub(crate) fn new(quota: &Quota) -> Self {
        Self { max: quota.max() as u32, scale: Scale::new(quota.window_us(), MOST_TICKS) }
    }

    pub(crate) fn quota(&self) -> Quota {
        Quota::of_parts(self.max, self.scale.window_us())
    }

    fn max(&self) -> u64 {
        u64::from(self.max)
    }

    /// No log is longer than this. What fits in it never is; beyond, debts are merged into the newest
    /// entry, which then leaves later than the oldest of them would have.
    fn most_words(&self) -> usize {
        2 * (self.max as usize + 32)
    }

    /// The moment from which an entry is outside of the window.
    fn leaves_us(&self, entry: &Entry) -> u64 {
        self.scale.begins_us(entry.tick + self.scale.window())
    }
}

impl Counter for SlidingLog {
    type State = State;

    fn peek(&self, state: &State, now: Timestamp, cost: u64) -> Outcome {
        let max = self.max();
        let tick = self.scale.tick(now).max(state.last);
        let mut entries = state.entries().peekable();
        let mut used = state.total;
        while let Some(left) = entries.next_if(|entry| entry.tick + self.scale.window() <= tick) {
            used -= u64::from(left.cost);
        }
        let remaining = max.saturating_sub(used);
        let reset_after_us = lasts_us(self, state, now);
        Outcome::judge((remaining, max), cost, reset_after_us, |cost| {
            // The oldest charges leave one by one, until what is left makes room.
            let mut fits_at_us = now.as_micros();
            for entry in entries {
                if used + cost <= max {
                    break;
                }
                used -= u64::from(entry.cost);
                fits_at_us = self.leaves_us(&entry);
            }
            fits_at_us - now.as_micros()
        })
    }

    fn charge(&self, state: &mut State, now: Timestamp, cost: u64) -> Charged {
        let last = self.scale.tick(now).max(state.last);
        state.forget_until(last.saturating_sub(self.scale.window()));
        state.last = last;
        let exact = self.scale.tick_us == 1 || now.as_micros() == self.scale.begins_us(last);
        let mut entry = Entry { tick: if exact { last } else { last + 1 }, cost: saturate(cost) };
        if let Some(newest) = state.newest() {
            entry.tick = entry.tick.max(newest.tick);
            if entry.tick == newest.tick || state.words.len() >= self.most_words() {
                state.forget_newest();
                entry.cost = saturate(u64::from(newest.cost) + u64::from(entry.cost));
            }
        }
        if entry.cost > 0 {
            state.push(entry);
        }
        Charged {
            at: Timestamp::from_micros(self.scale.begins_us(entry.tick)),
            after: self.peek(state, now, 0),
        }
    }

    fn give_back(&self, state: &mut State, charged_at: Timestamp, cost: u64) {
        let charged_at = self.scale.tick(charged_at);
        if !state.entries().any(|entry| entry.tick == charged_at) {
            return;
        }
        let mut later = Vec::new();
        while let Some(mut entry) = state.forget_newest() {
            if entry.tick == charged_at {
                entry.cost = entry.cost.saturating_sub(saturate(cost));
                if entry.cost > 0 {
                    state.push(entry);
                }
                break;
            }
            later.push(entry);
        }
        while let Some(entry) = later.pop() {
            state.push(entry);
        }
    }

    fn expires_at(&self, state: &State) -> Timestamp {
        let newest = state.newest();
        newest
            .map_or(Timestamp::default(), |newest| Timestamp::from_micros(self.leaves_us(&newest)))
    }
}
