//! The sliding log algorithm: records every charge in the window, so that the count is exact.
//!
//! The log is a ring of 32-bit words, oldest first. A word contains the tick of a charge modulo 2^31. A charge of more
//! than one unit takes a second word for its cost, and both words have the top bit set. An entry of one unit therefore
//! takes four bytes, and an entry with a cost of 10,000 takes eight. The tick of a charge is rounded **up** and the
//! current time is rounded down, so an entry never expires before its window is over.
//!
//! Ticks modulo 2^31 are unambiguous: all entries lie within one window of the last charge, whose tick is stored in
//! full, and a window has at most 2^30 ticks. Expired entries are removed before a new one is written.

#[cfg(test)]
mod tests;

use super::counter::{
    ChargeEffect, Counter, clamp_to_small_units, is_time_ahead_of_clock, micros_until_expiry,
};
use super::ring::{RingBuffer, max_heap_bytes};
use super::tick::{LimitParams, TickResolution};
use crate::clock::Timestamp;
use crate::layout::HeapSize;
use crate::outcome::Outcome;
use crate::quota::Quota;

/// The largest number of ticks in a window: half of the 2^31 ticks that a word can distinguish.
const MAX_TICKS_PER_WINDOW: u32 = 1 << 30;

/// The bit that is set in both words of an entry with a cost other than 1, so that the log can be read from either end.
const EXPLICIT_COST_FLAG: u32 = 1 << 31;

/// The largest max of a limit with a sliding log. The log of a key with this many charges of one unit takes 4 MB.
pub const MAX_LOG_UNITS: u64 = 1_000_000;

/// A quota that is enforced with a log of all charges in the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingLog {
    max: u32,
    resolution: TickResolution,
}

/// The log of the charges of a key in the window that ends with its last charge.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The tick of the last charge, rounded down.
    last: u64,
    /// The sum of the costs in the log.
    total: u64,
    /// The words of the log: one or two for each charge, oldest charge first.
    words: RingBuffer<u32>,
    /// A copy of the first word of the oldest charge. A denial needs only this copy and `newest`, so it does not have
    /// to load the memory of the ring. Not meaningful while the log is empty.
    oldest: u32,
    /// A copy of the first word of the newest charge. Not meaningful while the log is empty.
    newest: u32,
}

/// Returns the number of words that a charge takes in the log, one or two. `word` is either of these words.
fn word_count_of_charge(word: u32) -> usize {
    if word & EXPLICIT_COST_FLAG == 0 { 1 } else { 2 }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.last == other.last && self.words.iter().eq(other.words.iter())
    }
}

impl HeapSize for State {
    fn heap_bytes(&self) -> usize {
        self.words.heap_bytes()
    }
}

impl State {
    /// Returns the cost of the charge whose first word is `word`, at the position `index` of the log.
    fn cost_of_charge(&self, index: usize, word: u32) -> u32 {
        if word & EXPLICIT_COST_FLAG == 0 {
            1
        } else {
            self.words.get(index + 1).unwrap_or(1) & !EXPLICIT_COST_FLAG
        }
    }

    /// Returns the age of the charge whose first word is `word`: the number of ticks between the charge and `last + 1`.
    /// No charge is later than `last + 1`, because `last` was rounded down by less than a tick.
    fn ticks_since_charge(&self, word: u32) -> u64 {
        u64::from((self.last as u32).wrapping_add(1).wrapping_sub(word) & !EXPLICIT_COST_FLAG)
    }

    /// Returns the complete tick of the charge whose first word is `word`, which contains only the lower 31 bits of the
    /// tick.
    fn tick_of_charge(&self, word: u32) -> u64 {
        (self.last + 1).saturating_sub(self.ticks_since_charge(word))
    }

    /// Returns the tick of the newest charge; `None` if the log is empty.
    fn tick_of_newest_charge(&self) -> Option<u64> {
        (!self.words.is_empty()).then(|| self.tick_of_charge(self.newest))
    }

