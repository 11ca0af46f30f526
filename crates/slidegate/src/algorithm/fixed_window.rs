//! The fixed window algorithm: one count per window.
//!
//! Admits up to twice max in a time span of one window length that contains a window boundary; this bound can be
//! reached. The caller adds an offset (the phase) to all times: it depends on the key, so that the windows of different
//! keys begin at different times, or on the period of a [calendar](crate::calendar), so that each period is a window.

use serde::{Deserialize, Serialize};

use super::additive::{Additive, BucketLayout};
use super::counter::{
    ChargeEffect, Counter, add_to_count, clamp_to_max_units, micros_until_expiry,
};
use super::tick::LimitParams;
#[cfg(feature = "calendar")]
use crate::calendar::Calendar;
use crate::clock::Timestamp;
use crate::compact::CompactU64;
use crate::heap::HeapSize;
use crate::outcome::Outcome;
use crate::quota::Quota;

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
pub struct FixedWindow(Windows);

/// The alignment of fixed windows, their length in microseconds, and max. Each variant contains max, so that a counter
/// takes 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Windows {
    Key {
        max: u32,
        window_us: u64,
    },
    Clock {
        max: u32,
        window_us: u64,
    },
    #[cfg(feature = "calendar")]
    Calendar {
        max: u32,
        calendar: Calendar,
    },
}

/// The state of a key: the time of its last charge, and the units that were charged in the window of that time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The time of the last charge, in microseconds. The window that contains this time is the current window.
    last_us: CompactU64,
    /// The units charged in the current window.
    count: u32,
}

impl HeapSize for State {}

impl FixedWindow {
    /// Creates windows of the length of the quota's window. The windows of a calendar have their own length.
    pub(crate) fn new(quota: &Quota, align: Align) -> Self {
        let (max, window_us) = (quota.max() as u32, quota.window_us());
        Self(match align {
            Align::Key => Windows::Key { max, window_us },
            Align::Clock => Windows::Clock { max, window_us },
            #[cfg(feature = "calendar")]
            Align::Calendar(calendar) => Windows::Calendar { max, calendar },
        })
    }

    /// Returns the length of a window in microseconds.
    fn window_us(&self) -> u64 {
        match self.0 {
            Windows::Key { window_us, .. } | Windows::Clock { window_us, .. } => window_us,
            #[cfg(feature = "calendar")]
            Windows::Calendar { calendar, .. } => calendar.period().window_us(),
        }
    }

    pub(crate) fn quota(&self) -> Quota {
        let window_us = match self.0 {
            Windows::Key { window_us, .. } | Windows::Clock { window_us, .. } => window_us,
            #[cfg(feature = "calendar")]
            Windows::Calendar { calendar, .. } => calendar.period().longest_us(),
        };
        Quota::from_parts(self.max(), window_us)
    }

    pub(crate) fn params(&self) -> LimitParams {
        LimitParams { max: self.max(), extra: 0, max_debt: 0, tick_us: 1, window: self.window_us() }
    }

    /// Returns the phase of a key at `_now`: the number of microseconds that the caller adds to this time. `key_hash`
    /// returns a stable hash of the key.
    pub(crate) fn phase_us(&self, key_hash: impl FnOnce() -> u64, _now: Timestamp) -> u64 {
        match self.0 {
            Windows::Key { window_us, .. } => key_hash() % window_us,
            Windows::Clock { .. } => 0,
            #[cfg(feature = "calendar")]
            Windows::Calendar { calendar, .. } => calendar.phase_us(_now),
        }
    }

    fn max(&self) -> u32 {
        match self.0 {
            Windows::Key { max, .. } | Windows::Clock { max, .. } => max,
            #[cfg(feature = "calendar")]
            Windows::Calendar { max, .. } => max,
        }
    }

    fn max_units(&self) -> u64 {
        u64::from(self.max())
    }

    pub(crate) fn align(&self) -> Align {
        match self.0 {
            Windows::Key { .. } => Align::Key,
            Windows::Clock { .. } => Align::Clock,
            #[cfg(feature = "calendar")]
            Windows::Calendar { calendar, .. } => Align::Calendar(calendar),
        }
    }

