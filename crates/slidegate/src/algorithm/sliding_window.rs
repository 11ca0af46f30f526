//! The sliding window algorithm: counts the current window and the previous window.
//!
//! The previous count is weighted by the fraction of its window that the sliding window still covers, rounded **up**.
//! Windows begin at multiples of their length since the Unix epoch. Admits about max, and always less than twice max,
//! since a previous count above zero has a weight of at least one unit until its window has passed.

use super::additive::{Additive, BucketLayout};
use super::{ChargeEffect, Counter, TickScale, saturate};
use crate::clock::Timestamp;
use crate::heap::HeapSize;
use crate::limit::LimitParams;
use crate::outcome::Outcome;
use crate::quota::Quota;

/// The largest number of ticks in a window, so that the product of a count and a window is at most 2^53.
const MAX_TICKS: u32 = 1 << 24;

/// A quota that is counted over two windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindow {
    max: u32,
    scale: TickScale,
}

/// The counts of two windows, as of the last charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The tick of the last charge, which also identifies the current window.
    last: u64,
    previous: u32,
    current: u32,
}

impl HeapSize for State {}

/// The counts of a state as of a later time.
#[derive(Clone, Copy)]
struct WindowView {
    /// The first tick of the current window.
    start: u64,
    /// Ticks since the start of the current window.
    elapsed: u64,
    previous: u64,
    current: u64,
}

impl SlidingWindow {
    pub(crate) fn new(quota: &Quota) -> Self {
        Self { max: quota.max() as u32, scale: TickScale::new(quota.window_us(), MAX_TICKS) }
    }

    pub(crate) fn quota(&self) -> Quota {
        Quota::from_parts(self.max, self.scale.window_us())
    }

    pub(crate) fn params(&self) -> LimitParams {
        self.scale.params(self.max, 0)
    }

    fn max(&self) -> u64 {
        u64::from(self.max)
    }

    #[inline(always)]
    fn view(&self, state: &State, now: Timestamp) -> WindowView {
        let window = self.scale.window_ticks();
        let now = self.scale.tick(now).max(state.last);
        let start = state.last - state.last % window;
        let (previous, current) = (u64::from(state.previous), u64::from(state.current));
        let age = now - start;
        if age < window {
            WindowView { start, elapsed: age, previous, current }
        } else if age < 2 * window {
            WindowView {
                start: start + window,
                elapsed: age - window,
                previous: current,
                current: 0,
            }
        } else {
            let elapsed = now % window;
            WindowView { start: now - elapsed, elapsed, previous: 0, current: 0 }
        }
    }

    /// Returns the first tick of the window starting at `start` at which the weight of `previous` is at most `free`.
    fn first_tick_with_weight(&self, free: u64, previous: u64, start: u64) -> u64 {
        start + self.scale.window_ticks() - (free * self.scale.window_ticks()) / previous
    }
}

impl SlidingWindow {
    /// Returns the units used in a view: the current count plus the weighted previous count.
    #[inline(always)]
    fn used_units(&self, view: &WindowView) -> u64 {
        let window = self.scale.window_ticks();
        view.current + (view.previous * (window - view.elapsed)).div_ceil(window)
    }

    /// Returns the outcome for `required` units in a view.
    #[inline(always)]
    fn evaluate(&self, view: &WindowView, now: Timestamp, required: u64) -> Outcome {
        let WindowView { start, previous, current, .. } = *view;
        let (max, window) = (self.max(), self.scale.window_ticks());
        let reset_after_us = self.expires_us(view).saturating_sub(now.as_micros());
        Outcome::evaluate((self.used_units(view), max), required, reset_after_us, || {
            let free = max - required;
            let fits_at = if current <= free {
                self.first_tick_with_weight(free - current, previous, start)
            } else {
                // Not before the current window has become the previous one.
                self.first_tick_with_weight(free, current, start + window)
            };
            self.scale.tick_start_us(fits_at) - now.as_micros()
        })
    }

