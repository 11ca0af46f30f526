//! The sliding window algorithm: a log of the charges in the window, compacted to a bounded number of entries.
//!
//! A charge joins the newest entry while the entry has at most ceil(max / resolution) units and covers less than
//! window / resolution, and whenever it has the same tick. Otherwise, it begins a new entry. All units of an entry are
//! counted until one window after its *last* charge. So no window ever contains more than max units, and a unit is
//! counted at most window / resolution too long. If max is at most the resolution, the count is exact.
//! `docs/explanation/algorithms.md` has the proofs.
//!
//! The tick of a charge is rounded **up** and the current time is rounded down, so an entry never leaves before its
//! window is over.

mod large_log;
mod ring;
mod state;
#[cfg(test)]
mod tests;

use super::counter::{ChargeEffect, Counter, is_time_ahead_of_clock};
use super::sliding_buckets::SlidingBuckets;
use super::tick::{LimitParams, TickResolution};
use crate::clock::Timestamp;
use crate::layout::CompactU64;
use crate::outcome::Outcome;
use crate::quota::{MAX_SMALL_UNITS, Quota, max_count};

pub use state::State;
use state::{Entry, ExpiredEntries, MAX_TICKS_PER_WINDOW, NewestEntry};

/// The default resolution.
pub const DEFAULT_RESOLUTION: u16 = 32;

/// The smallest and the largest resolution.
pub const RESOLUTIONS: std::ops::RangeInclusive<u16> = 8..=1024;

/// The number of entries, as a multiple of the resolution, above which neighboring entries are merged.
const MERGE_THRESHOLD_PER_RESOLUTION: usize = 3;

/// Entries are merged when their number is a multiple of the resolution divided by this number. So not every charge of
/// a long log tries to merge entries, even if none can be merged.
const MERGE_ATTEMPTS_PER_RESOLUTION: usize = 4;

/// A quota that is counted with a compacted log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindow {
    max: CompactU64,
    tick_resolution: TickResolution,
    resolution: u16,
}

impl SlidingWindow {
    pub(crate) fn new(quota: &Quota, resolution: u16) -> Self {
        Self {
            max: quota.max().into(),
            tick_resolution: TickResolution::new(quota.window_us(), MAX_TICKS_PER_WINDOW),
            resolution,
        }
    }

    pub(crate) fn quota(&self) -> Quota {
        Quota::from_parts(self.max(), self.tick_resolution.window_us())
    }

    fn max(&self) -> u64 {
        self.max.get()
    }

    /// Returns the largest number of units up to which charges at different ticks share an entry.
    fn max_entry_units(&self) -> u64 {
        self.max().div_ceil(self.resolution.into())
    }

    pub(crate) fn resolution(&self) -> u16 {
        self.resolution
    }

    /// Returns the counter with which several nodes count together: buckets of window / resolution, rounded up.
    pub(crate) fn to_sliding_buckets(self) -> SlidingBuckets {
        let precision_us = self.tick_resolution.window_us().div_ceil(self.resolution.into());
        SlidingBuckets::with_buckets(self.max(), self.tick_resolution.window_us(), precision_us)
    }

    pub(crate) fn limit_params(&self) -> LimitParams {
        self.tick_resolution.limit_params(self.max(), self.resolution.into())
    }

    /// Returns the largest number of heap bytes that a state can take.
    pub(crate) fn max_heap_bytes(&self) -> usize {
        // Two bounds hold for the number of entries. `docs/explanation/algorithms.md` proves the bound by the
        // resolution. The bound by the units holds because each entry has a unit, and charges above twice max add only
        // one entry in window / resolution.
        let resolution = usize::from(self.resolution);
        let by_resolution = 6 * resolution + 3 + resolution / MERGE_ATTEMPTS_PER_RESOLUTION;
        let by_units = (2 * self.max()) as usize + 1 + resolution + 2;
        state::max_heap_bytes(by_resolution.min(by_units), self.max() > MAX_SMALL_UNITS)
    }

    /// Returns the first tick whose entries are still counted at `now`.
    fn window_start_tick(&self, now: Timestamp) -> u64 {
        self.first_tick_of_window(self.tick_resolution.tick_at(now))
    }

    /// Returns the first tick of the window that ends with `tick`.
    fn first_tick_of_window(&self, tick: u64) -> u64 {
        (tick + 1).saturating_sub(self.tick_resolution.window_ticks())
    }

    /// Returns the time from which an entry with this tick is no longer counted, in microseconds.
    fn entry_expiry_us(&self, tick: u64) -> u64 {
        self.tick_resolution.tick_start_us(tick + self.tick_resolution.window_ticks())
    }

    /// Returns whether `ticks` are less than window / resolution, so that one entry may cover them.
    fn fits_in_one_entry(&self, ticks: u64) -> bool {
        ticks * u64::from(self.resolution) < self.tick_resolution.window_ticks()
    }

