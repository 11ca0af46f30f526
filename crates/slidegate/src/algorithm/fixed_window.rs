//! The fixed window algorithm: one count per window.
//!
//! Admits up to twice max in a time span of one window length that contains a window boundary; this bound can be
//! reached. The caller adds an offset that depends on the key (its phase) to all times, so that the windows of
//! different keys begin at different times.

use super::additive::{Additive, BucketLayout};
use super::counter::{ChargeEffect, Counter, clamp_to_max_units, micros_until_expiry};
use super::tick::LimitParams;
use crate::clock::Timestamp;
use crate::heap::HeapSize;
use crate::outcome::Outcome;
use crate::quota::Quota;

/// The alignment of fixed windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Align {
    /// Windows begin at an offset that is a stable hash of the key, so that different keys reset at different times.
    #[default]
    Key,
    /// Windows follow the calendar in UTC: a minute begins at second 0, a day at midnight.
    Clock,
}

/// A quota that is counted separately in each fixed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    max: u32,
    align: Align,
    window_us: u64,
}

/// The state of a key: the time of its last charge, and the units that were charged in the window of that time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The time of the last charge, in microseconds. The window that contains this time is the current window.
    last_us: u64,
    /// The units charged in the current window.
    count: u32,
}

impl HeapSize for State {}

impl FixedWindow {
    pub(crate) fn new(quota: &Quota, align: Align) -> Self {
        Self { max: quota.max() as u32, align, window_us: quota.window_us() }
    }

    pub(crate) fn quota(&self) -> Quota {
        Quota::from_parts(self.max, self.window_us)
    }

    pub(crate) fn params(&self) -> LimitParams {
        LimitParams { max: self.max, extra: 0, max_debt: 0, tick_us: 1, window: self.window_us }
    }

    fn max_units(&self) -> u64 {
        u64::from(self.max)
    }

    pub(crate) fn align(&self) -> Align {
        self.align
    }

    /// Returns the end of the window that contains the last charge, in microseconds.
    fn window_end_us(&self, state: &State) -> u64 {
        state.last_us - state.last_us % self.window_us + self.window_us
    }

    /// Returns the number of units counted in the window that contains `now`.
    fn count_in_window(&self, state: &State, now: Timestamp) -> u64 {
        if now.as_micros() < self.window_end_us(state) { u64::from(state.count) } else { 0 }
    }
}

impl Counter for FixedWindow {
    const DECIDES_IN_PLACE: bool = true;

    type State = State;

    fn peek(&self, state: &State, now: Timestamp, required: u64) -> Outcome {
        let used = self.count_in_window(state, now);
        let reset_after_us = micros_until_expiry(self, state, now);
        Outcome::from_used_units((used, self.max_units()), required, reset_after_us, || {
            reset_after_us
        })
    }

    #[inline(always)]
    fn charge_in_place_if_fits(
        &self,
        state: &mut State,
        now: Timestamp,
        cost: u64,
    ) -> Option<Result<ChargeEffect, Outcome>> {
        let used = self.count_in_window(state, now);
        Some(match used.saturating_add(cost) <= self.max_units() {
            true => Ok(self.charge(state, now, cost)),
            false => Err(self.peek(state, now, cost)),
        })
    }

    fn charge(&self, state: &mut State, now: Timestamp, cost: u64) -> ChargeEffect {
        let count = clamp_to_max_units(self.count_in_window(state, now).saturating_add(cost));
        *state = State { last_us: now.as_micros().max(state.last_us), count };
        let charged_at = Timestamp::from_micros(state.last_us);
        ChargeEffect {
            charged_at,
            expires_at: self.expires_at(state),
            outcome: self.peek(state, now, 1),
        }
    }

    fn revert(&self, state: &mut State, charged_at: Timestamp, cost: u64) {
        let end_us = self.window_end_us(state);
        if charged_at.as_micros() + self.window_us >= end_us {
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
        BucketLayout { bucket_us: self.window_us, buckets: 1 }
    }

    #[inline]
    fn current_bucket(&self, state: &State) -> u64 {
        state.last_us / self.window_us
    }

    fn units(&self, state: &State, bucket: u64) -> u64 {
        if bucket == self.current_bucket(state) { state.count.into() } else { 0 }
    }

    fn state_from_buckets(
        &self,
        last_charged_at: Timestamp,
        mut units: impl FnMut(u64) -> u64,
    ) -> State {
        let last_us = last_charged_at.as_micros();
        State { last_us, count: clamp_to_max_units(units(last_us / self.window_us)) }
    }

    fn used(&self, state: &State, now: Timestamp) -> u64 {
        self.count_in_window(state, now)
    }

    fn last_charged_at(&self, state: &State) -> Timestamp {
        Timestamp::from_micros(state.last_us)
    }
}
