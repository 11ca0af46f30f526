//! Every charge in the window, exactly.
//!
//! The log is a ring of 32-bit words, oldest first. A word holds the tick of a charge modulo 2^31; a
//! charge of more than one unit takes a second word for its cost, and both have their top bit set. So an
//! entry takes four bytes, and a cost of 10,000 takes eight. A charge is entered at its tick rounded
//! **up**, and the present is rounded down, so an entry never leaves before its window is over.
//!
//! The wrap is harmless: whatever is in the log lies within one window of the last charge, whose tick is
//! kept whole, and a window is at most 2^30 ticks. Older entries leave before a new one is written.

use super::ring::{Ring, max_heap_bytes};
use super::{Charged, Counter, Scale, lasts_us, saturate};
use crate::clock::Timestamp;
use crate::heap::HeapSize;
use crate::limit::LimitParams;
use crate::outcome::Outcome;
use crate::quota::Quota;

/// A window is at most this many ticks: half of what a word can tell apart.
const MAX_TICKS: u32 = 1 << 30;

/// Set in both words of an entry that has a cost, so that it can be read from either end.
const HAS_COST: u32 = 1 << 31;

/// The largest max of a log: a key that is full of single units then takes 4 MB.
pub const MAX_ENTRIES: u64 = 1_000_000;

/// A quota, held against a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingLog {
    max: u32,
    scale: Scale,
}

/// The charges of the last window, as of the last charge.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Tick of the last charge, rounded down.
    last: u64,
    /// Sum of the costs in the log.
    total: u64,
    words: Ring<u32>,
    /// The first words of the oldest and of the newest charge once more: all that a denial asks of the
    /// log, without a wait for the ring's memory. They mean nothing while the log is empty.
    oldest: u32,
    newest: u32,
}

/// How many words a charge takes whose first, or last, is this.
fn words_of(word: u32) -> usize {
    if word & HAS_COST == 0 { 1 } else { 2 }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.last == other.last && self.words.iter().eq(other.words.iter())
    }
}

impl HeapSize for State {
    #[inline(always)]
    fn heap_bytes(&self) -> usize {
        self.words.heap_bytes()
    }
}

impl State {
    /// The cost of the charge that begins at `at` with `word`.
    fn cost(&self, at: usize, word: u32) -> u32 {
        if word & HAS_COST == 0 { 1 } else { self.words.get(at + 1).unwrap_or(1) & !HAS_COST }
    }

    /// How many ticks before `last + 1` the charge was made that begins with `word`. It is not after
    /// that: `last` was rounded down, by less than a tick.
    fn age(&self, word: u32) -> u64 {
        u64::from((self.last as u32).wrapping_add(1).wrapping_sub(word) & !HAS_COST)
    }

    fn tick(&self, word: u32) -> u64 {
        (self.last + 1).saturating_sub(self.age(word))
    }

    fn newest_tick(&self) -> Option<u64> {
        (!self.words.is_empty()).then(|| self.tick(self.newest))
    }

    /// How many words the charges before `tick` take, and the sum of their costs.
    #[inline(always)]
    fn before(&self, tick: u64) -> (usize, u64) {
        let Some(age) = (self.last + 1).checked_sub(tick) else {
            return (self.words.len(), self.total);
        };
        let is_before = |word: &u32| self.age(*word) > age;
        let (mut at, mut units) = (0, 0);
        if self.words.is_empty() || !is_before(&self.oldest) {
            return (at, units);
        }
        while let Some(word) = self.words.get(at).filter(is_before) {
            units += u64::from(self.cost(at, word));
            at += words_of(word);
        }
        (at, units)
    }

    /// The tick of the charge with which `units` have left, of those from `at` on, one after the other.
    fn frees(&self, mut at: usize, units: u64) -> u64 {
        let mut word = self.oldest;
        if at == 0 && units == 1 {
            return self.tick(word);
        }
        let mut left = 0;
        while left < units {
            word = self.words.get(at).unwrap_or(self.newest);
            left += u64::from(self.cost(at, word));
            at += words_of(word);
        }
        self.tick(word)
    }

    #[inline(always)]
    fn forget_before(&mut self, tick: u64) {
        let (words, units) = self.before(tick);
        if words > 0 {
            self.words.drop_first(words);
            self.total -= units;
            self.oldest = self.words.get(0).unwrap_or_default();
        }
    }