    /// Returns the outcome of a hit that requires `required` free units. The first `expired` entries are not counted.
    fn outcome(
        &self,
        state: &State,
        expired: ExpiredEntries,
        now: Timestamp,
        required: u64,
    ) -> Outcome {
        let used = state.total_units() - expired.units;
        match state.newest() {
            Some(newest) => self.outcome_of_entries(
                (used, newest.entry.tick),
                now,
                required,
                (expired.entries..).map_while(|index| state.get(index)),
            ),
            None => Outcome::from_used_units((0, self.max()), required, 0, || 0),
        }
    }

    /// Returns the outcome of a hit that requires `required` free units while `used` units are counted. `newest_tick`
    /// is the tick of the newest entry, and `entries` are the counted entries, oldest first.
    fn outcome_of_entries(
        &self,
        (used, newest_tick): (u64, u64),
        now: Timestamp,
        required: u64,
        entries: impl Iterator<Item = Entry>,
    ) -> Outcome {
        let until = |tick| self.entry_expiry_us(tick).saturating_sub(now.as_micros());
        Outcome::from_used_units((used, self.max()), required, until(newest_tick), || {
            // The wait ends when enough of the oldest entries have left the window to free the required units.
            let (mut to_free, mut fits_at) = (used + required - self.max(), newest_tick);
            for entry in entries {
                fits_at = entry.tick;
                to_free = to_free.saturating_sub(entry.units);
                if to_free == 0 {
                    break;
                }
            }
            until(fits_at)
        })
    }

    /// Charges a state without checking whether the units fit. `expired` are the entries that have left the window.
    fn charge_after_expiry(
        &self,
        state: &mut State,
        expired: ExpiredEntries,
        now: Timestamp,
        cost: u64,
    ) -> ChargeEffect {
        state.remove_expired(expired);
        let total_units = state.total_units();
        let units = cost.min(max_count(self.max()).saturating_sub(total_units));
        let mut tick = self.tick_resolution.tick_at_or_after(now);
        let newest = state.newest();
        tick = newest.map_or(tick, |newest| tick.max(newest.entry.tick));
        if units > 0 {
            // Charges without a check can exceed max by any number of units, so above twice max they share entries to
            // keep the log short.
            let is_deep_in_debt = total_units + units > 2 * self.max();
            let joins = newest
                .is_some_and(|newest| self.may_join_newest(newest, tick, units, is_deep_in_debt));
            if joins {
                state.add_to_newest_entry(tick, units)
            } else {
                self.push_and_merge(state, Entry { tick, units })
            }
        }
        ChargeEffect {
            charged_at: Timestamp::from_micros(self.tick_resolution.tick_start_us(tick)),
            expires_at: self.expires_at(state),
            outcome: self.outcome(state, ExpiredEntries::default(), now, 1),
        }
    }

    /// Returns whether a charge of `units` units at `tick` may join the newest entry. With `is_deep_in_debt`, which
    /// means above twice max, the number of units in the entry is not limited.
    fn may_join_newest(
        &self,
        newest: NewestEntry,
        tick: u64,
        units: u64,
        is_deep_in_debt: bool,
    ) -> bool {
        tick == newest.entry.tick
            || (is_deep_in_debt || newest.entry.units + units <= self.max_entry_units())
                && self.fits_in_one_entry(newest.ticks_from_first_charge(tick))
    }

    fn push_and_merge(&self, state: &mut State, entry: Entry) {
        state.push(entry);
        if self.should_merge_at_length(state.len()) {
            self.merge_neighbours(state);
        }
    }

    /// Returns whether neighboring entries are merged after a charge with which the log has `entries` entries.
    fn should_merge_at_length(&self, entries: usize) -> bool {
        let resolution = usize::from(self.resolution);
        entries > MERGE_THRESHOLD_PER_RESOLUTION * resolution
            && entries.is_multiple_of(resolution / MERGE_ATTEMPTS_PER_RESOLUTION)
    }

    /// Merges neighboring entries that could have been one entry. The newest entry is not merged, because charges may
    /// still join it.
    fn merge_neighbours(&self, state: &mut State) {
        state.merge_entries(|entries, oldest_entry_start_tick| {
            let mut merged: Vec<Entry> = Vec::with_capacity(entries.len());
            // An entry can have charges from the tick after the last charge of the previous entry.
            let mut first = oldest_entry_start_tick;
            for entry in entries {
                match merged.last_mut() {
                    Some(last)
                        if last.units + entry.units <= self.max_entry_units()
                            && self.fits_in_one_entry(entry.tick - first) =>
                    {
                        *last = Entry { tick: entry.tick, units: last.units + entry.units };
                    }
                    last => {
                        first = last.map_or(oldest_entry_start_tick, |last| last.tick + 1);
                        merged.push(*entry);
                    }
                }
            }
            merged
        });
    }
}

