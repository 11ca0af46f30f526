//! The sliding counter algorithm: counts the current window and the previous window.
//!
//! The previous count is weighted by the fraction of its window that the sliding window still covers, rounded **up**.
//! Windows begin at multiples of their length since the Unix epoch. Admits about max units per window, and always less
//! than twice max. The reason for this bound is the rounding: while the sliding window covers a part of the previous
//! window, a previous count above zero counts as at least one unit.

use super::additive::{AdditiveCounter, BucketLayout};
use super::counter::{ChargeEffect, Counter, clamp_to_small_units, is_time_ahead_of_clock};
use super::tick::{LimitParams, TickResolution};
use crate::clock::Timestamp;
use crate::layout::HeapSize;
use crate::outcome::Outcome;
use crate::quota::Quota;

/// The largest number of ticks in a window. With this bound, the product of a count and a window is at most 2^53, so
/// that Lua in Redis computes it exactly.
const MAX_TICKS_PER_WINDOW: u32 = 1 << 24;

/// A quota that is counted over the current and the previous window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingCounter {
    max: u32,
    resolution: TickResolution,
}

/// The counts of the window that contains a key's last charge, and of the window before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The time of the last charge. The window that contains it is the current window.
    last: WindowTime,
    /// The units charged in the previous window.
    previous: u32,
    /// The units charged in the current window.
    current: u32,
}

impl HeapSize for State {}

/// A time as the number of its window, and the ticks from the start of the window. The ticks take the low bits, as many
/// as the number of ticks in a window needs. So a decision needs no division to find the window of a key's last charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct WindowTime(u64);

impl WindowTime {
    fn new(window: u64, ticks: u64, window_ticks: u64) -> Self {
        Self(window << tick_bits(window_ticks) | ticks)
    }

    /// Converts the number of a tick, counted from the Unix epoch, into a window time.
    fn from_tick(tick: u64, window_ticks: u64) -> Self {
        Self::new(tick / window_ticks, tick % window_ticks, window_ticks)
    }

    /// Returns the number of the window.
    fn window(self, window_ticks: u64) -> u64 {
        self.0 >> tick_bits(window_ticks)
    }

    /// Returns the first tick of the window.
    fn window_start(self, window_ticks: u64) -> u64 {
        self.window(window_ticks) * window_ticks
    }

    /// Returns the number of the tick, counted from the Unix epoch.
    fn tick(self, window_ticks: u64) -> u64 {
        self.window_start(window_ticks) + (self.0 & ((1 << tick_bits(window_ticks)) - 1))
    }
}

/// Returns the number of bits of the ticks in a [`WindowTime`].
fn tick_bits(window_ticks: u64) -> u32 {
    u64::BITS - window_ticks.leading_zeros()
}

/// The counts of a state, as seen at a given time. If a new window has begun since the last charge, the current window
/// of the state is the previous window here, or both windows of the state have passed.
#[derive(Clone, Copy)]
struct WindowCounts {
    /// The number of the current window.
    window: u64,
    /// The number of ticks from the start of the current window to the given time.
    elapsed: u64,
    previous: u64,
    current: u64,
}

impl SlidingCounter {
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

    fn max_units(&self) -> u64 {
        u64::from(self.max)
    }

    /// Returns the counts of a state, as seen at `now`, or at the time of the last charge if that time is later.
    fn window_counts_at(&self, state: &State, now: Timestamp) -> WindowCounts {
        let ticks = self.resolution.window_ticks();
        let window = state.last.window(ticks);
        let now = self.resolution.tick_at(now).max(state.last.tick(ticks));
        let (previous, current) = (u64::from(state.previous), u64::from(state.current));
        let age = now - window * ticks;
        if age < ticks {
            WindowCounts { window, elapsed: age, previous, current }
        } else if age < 2 * ticks {
            WindowCounts { window: window + 1, elapsed: age - ticks, previous: current, current: 0 }
        } else {
            WindowCounts { window: now / ticks, elapsed: now % ticks, previous: 0, current: 0 }
        }
    }

    /// Returns the time from which the counts have no weight. `window` is the number of the current window.
    fn window_counts_expiry(&self, window: u64, previous: u64, current: u64) -> Timestamp {
        let windows = match (current, previous) {
            (1.., _) => 2,
            (0, 1..) => 1,
            (0, 0) => return Timestamp::default(),
        };
        let expires = (window + windows) * self.resolution.window_ticks();
        Timestamp::from_micros(self.resolution.tick_start_us(expires))
    }