    /// Removes the oldest units: so many, or all that there are.
    fn forget_oldest(&mut self, units: u64) {
        let units = units.min(self.total);
        let (mut at, mut left) = (0, units);
        let mut lessened = None;
        while left > 0
            && let Some(word) = self.words.get(at)
        {
            let cost = u64::from(self.cost(at, word));
            if cost > left {
                lessened = Some((word, (cost - left) as u32));
                break;
            }
            left -= cost;
            at += words_of(word);
        }
        self.words.drop_first(at);
        self.total -= units;
        if let Some((word, cost)) = lessened {
            self.lessen_oldest(word, cost);
        }
        self.oldest = self.words.get(0).unwrap_or_default();
    }

    /// Leaves so many units of the oldest charge, which has more and begins with `word`.
    fn lessen_oldest(&mut self, word: u32, cost: u32) {
        if cost > 1 {
            self.words.set(1, cost | HAS_COST);
            return;
        }
        let is_newest = self.words.len() == 2;
        self.words.drop_first(1);
        self.words.set(0, word & !HAS_COST);
        if is_newest {
            self.newest = word & !HAS_COST;
        }
    }

    /// Removes the newest charge; its tick and cost.
    fn forget_newest(&mut self) -> Option<(u64, u32)> {
        let at = self.words.len().checked_sub(words_of(self.newest))?;
        let (tick, cost) = (self.tick(self.newest), self.cost(at, self.newest));
        self.words.truncate(at);
        self.total -= u64::from(cost);
        let before = |words| self.words.get(at.checked_sub(words)?);
        if let Some(last) = before(1) {
            self.newest = before(words_of(last)).unwrap_or(last);
        }
        Some((tick, cost))
    }

    fn push(&mut self, tick: u64, cost: u32, most: usize) {
        let has_cost = if cost == 1 { 0 } else { HAS_COST };
        self.newest = (tick as u32 & !HAS_COST) | has_cost;
        if self.words.is_empty() {
            self.oldest = self.newest;
        }
        self.words.push(self.newest, most);
        if cost != 1 {
            self.words.push(cost | HAS_COST, most);
        }
        self.total += u64::from(cost);
    }
}

impl SlidingLog {
    pub(crate) fn new(quota: &Quota) -> Self {
        Self { max: quota.max() as u32, scale: Scale::new(quota.window_us(), MAX_TICKS) }
    }

    pub(crate) fn quota(&self) -> Quota {
        Quota::of_parts(self.max, self.scale.window_us())
    }

    pub(crate) fn params(&self) -> LimitParams {
        self.scale.params(self.max, 0)
    }

    /// No log is longer than this. What fits in it never is; beyond, debts are merged into the newest
    /// entry, which then leaves later than the oldest of them would have.
    fn most_words(&self) -> usize {
        2 * (self.max as usize + 32)
    }

    /// Bound of the ring: a charge of two words may begin when one is left.
    #[inline(always)]
    fn most_capacity(&self) -> usize {
        self.most_words() + 1
    }

    /// Returns the heap bytes of a state at worst.
    pub(crate) fn max_heap_bytes(&self) -> usize {
        max_heap_bytes::<u32>(self.most_capacity())
    }

    /// The first tick of the window that ends with `tick`.
    fn window_begins(&self, tick: u64) -> u64 {
        (tick + 1).saturating_sub(self.scale.window())
    }

    /// The moment from which a charge at `tick` is outside of the window.
    fn leaves_us(&self, tick: u64) -> u64 {
        self.scale.begins_us(tick + self.scale.window())
    }

    /// Returns whether `required` units are free, if of the log only the words from `at` on are in the window: `used` units.
    #[inline(always)]
    fn outcome(
        &self,
        state: &State,
        at: usize,
        used: u64,
        now: Timestamp,
        required: u64,
    ) -> Outcome {
        let max = u64::from(self.max);
        let reset_after_us = lasts_us(self, state, now);
        Outcome::judge((used, max), required, reset_after_us, || {
            // The oldest charges leave one by one, until enough units are free.
            self.leaves_us(state.frees(at, used + required - max)) - now.as_micros()
        })
    }
}

impl Counter for SlidingLog {
    type State = State;