    /// Returns the number of words that the charges before `tick` take in the log, and the sum of the costs of these
    /// charges.
    fn sum_charges_before(&self, tick: u64) -> (usize, u64) {
        let Some(age) = (self.last + 1).checked_sub(tick) else {
            return (self.words.len(), self.total);
        };
        let is_before = |word: &u32| self.ticks_since_charge(*word) > age;
        let (mut index, mut units) = (0, 0);
        if self.words.is_empty() || !is_before(&self.oldest) {
            return (index, units);
        }
        while let Some(word) = self.words.get(index).filter(is_before) {
            units += u64::from(self.cost_of_charge(index, word));
            index += word_count_of_charge(word);
        }
        (index, units)
    }

    /// Returns the tick of the last charge that must expire to free `units` units. The charges expire in the order of
    /// the log, beginning with the charge at `index`.
    fn tick_of_last_charge_that_must_expire(&self, mut index: usize, units: u64) -> u64 {
        let mut word = self.oldest;
        if index == 0 && units == 1 {
            return self.tick_of_charge(word);
        }
        let mut freed = 0;
        while freed < units {
            word = self.words.get(index).unwrap_or(self.newest);
            freed += u64::from(self.cost_of_charge(index, word));
            index += word_count_of_charge(word);
        }
        self.tick_of_charge(word)
    }

    /// Removes the charges before `tick`.
    fn remove_charges_before(&mut self, tick: u64) {
        self.remove_first_charges(self.sum_charges_before(tick));
    }

    /// Removes the first charges, which take `words` words and have `units` units.
    fn remove_first_charges(&mut self, (words, units): (usize, u64)) {
        if words > 0 {
            self.words.remove_first(words);
            self.total -= units;
            self.oldest = self.words.get(0).unwrap_or_default();
        }
    }

    /// Removes the oldest `units` units from the log, or all units if there are fewer. The last affected charge may
    /// keep a part of its cost.
    fn remove_oldest_units(&mut self, units: u64) {
        let units = units.min(self.total);
        let (mut index, mut left) = (0, units);
        let mut reduced = None;
        while left > 0
            && let Some(word) = self.words.get(index)
        {
            let cost = u64::from(self.cost_of_charge(index, word));
            if cost > left {
                reduced = Some((word, (cost - left) as u32));
                break;
            }
            left -= cost;
            index += word_count_of_charge(word);
        }
        self.words.remove_first(index);
        self.total -= units;
        if let Some((word, cost)) = reduced {
            self.reduce_oldest_charge(word, cost);
        }
        self.oldest = self.words.get(0).unwrap_or_default();
    }

    /// Reduces the cost of the oldest charge to `cost` units, which must be fewer than its present cost. `word` is the
    /// first word of this charge.
    fn reduce_oldest_charge(&mut self, word: u32, cost: u32) {
        if cost > 1 {
            self.words.set(1, cost | EXPLICIT_COST_FLAG);
            return;
        }
        let is_newest = self.words.len() == 2;
        self.words.remove_first(1);
        self.words.set(0, word & !EXPLICIT_COST_FLAG);
        if is_newest {
            self.newest = word & !EXPLICIT_COST_FLAG;
        }
    }

    /// Removes the newest charge and returns its tick and cost; `None` if the log is empty.
    fn pop_newest_charge(&mut self) -> Option<(u64, u32)> {
        let index = self.words.len().checked_sub(word_count_of_charge(self.newest))?;
        let (tick, cost) =
            (self.tick_of_charge(self.newest), self.cost_of_charge(index, self.newest));
        self.words.truncate(index);
        self.total -= u64::from(cost);
        let before = |words| self.words.get(index.checked_sub(words)?);
        if let Some(last) = before(1) {
            self.newest = before(word_count_of_charge(last)).unwrap_or(last);
        }
        Some((tick, cost))
    }