    /// Returns the units used: the current count plus the weighted previous count.
    fn used_units(&self, counts: &WindowCounts) -> u64 {
        // Saves a division: most keys with few requests have no previous count.
        if counts.previous == 0 {
            return counts.current;
        }
        let ticks = self.resolution.window_ticks();
        counts.current + (counts.previous * (ticks - counts.elapsed)).div_ceil(ticks)
    }

    /// Returns the outcome of a hit that requires `required` free units, for a key with these counts, of which `used`
    /// units are in use. The counts have no weight from `expires_at` on.
    fn outcome_of_counts(
        &self,
        (counts, used): (&WindowCounts, u64),
        expires_at: Timestamp,
        now: Timestamp,
        required: u64,
    ) -> Outcome {
        let reset_after_us = expires_at.as_micros().saturating_sub(now.as_micros());
        Outcome::from_used_units((used, self.max_units()), required, reset_after_us, || {
            let fits_at = self.tick_at_which_units_fit(counts, self.max_units() - required);
            self.resolution.tick_start_us(fits_at).saturating_sub(now.as_micros())
        })
    }

    /// Returns the first tick at which the counts weigh at most `max_used` units. Must be called only if they weigh
    /// more now.
    fn tick_at_which_units_fit(&self, counts: &WindowCounts, max_used: u64) -> u64 {
        let ticks = self.resolution.window_ticks();
        // The first tick at which `count` units weigh at most `units`, if they have no weight from `end` on.
        let fits_at =
            |units: u64, count: u64, end: u64| end.saturating_sub((units * ticks) / count.max(1));
        match max_used.checked_sub(counts.current) {
            Some(units) => fits_at(units, counts.previous, (counts.window + 1) * ticks),
            // The current count alone is too high, so the units fit only after the current window has become the
            // previous window.
            None => fits_at(max_used, counts.current, (counts.window + 2) * ticks),
        }
    }

    /// Charges a state. `counts` are its counts at `now`, of which `used` units are in use.
    fn charge_state_with_counts(
        &self,
        state: &mut State,
        (mut counts, used): (WindowCounts, u64),
        now: Timestamp,
        cost: u64,
    ) -> ChargeEffect {
        let current = counts.current;
        counts.current = u64::from(clamp_to_small_units(current.saturating_add(cost)));
        let ticks = self.resolution.window_ticks();
        *state = State {
            last: WindowTime::new(counts.window, counts.elapsed, ticks),
            previous: counts.previous as u32,
            current: counts.current as u32,
        };
        let used = used - current + counts.current;
        let expires_at = self.window_counts_expiry(counts.window, counts.previous, counts.current);
        let charged_at = counts.window * ticks + counts.elapsed;
        ChargeEffect {
            expires_at,
            charged_at: Timestamp::from_micros(self.resolution.tick_start_us(charged_at)),
            outcome: self.outcome_of_counts((&counts, used), expires_at, now, 1),
        }
    }
}

impl Counter for SlidingCounter {
    type State = State;

    fn capacity(&self) -> u64 {
        u64::from(self.max)
    }

    fn peek(&self, state: &State, now: Timestamp, required: u64) -> Outcome {
        let counts = self.window_counts_at(state, now);
        let expires_at = self.window_counts_expiry(counts.window, counts.previous, counts.current);
        self.outcome_of_counts((&counts, self.used_units(&counts)), expires_at, now, required)
    }

    fn charge(&self, state: &mut State, now: Timestamp, cost: u64) -> ChargeEffect {
        let counts = self.window_counts_at(state, now);
        self.charge_state_with_counts(state, (counts, self.used_units(&counts)), now, cost)
    }

    fn charge_if_fits(
        &self,
        state: &mut State,
        now: Timestamp,
        cost: u64,
    ) -> Result<ChargeEffect, Outcome> {
        let counts = self.window_counts_at(state, now);
        let used = self.used_units(&counts);
        if used.saturating_add(cost) <= self.max_units() {
            return Ok(self.charge_state_with_counts(state, (counts, used), now, cost));
        }
        let expires_at = self.window_counts_expiry(counts.window, counts.previous, counts.current);
        Err(self.outcome_of_counts((&counts, used), expires_at, now, cost))
    }