impl SlidingWindow {
    /// Decides a hit for a state with at most one entry, which most keys have. Takes a third of the instructions of the
    /// general case. Returns `None` if the charge needs a second entry.
    fn charge_single_if_fits(
        &self,
        state: &mut State,
        newest: NewestEntry,
        now: Timestamp,
        cost: u64,
    ) -> Option<Result<ChargeEffect, Outcome>> {
        let entry = newest.entry;
        let (tick_before, tick_after) = self.tick_resolution.ticks_around(now);
        let is_counted = entry.tick >= self.first_tick_of_window(tick_before);
        let used = if is_counted { entry.units } else { 0 };
        let until = |tick| self.entry_expiry_us(tick).saturating_sub(now.as_micros());
        if used.saturating_add(cost) > self.max() {
            let reset_after_us = if entry.units > 0 { until(entry.tick) } else { 0 };
            let used = (used, self.max());
            return Some(Err(Outcome::from_used_units(used, cost, reset_after_us, || {
                reset_after_us
            })));
        }
        let mut charged = Entry { tick: tick_after, units: cost };
        let mut span = 0;
        if used > 0 {
            charged.tick = tick_after.max(entry.tick);
            if !self.may_join_newest(newest, charged.tick, charged.units, false) {
                return None;
            }
            charged.units += entry.units;
            span = newest.ticks_from_first_charge(charged.tick) as u32;
        }
        state.replace_with_entry(charged, span);
        let expires_at = self.entry_expiry_us(charged.tick);
        let reset_after_us = expires_at.saturating_sub(now.as_micros());
        let used = (used + cost, self.max());
        Some(Ok(ChargeEffect {
            charged_at: Timestamp::from_micros(self.tick_resolution.tick_start_us(charged.tick)),
            expires_at: Timestamp::from_micros(expires_at),
            outcome: Outcome::from_used_units(used, 1, reset_after_us, || reset_after_us),
        }))
    }
}

impl Counter for SlidingWindow {
    type State = State;

    fn capacity(&self) -> u64 {
        self.max()
    }

    fn peek(&self, state: &State, now: Timestamp, required: u64) -> Outcome {
        self.outcome(
            state,
            state.entries_expired_before(self.window_start_tick(now)),
            now,
            required,
        )
    }

    fn charge(&self, state: &mut State, now: Timestamp, cost: u64) -> ChargeEffect {
        let expired = state.entries_expired_before(self.window_start_tick(now));
        self.charge_after_expiry(state, expired, now, cost)
    }

    fn charge_if_fits(
        &self,
        state: &mut State,
        now: Timestamp,
        cost: u64,
    ) -> Result<ChargeEffect, Outcome> {
        if let Some(newest) = state.single_entry()
            && let Some(result) = self.charge_single_if_fits(state, newest, now, cost)
        {
            return result;
        }
        let expired = state.entries_expired_before(self.window_start_tick(now));
        let outcome = self.outcome(state, expired, now, cost);
        if outcome.fits() {
            Ok(self.charge_after_expiry(state, expired, now, cost))
        } else {
            Err(outcome)
        }
    }

    /// Subtracts the units from the entry that contains the charge. The entry keeps its tick, so its other units are
    /// not counted for a shorter time.
    fn revert(&self, state: &mut State, charged_at: Timestamp, cost: u64) {
        let Some(newest) = state.newest() else { return };
        // If the clock has stepped back since the charge, its time is after the newest entry, which then contains its
        // units.
        let tick = self.tick_resolution.tick_at(charged_at).min(newest.entry.tick);
        let mut first = state.oldest_entry_start_tick();
        state.edit_units(|entries| {
            for entry in entries {
                if (first..=entry.tick).contains(&tick) {
                    entry.units = entry.units.saturating_sub(cost);
                }
                first = entry.tick + 1;
            }
        });
    }

    fn refund(&self, state: &mut State, now: Timestamp, cost: u64) {
        state.remove_expired(state.entries_expired_before(self.window_start_tick(now)));
        let mut left = cost;
        state.edit_units(|entries| {
            for entry in entries {
                let units = left.min(entry.units);
                entry.units -= units;
                left -= units;
            }
        });
    }

    fn is_ahead_of_clock(&self, state: &State, now: Timestamp) -> bool {
        state.newest().is_some_and(|newest| {
            is_time_ahead_of_clock(self.tick_resolution.tick_start_us(newest.entry.tick), now)
        })
    }

    /// Replaces all entries by one entry at `now`, with the units that were in use at the last charge.
    fn set_state_back_to(&self, state: &mut State, now: Timestamp) {
        let Some(newest) = state.newest() else { return };
        let expired = state.entries_expired_before(self.first_tick_of_window(newest.entry.tick));
        let units = state.total_units() - expired.units;
        state.replace_with_entry(
            Entry { tick: self.tick_resolution.tick_at_or_after(now), units },
            0,
        );
    }

    fn expires_at(&self, state: &State) -> Timestamp {
        let newest = state.newest();
        newest.map_or(Timestamp::default(), |newest| {
            Timestamp::from_micros(self.entry_expiry_us(newest.entry.tick))
        })
    }
}
