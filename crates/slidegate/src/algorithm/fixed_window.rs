//! The fixed window algorithm: one count per window.
//!
//! Admits up to twice max in a time span of one window length that contains a window boundary; this bound can be
//! reached. The caller adds an offset (the phase) to all times: it depends on the key, so that the windows of different
//! keys begin at different times, or on the period of a [calendar](crate::calendar), so that each period is a window.

use serde::{Deserialize, Serialize};

use super::additive::{AdditiveCounter, BucketLayout};
use super::counter::{ChargeEffect, Counter, is_time_ahead_of_clock, micros_until_expiry};
use super::tick::LimitParams;
#[cfg(feature = "calendar")]
use crate::calendar::Calendar;
use crate::clock::Timestamp;
use crate::layout::{CompactU64, HeapSize};
use crate::outcome::Outcome;
use crate::quota::{MAX_UNITS, Quota, max_count};

/// The alignment of fixed windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Align {
    /// Windows begin at an offset that is a stable hash of the key, so that different keys reset at different times.
    #[default]
    Key,
    /// Windows follow the clock in UTC: a minute begins at second 0, a day at midnight.
    Clock,
    /// Windows are the periods of a calendar, such as months in a time zone. See
    /// [`Limit::calendar`](crate::Limit::calendar).
    #[cfg(feature = "calendar")]
    Calendar(Calendar),
}

/// A quota that is counted separately in each fixed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    max: CompactU64,
    windows: WindowAlignment,
}

/// The alignment of fixed windows, and their length in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum WindowAlignment {
    Key {
        window_us: CompactU64,
    },
    Clock {
        window_us: CompactU64,
    },
    #[cfg(feature = "calendar")]
    Calendar(Calendar),
}

/// The state of a key: the number of the window of its last charge, and the units that were charged in this window. Two
/// numbers of 43 and 53 bits take 12 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The number of the window, and the high bits of the units.
    window_and_high_units: CompactU64,
    low_units: u32,
}

/// The number of bits of the units, which have 53 bits, that are stored above the low 32 bits.
const HIGH_UNITS_BITS: u32 = 53 - u32::BITS;

impl State {
    fn new(window: u64, units: u64) -> Self {
        Self {
            window_and_high_units: (window << HIGH_UNITS_BITS | units >> u32::BITS).into(),
            low_units: units as u32,
        }
    }

    /// Returns the number of the window that contains the last charge. Window n begins n lengths after the Unix epoch.
    fn window(&self) -> u64 {
        self.window_and_high_units.get() >> HIGH_UNITS_BITS
    }

    /// Returns the units charged in the window that contains the last charge.
    fn units(&self) -> u64 {
        let high = self.window_and_high_units.get() & ((1 << HIGH_UNITS_BITS) - 1);
        high << u32::BITS | u64::from(self.low_units)
    }

    /// Subtracts units from the window, at most all of them.
    fn subtract(&mut self, units: u64) {
        *self = Self::new(self.window(), self.units().saturating_sub(units));
    }
}

impl HeapSize for State {}

impl FixedWindow {
    /// Creates a counter whose windows have the length of the quota's window. The calendar determines the length of its
    /// periods.
    pub(crate) fn new(quota: &Quota, align: Align) -> Self {
        let window_us = quota.window_us().into();
        let windows = match align {
            Align::Key => WindowAlignment::Key { window_us },
            Align::Clock => WindowAlignment::Clock { window_us },
            #[cfg(feature = "calendar")]
            Align::Calendar(calendar) => WindowAlignment::Calendar(calendar),
        };
        Self { max: quota.max().into(), windows }
    }

    /// Returns the length of a window in microseconds.
    fn window_us(&self) -> u64 {
        match self.windows {
            WindowAlignment::Key { window_us } | WindowAlignment::Clock { window_us } => {
                window_us.get()
            }
            #[cfg(feature = "calendar")]
            WindowAlignment::Calendar(calendar) => calendar.period().window_us(),
        }
    }

    pub(crate) fn quota(&self) -> Quota {
        let window_us = match self.windows {
            WindowAlignment::Key { window_us } | WindowAlignment::Clock { window_us } => {
                window_us.get()
            }
            #[cfg(feature = "calendar")]
            WindowAlignment::Calendar(calendar) => calendar.period().max_length_us(),
        };
        Quota::from_parts(self.max.get(), window_us)
    }

    pub(crate) fn limit_params(&self) -> LimitParams {
        LimitParams {
            max: self.max.get(),
            extra: 0,
            max_debt: 0,
            tick_us: 1,
            window: self.window_us(),
        }
    }

    /// Returns the phase of a key at `_now`: the number of microseconds that the caller adds to this time, modulo 2^64.
    /// `key_hash` returns a stable hash of the key, and `step_us` returns the number of microseconds by which steps
    /// have set the wall clock ahead of `_now`.
    pub(crate) fn phase_us(
        &self,
        key_hash: impl FnOnce() -> u64,
        _now: Timestamp,
        step_us: impl FnOnce() -> i64,
    ) -> u64 {
        match self.windows {
            WindowAlignment::Key { window_us } => key_hash() % window_us.get(),
            WindowAlignment::Clock { .. } => step_us() as u64,
            #[cfg(feature = "calendar")]
            WindowAlignment::Calendar(calendar) => {
                let step_us = step_us();
                let wall_us = _now.as_micros().wrapping_add_signed(step_us);
                calendar.phase_us(Timestamp::from_micros(wall_us)).wrapping_add_signed(step_us)
            }
        }
    }