    fn peek(&self, state: &State, now: Timestamp, required: u64) -> Outcome {
        let tick = self.scale.tick(now).max(state.last);
        let (at, left) = state.before(self.window_begins(tick));
        self.outcome(state, at, state.total - left, now, required)
    }

    fn charge(&self, state: &mut State, now: Timestamp, cost: u64) -> Charged {
        let last = self.scale.tick(now).max(state.last);
        state.forget_before(self.window_begins(last));
        state.last = last;
        let exact = self.scale.tick_us == 1 || now.as_micros() == self.scale.begins_us(last);
        let mut at = if exact { last } else { last + 1 };
        let mut cost = saturate(cost);
        if let Some(newest) = state.newest_tick() {
            at = at.max(newest);
            if at == newest || state.words.len() >= self.most_words() {
                let merged = state.forget_newest().map_or(0, |(_, cost)| cost);
                cost = saturate(u64::from(merged) + u64::from(cost));
            }
        }
        if cost > 0 {
            state.push(at, cost, self.most_capacity());
        }
        Charged {
            at: Timestamp::from_micros(self.scale.begins_us(at)),
            after: self.outcome(state, 0, state.total, now, 1),
        }
    }

    fn revert(&self, state: &mut State, charged_at: Timestamp, cost: u64) {
        let charged_at = self.scale.tick(charged_at);
        let mut later = Vec::new();
        while state.newest_tick().is_some_and(|newest| newest > charged_at) {
            later.extend(state.forget_newest());
        }
        if state.newest_tick() == Some(charged_at)
            && let Some((tick, charged)) = state.forget_newest()
        {
            let kept = charged.saturating_sub(saturate(cost));
            if kept > 0 {
                state.push(tick, kept, self.most_capacity());
            }
        }
        let put_back = |(tick, cost)| state.push(tick, cost, self.most_capacity());
        later.into_iter().rev().for_each(put_back);
    }

    fn refund(&self, state: &mut State, now: Timestamp, cost: u64) {
        let tick = self.scale.tick(now).max(state.last);
        let (_, units_left) = state.before(self.window_begins(tick));
        if cost == 0 || units_left == state.total {
            return;
        }
        // What has left stands before the units that are taken off, and is forgotten with them: so time has moved
        // on.
        state.forget_before(self.window_begins(tick));
        state.last = tick;
        state.forget_oldest(cost);
    }

    fn expires_at(&self, state: &State) -> Timestamp {
        let leaves_us = state.newest_tick().map(|newest| self.leaves_us(newest));
        Timestamp::from_micros(leaves_us.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn forget_oldest_of(list: &mut Vec<(u64, u32)>, units: u64) {
        for _ in 0..units {
            match list.first_mut() {
                Some((_, cost)) if *cost > 1 => *cost -= 1,
                Some(_) => drop(list.remove(0)),
                None => {}
            }
        }
    }

    proptest! {
        /// Pushes, and removals from either end, beside a plain list of ticks and costs.
        #[test]
        fn a_state_is_what_a_list_would_be(steps in prop::collection::vec((0..6, 1..50_u64, 1..4_u32), 1..400)) {
            let (mut state, mut list) = (State { last: 1 << 33, ..State::default() }, Vec::new());
            for (what, ticks, cost) in steps {
                match what {
                    4 => {
                        state.forget_oldest(ticks / 4);
                        forget_oldest_of(&mut list, ticks / 4);
                    }
                    0 => {
                        let begins = list.first().map_or(0, |&(tick, _)| tick + ticks * 20);
                        state.forget_before(begins);
                        list.retain(|&(tick, _)| tick >= begins);
                    }
                    1 => {
                        let newest = state.forget_newest();
                        prop_assert_eq!(newest, list.pop());
                    }
                    _ => {
                        state.last += ticks;
                        let tick = state.last + 1;
                        state.push(tick, cost, usize::MAX);
                        list.push((tick, cost));
                    }
                }
                prop_assert_eq!(state.total, list.iter().map(|&(_, cost)| u64::from(cost)).sum::<u64>());
                prop_assert_eq!(state.newest_tick(), list.last().map(|&(tick, _)| tick));
                let mut units = 0;
                for &(tick, cost) in &list {
                    prop_assert_eq!(state.before(tick).1, units);
                    units += u64::from(cost);
                    prop_assert_eq!(state.frees(0, units), tick);
                }
            }
        }
    }
}