    /// Returns the end of the last window in which a count of the view has a weight, in microseconds.
    fn expires_us(&self, view: &WindowView) -> u64 {
        let windows = match view {
            WindowView { current: 1.., .. } => 2,
            WindowView { previous: 1.., .. } => 1,
            _ => return 0,
        };
        self.scale.tick_start_us(view.start + windows * self.scale.window_ticks())
    }
}

impl Counter for SlidingWindow {
    type State = State;

    #[inline(always)]
    fn peek(&self, state: &State, now: Timestamp, required: u64) -> Outcome {
        self.evaluate(&self.view(state, now), now, required)
    }

    #[inline(always)]
    fn charge(&self, state: &mut State, now: Timestamp, cost: u64) -> ChargeEffect {
        let mut view = self.view(state, now);
        view.previous = u64::from(saturate(view.previous));
        view.current = u64::from(saturate(view.current.saturating_add(cost)));
        *state = State {
            last: view.start + view.elapsed,
            previous: view.previous as u32,
            current: view.current as u32,
        };
        ChargeEffect {
            charged_at: Timestamp::from_micros(self.scale.tick_start_us(state.last)),
            outcome: self.evaluate(&view, now, 1),
        }
    }

    fn revert(&self, state: &mut State, charged_at: Timestamp, cost: u64) {
        let start = state.last - state.last % self.scale.window_ticks();
        let charge_tick = self.scale.tick(charged_at);
        let count = if charge_tick >= start {
            &mut state.current
        } else if charge_tick + self.scale.window_ticks() >= start {
            &mut state.previous
        } else {
            return;
        };
        *count = count.saturating_sub(saturate(cost));
    }

    /// Reduces the previous count first, then the current one. The weighted units of the previous count are assumed to
    /// be spread evenly over the rest of its window, so each of them represents units that have already left as well:
    /// the previous count is set to the largest count whose weight is lower by the refunded units.
    fn refund(&self, state: &mut State, now: Timestamp, cost: u64) {
        if cost == 0 {
            return;
        }
        let window = self.scale.window_ticks();
        let age = self.scale.tick(now).max(state.last) - (state.last - state.last % window);
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
            state.current = state.current.saturating_sub(saturate(cost.saturating_sub(weight)));
        }
    }

    fn expires_at(&self, state: &State) -> Timestamp {
        let start = state.last - state.last % self.scale.window_ticks();
        let (previous, current) = (state.previous.into(), state.current.into());
        let view = WindowView { start, elapsed: state.last - start, previous, current };
        Timestamp::from_micros(self.expires_us(&view))
    }
}

/// Each bucket is a window.
impl Additive for SlidingWindow {
    fn layout(&self) -> BucketLayout {
        BucketLayout { bucket_us: self.scale.window_us(), buckets: 2 }
    }

    #[inline]
    fn current_bucket(&self, state: &State) -> u64 {
        state.last / self.scale.window_ticks()
    }

    fn units(&self, state: &State, bucket: u64) -> u64 {
        match self.current_bucket(state).checked_sub(bucket) {
            Some(0) => state.current.into(),
            Some(1) => state.previous.into(),
            _ => 0,
        }
    }

    fn gather(&self, last_charged_at: Timestamp, mut units: impl FnMut(u64) -> u64) -> State {
        let last = self.scale.tick(last_charged_at);
        let bucket = last / self.scale.window_ticks();
        let previous = bucket.checked_sub(1).map_or(0, &mut units);
        State { last, previous: saturate(previous), current: saturate(units(bucket)) }
    }

    fn used(&self, state: &State, now: Timestamp) -> u64 {
        self.used_units(&self.view(state, now))
    }

    fn last_charged_at(&self, state: &State) -> Timestamp {
        Timestamp::from_micros(self.scale.tick_start_us(state.last))
    }
}