    pub(crate) fn align(&self) -> Align {
        match self.windows {
            WindowAlignment::Key { .. } => Align::Key,
            WindowAlignment::Clock { .. } => Align::Clock,
            #[cfg(feature = "calendar")]
            WindowAlignment::Calendar(calendar) => Align::Calendar(calendar),
        }
    }

    /// Returns the end of the window that contains the last charge, in microseconds.
    fn window_end_us(&self, state: &State) -> u64 {
        (state.window() + 1) * self.window_us()
    }

    /// Returns the time from which durations until the end of the state's window are measured. It is `now`, unless the
    /// state is already in a later calendar period, which has another phase than the period of `now`.
    fn now_in_period_of_state(&self, _state: &State, now: Timestamp) -> Timestamp {
        match self.windows {
            WindowAlignment::Key { .. } | WindowAlignment::Clock { .. } => now,
            #[cfg(feature = "calendar")]
            WindowAlignment::Calendar(calendar) => {
                let window_us = calendar.period().window_us();
                let number = _state.window();
                if now.as_micros() / window_us < number {
                    calendar.counter_time_in_period(now, number)
                } else {
                    now
                }
            }
        }
    }

    /// Returns the number of units counted in the window that contains `now`.
    fn units_in_window(&self, state: &State, now: Timestamp) -> u64 {
        if now.as_micros() < self.window_end_us(state) { state.units() } else { 0 }
    }
}

impl Counter for FixedWindow {
    type State = State;

    fn capacity(&self) -> u64 {
        self.max.get()
    }

    fn peek(&self, state: &State, now: Timestamp, required: u64) -> Outcome {
        let used = self.units_in_window(state, now);
        let reset_after_us =
            micros_until_expiry(self, state, self.now_in_period_of_state(state, now));
        Outcome::from_used_units((used, self.max.get()), required, reset_after_us, || {
            reset_after_us
        })
    }

    fn charge(&self, state: &mut State, now: Timestamp, cost: u64) -> ChargeEffect {
        let used = self.units_in_window(state, now);
        let units = used.max(used.saturating_add(cost).min(max_count(self.max.get())));
        let window = (now.as_micros() / self.window_us()).max(state.window());
        *state = State::new(window, units);
        ChargeEffect {
            charged_at: self.now_in_period_of_state(state, now).max(self.last_charged_at(state)),
            expires_at: self.expires_at(state),
            outcome: self.peek(state, now, 1),
        }
    }

    fn revert(&self, state: &mut State, charged_at: Timestamp, cost: u64) {
        let end_us = self.window_end_us(state);
        if charged_at.as_micros() + self.window_us() >= end_us {
            state.subtract(cost);
        }
    }

    fn refund(&self, state: &mut State, now: Timestamp, cost: u64) {
        if now.as_micros() < self.window_end_us(state) {
            state.subtract(cost);
        }
    }

    /// Compares the start of the window, because a state does not contain the time of its last charge.
    fn is_ahead_of_clock(&self, state: &State, now: Timestamp) -> bool {
        is_time_ahead_of_clock(self.last_charged_at(state).as_micros(), now)
    }

    fn set_state_back_to(&self, state: &mut State, now: Timestamp) {
        *state = State::new(now.as_micros() / self.window_us(), state.units());
    }

    fn expires_at(&self, state: &State) -> Timestamp {
        match state.units() {
            0 => Timestamp::default(),
            _ => Timestamp::from_micros(self.window_end_us(state)),
        }
    }
}

impl AdditiveCounter for FixedWindow {
    fn layout(&self) -> BucketLayout {
        match self.windows {
            WindowAlignment::Key { window_us } | WindowAlignment::Clock { window_us } => {
                BucketLayout {
                    bucket_us: window_us.get(),
                    buckets: 1,
                    mean_excess_us: 0,
                    epoch_offset_in_first_period_s: 0,
                }
            }
            #[cfg(feature = "calendar")]
            WindowAlignment::Calendar(calendar) => BucketLayout {
                bucket_us: calendar.period().window_us(),
                buckets: 1,
                mean_excess_us: calendar.period().mean_window_excess_us(),
                epoch_offset_in_first_period_s: calendar.epoch_offset_in_first_period_s(),
            },
        }
    }

    fn current_bucket(&self, state: &State) -> u64 {
        state.window()
    }

    fn units(&self, state: &State, bucket: u64) -> u64 {
        if bucket == state.window() { state.units() } else { 0 }
    }

    fn add_to_current_bucket(&self, state: &mut State, bucket: u64, units: u64) -> Option<u64> {
        (bucket == state.window()).then(|| {
            let units_before = state.units();
            *state = State::new(bucket, units_before.saturating_add(units).min(MAX_UNITS));
            state.units() - units_before
        })
    }

    fn state_from_buckets(
        &self,
        last_charged_at: Timestamp,
        mut units: impl FnMut(u64) -> u64,
    ) -> State {
        let window = last_charged_at.as_micros() / self.window_us();
        State::new(window, units(window).min(MAX_UNITS))
    }

    fn used(&self, state: &State, now: Timestamp) -> u64 {
        self.units_in_window(state, now)
    }

    fn last_charged_at(&self, state: &State) -> Timestamp {
        Timestamp::from_micros(state.window() * self.window_us())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_takes_12_bytes_and_holds_largest_numbers() {
        assert_eq!(size_of::<State>(), 12);
        for (window, units) in [(0, MAX_UNITS), ((1 << 43) - 1, 1), ((1 << 43) - 1, MAX_UNITS)] {
            let state = State::new(window, units);
            assert_eq!((state.window(), state.units()), (window, units));
        }
    }
}