    /// Returns the end of the window that contains the last charge, in microseconds.
    fn window_end_us(&self, state: &State) -> u64 {
        let window_us = self.window_us();
        let last_us = state.last_us.get();
        last_us - last_us % window_us + window_us
    }

    /// Returns `now` for durations until the end of the state's window. It differs from `now` if the state is in a later
    /// period of a calendar, which has another phase than the period of `now`.
    fn now_for_durations(&self, _state: &State, now: Timestamp) -> Timestamp {
        match self.0 {
            Windows::Key { .. } | Windows::Clock { .. } => now,
            #[cfg(feature = "calendar")]
            Windows::Calendar { calendar, .. } => {
                let window_us = calendar.period().window_us();
                let number = _state.last_us.get() / window_us;
                if now.as_micros() / window_us < number {
                    calendar.time_relative_to_period(now, number)
                } else {
                    now
                }
            }
        }
    }

    /// Returns the number of units counted in the window that contains `now`.
    fn count_in_window(&self, state: &State, now: Timestamp) -> u64 {
        if now.as_micros() < self.window_end_us(state) { u64::from(state.count) } else { 0 }
    }
}

impl Counter for FixedWindow {
    type State = State;

    fn capacity(&self) -> u64 {
        u64::from(self.max())
    }

    fn peek(&self, state: &State, now: Timestamp, required: u64) -> Outcome {
        let used = self.count_in_window(state, now);
        let reset_after_us = micros_until_expiry(self, state, self.now_for_durations(state, now));
        Outcome::from_used_units((used, self.max_units()), required, reset_after_us, || {
            reset_after_us
        })
    }

    fn charge(&self, state: &mut State, now: Timestamp, cost: u64) -> ChargeEffect {
        let count = clamp_to_max_units(self.count_in_window(state, now).saturating_add(cost));
        let last_us = now.as_micros().max(state.last_us.get());
        *state = State { last_us: last_us.into(), count };
        let charged_at = Timestamp::from_micros(last_us);
        ChargeEffect {
            charged_at,
            expires_at: self.expires_at(state),
            outcome: self.peek(state, now, 1),
        }
    }

    fn revert(&self, state: &mut State, charged_at: Timestamp, cost: u64) {
        let end_us = self.window_end_us(state);
        if charged_at.as_micros() + self.window_us() >= end_us {
            state.count = state.count.saturating_sub(clamp_to_max_units(cost));
        }
    }

    fn refund(&self, state: &mut State, now: Timestamp, cost: u64) {
        if now.as_micros() < self.window_end_us(state) {
            state.count = state.count.saturating_sub(clamp_to_max_units(cost));
        }
    }

    fn expires_at(&self, state: &State) -> Timestamp {
        match state.count {
            0 => Timestamp::default(),
            _ => Timestamp::from_micros(self.window_end_us(state)),
        }
    }
}

impl Additive for FixedWindow {
    fn layout(&self) -> BucketLayout {
        let drift_us = match self.0 {
            Windows::Key { .. } | Windows::Clock { .. } => 0,
            #[cfg(feature = "calendar")]
            Windows::Calendar { calendar, .. } => calendar.period().drift_us(),
        };
        BucketLayout { bucket_us: self.window_us(), buckets: 1, drift_us }
    }

    fn current_bucket(&self, state: &State) -> u64 {
        state.last_us.get() / self.window_us()
    }

    fn units(&self, state: &State, bucket: u64) -> u64 {
        if bucket == self.current_bucket(state) { state.count.into() } else { 0 }
    }

    fn add_to_current_bucket(&self, state: &mut State, bucket: u64, units: u64) -> Option<u64> {
        (bucket == self.current_bucket(state)).then(|| add_to_count(&mut state.count, units))
    }

    fn state_from_buckets(
        &self,
        last_charged_at: Timestamp,
        mut units: impl FnMut(u64) -> u64,
    ) -> State {
        let last_us = last_charged_at.as_micros();
        State {
            last_us: last_us.into(),
            count: clamp_to_max_units(units(last_us / self.window_us())),
        }
    }

    fn used(&self, state: &State, now: Timestamp) -> u64 {
        self.count_in_window(state, now)
    }

    fn last_charged_at(&self, state: &State) -> Timestamp {
        Timestamp::from_micros(state.last_us.get())
    }
}