    /// Appends a charge, which becomes the newest one.
    fn push_charge(&mut self, tick: u64, cost: u32, max_log_words: usize) {
        let has_cost = if cost == 1 { 0 } else { EXPLICIT_COST_FLAG };
        self.newest = (tick as u32 & !EXPLICIT_COST_FLAG) | has_cost;
        if self.words.is_empty() {
            self.oldest = self.newest;
        }
        self.words.push(self.newest, max_log_words);
        if cost != 1 {
            self.words.push(cost | EXPLICIT_COST_FLAG, max_log_words);
        }
        self.total += u64::from(cost);
    }
}

impl SlidingLog {
    pub(crate) fn new(quota: &Quota) -> Self {
        Self {
            max: quota.max() as u32,
            resolution: TickResolution::new(quota.window_us(), MAX_TICKS_PER_WINDOW),
        }
    }

    pub(crate) fn quota(&self) -> Quota {
        Quota::from_parts(self.max.into(), self.resolution.window_us())
    }

    pub(crate) fn limit_params(&self) -> LimitParams {
        self.resolution.limit_params(self.max.into(), 0)
    }

    /// Returns the largest length of the log, in words. Charges that fit never exceed it. If charges without a check,
    /// such as reports, have filled the log, each further charge is merged with the newest entry. The merged units
    /// expire together, so the older ones expire later than without merging.
    fn max_log_words(&self) -> usize {
        2 * (self.max as usize + 32)
    }

    /// Returns the largest length of the ring, in words. This is one word more than the largest length of the log,
    /// since a charge of two words may be added while only one word is free.
    fn max_ring_words(&self) -> usize {
        self.max_log_words() + 1
    }

    /// Returns the largest number of heap bytes that a state can take.
    pub(crate) fn max_heap_bytes(&self) -> usize {
        max_heap_bytes::<u32>(self.max_ring_words())
    }

    /// Returns the first tick of the window that ends with `tick`.
    fn window_start_tick(&self, tick: u64) -> u64 {
        (tick + 1).saturating_sub(self.resolution.window_ticks())
    }

    /// Returns the time from which a charge at `tick` is outside of the window, in microseconds.
    fn charge_expiry_us(&self, tick: u64) -> u64 {
        self.resolution.tick_start_us(tick + self.resolution.window_ticks())
    }

    /// Returns the outcome of a hit that requires `required` free units. The charges in the window begin at the word
    /// with the given `index`, and have a total cost of `used` units.
    fn outcome(
        &self,
        state: &State,
        index: usize,
        used: u64,
        now: Timestamp,
        required: u64,
    ) -> Outcome {
        let max = u64::from(self.max);
        let reset_after_us = micros_until_expiry(self, state, now);
        Outcome::from_used_units((used, max), required, reset_after_us, || {
            // The wait ends when enough of the oldest charges have expired to free the required units.
            self.charge_expiry_us(
                state.tick_of_last_charge_that_must_expire(index, used + required - max),
            ) - now.as_micros()
        })
    }
}

impl SlidingLog {
    /// Charges a state at the tick `last`. `expired` are the numbers of words and units of the charges that have left
    /// the window.
    fn charge_at_tick(
        &self,
        state: &mut State,
        (last, expired): (u64, (usize, u64)),
        now: Timestamp,
        cost: u64,
    ) -> ChargeEffect {
        state.remove_first_charges(expired);
        state.last = last;
        let is_exact = self.resolution.tick_us() == 1
            || now.as_micros() == self.resolution.tick_start_us(last);
        let mut charge_tick = if is_exact { last } else { last + 1 };
        let mut cost = clamp_to_small_units(cost);
        if let Some(newest) = state.tick_of_newest_charge() {
            charge_tick = charge_tick.max(newest);
            if charge_tick == newest || state.words.len() >= self.max_log_words() {
                let merged = state.pop_newest_charge().map_or(0, |(_, cost)| cost);
                cost = clamp_to_small_units(u64::from(merged) + u64::from(cost));
            }
        }
        if cost > 0 {
            state.push_charge(charge_tick, cost, self.max_ring_words());
        }
        ChargeEffect {
            charged_at: Timestamp::from_micros(self.resolution.tick_start_us(charge_tick)),
            expires_at: self.expires_at(state),
            outcome: self.outcome(state, 0, state.total, now, 1),
        }
    }
}