    fn revert(&self, state: &mut State, charged_at: Timestamp, cost: u64) {
        let ticks = self.resolution.window_ticks();
        let start = state.last.window_start(ticks);
        let charge_tick = self.resolution.tick_at(charged_at);
        let count = if charge_tick >= start {
            &mut state.current
        } else if charge_tick + ticks >= start {
            &mut state.previous
        } else {
            return;
        };
        *count = count.saturating_sub(clamp_to_small_units(cost));
    }

    /// Reduces the previous count first, then the current count. A decision uses the weighted previous count, which may
    /// be lower than the count itself. The previous count is therefore reduced until its weighted value is lower by
    /// `cost` units.
    fn refund(&self, state: &mut State, now: Timestamp, cost: u64) {
        if cost == 0 {
            return;
        }
        let window = self.resolution.window_ticks();
        let now = self.resolution.tick_at(now).max(state.last.tick(window));
        let age = now - state.last.window_start(window);
        // The count that is the previous one now, and the number of ticks for which it still has a weight.
        let (previous, ticks_left) = match age {
            age if age < window => (&mut state.previous, window - age),
            age if age < 2 * window => (&mut state.current, 2 * window - age),
            _ => return,
        };
        let weight = (u64::from(*previous) * ticks_left).div_ceil(window);
        let left = weight.saturating_sub(cost);
        *previous = (left * window / ticks_left) as u32;
        if age < window {
            state.current =
                state.current.saturating_sub(clamp_to_small_units(cost.saturating_sub(weight)));
        }
    }

    fn is_ahead_of_clock(&self, state: &State, now: Timestamp) -> bool {
        is_time_ahead_of_clock(self.last_charged_at(state).as_micros(), now)
    }

    /// Counts the units in use as units of the window that contains `now`.
    fn set_state_back_to(&self, state: &mut State, now: Timestamp) {
        let used = self.used(state, self.last_charged_at(state));
        let tick = self.resolution.tick_at(now);
        *state = State {
            last: WindowTime::from_tick(tick, self.resolution.window_ticks()),
            previous: 0,
            current: clamp_to_small_units(used),
        };
    }

    fn expires_at(&self, state: &State) -> Timestamp {
        let window = state.last.window(self.resolution.window_ticks());
        self.window_counts_expiry(window, state.previous.into(), state.current.into())
    }
}

/// Each time bucket is one window.
impl AdditiveCounter for SlidingCounter {
    fn layout(&self) -> BucketLayout {
        BucketLayout {
            bucket_us: self.resolution.window_us(),
            buckets: 2,
            mean_excess_us: 0,
            epoch_offset_in_first_period_s: 0,
        }
    }

    fn current_bucket(&self, state: &State) -> u64 {
        state.last.window(self.resolution.window_ticks())
    }

    fn units(&self, state: &State, bucket: u64) -> u64 {
        match self.current_bucket(state).checked_sub(bucket) {
            Some(0) => state.current.into(),
            Some(1) => state.previous.into(),
            _ => 0,
        }
    }

    fn add_to_current_bucket(&self, state: &mut State, bucket: u64, units: u64) -> Option<u64> {
        (bucket == self.current_bucket(state)).then(|| {
            let sum = clamp_to_small_units(u64::from(state.current).saturating_add(units));
            u64::from(sum - std::mem::replace(&mut state.current, sum))
        })
    }

    fn state_from_buckets(
        &self,
        last_charged_at: Timestamp,
        mut units: impl FnMut(u64) -> u64,
    ) -> State {
        let ticks = self.resolution.window_ticks();
        let last = WindowTime::from_tick(self.resolution.tick_at(last_charged_at), ticks);
        let bucket = last.window(ticks);
        let previous = bucket.checked_sub(1).map_or(0, &mut units);
        State {
            last,
            previous: clamp_to_small_units(previous),
            current: clamp_to_small_units(units(bucket)),
        }
    }

    fn used(&self, state: &State, now: Timestamp) -> u64 {
        self.used_units(&self.window_counts_at(state, now))
    }

    fn last_charged_at(&self, state: &State) -> Timestamp {
        let ticks = self.resolution.window_ticks();
        Timestamp::from_micros(self.resolution.tick_start_us(state.last.tick(ticks)))
    }
}