impl Counter for SlidingLog {
    type State = State;

    fn capacity(&self) -> u64 {
        u64::from(self.max)
    }

    fn peek(&self, state: &State, now: Timestamp, required: u64) -> Outcome {
        let tick = self.resolution.tick_at(now).max(state.last);
        let (index, expired_units) = state.sum_charges_before(self.window_start_tick(tick));
        self.outcome(state, index, state.total - expired_units, now, required)
    }

    fn charge(&self, state: &mut State, now: Timestamp, cost: u64) -> ChargeEffect {
        let last = self.resolution.tick_at(now).max(state.last);
        let expired = state.sum_charges_before(self.window_start_tick(last));
        self.charge_at_tick(state, (last, expired), now, cost)
    }

    fn charge_if_fits(
        &self,
        state: &mut State,
        now: Timestamp,
        cost: u64,
    ) -> Result<ChargeEffect, Outcome> {
        let last = self.resolution.tick_at(now).max(state.last);
        let (words, expired_units) = state.sum_charges_before(self.window_start_tick(last));
        let used = state.total - expired_units;
        if cost > u64::from(self.max).saturating_sub(used) {
            return Err(self.outcome(state, words, used, now, cost));
        }
        Ok(self.charge_at_tick(state, (last, (words, expired_units)), now, cost))
    }

    fn revert(&self, state: &mut State, charged_at: Timestamp, cost: u64) {
        let Some(newest) = state.tick_of_newest_charge() else { return };
        // If the clock has stepped back since the charge, its time is after the newest charge, which then contains its
        // units.
        let charge_tick = self.resolution.tick_at(charged_at).min(newest);
        let mut later = Vec::new();
        while state.tick_of_newest_charge().is_some_and(|newest| newest > charge_tick) {
            later.extend(state.pop_newest_charge());
        }
        if state.tick_of_newest_charge() == Some(charge_tick)
            && let Some((tick, charged)) = state.pop_newest_charge()
        {
            let rest = charged.saturating_sub(clamp_to_small_units(cost));
            if rest > 0 {
                state.push_charge(tick, rest, self.max_ring_words());
            }
        }
        let restore = |(tick, cost)| state.push_charge(tick, cost, self.max_ring_words());
        later.into_iter().rev().for_each(restore);
    }

    fn refund(&self, state: &mut State, now: Timestamp, cost: u64) {
        let tick = self.resolution.tick_at(now).max(state.last);
        let (_, expired_units) = state.sum_charges_before(self.window_start_tick(tick));
        if cost == 0 || expired_units == state.total {
            return;
        }
        // Expired charges precede the refunded units in the log, so they must be removed first. `last` advances,
        // because the log then ends at `now`.
        state.remove_charges_before(self.window_start_tick(tick));
        state.last = tick;
        state.remove_oldest_units(cost);
    }

    fn is_ahead_of_clock(&self, state: &State, now: Timestamp) -> bool {
        is_time_ahead_of_clock(self.resolution.tick_start_us(state.last), now)
    }

    /// Replaces all charges by one charge at `now`.
    fn set_state_back_to(&self, state: &mut State, now: Timestamp) {
        let (last, charge_tick) = self.resolution.ticks_around(now);
        let units = clamp_to_small_units(state.total);
        *state = State { last, ..State::default() };
        if units > 0 {
            state.push_charge(charge_tick, units, self.max_ring_words());
        }
    }

    fn expires_at(&self, state: &State) -> Timestamp {
        let expires_us = state.tick_of_newest_charge().map(|newest| self.charge_expiry_us(newest));
        Timestamp::from_micros(expires_us.unwrap_or_default())
    }
}
