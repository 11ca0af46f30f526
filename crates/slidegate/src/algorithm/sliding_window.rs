//! Two counts: that of the running window, and that of the one before, weighted by the share of it that
//! the sliding window still covers, rounded **up**.
//!
//! Windows begin at multiples of their length since the Unix epoch. Admits about max, and always less
//! than twice max: a previous count above zero weighs at least one unit until it is gone.

use super::additive::{Additive, Shape};
use super::{Charged, Counter, Scale, saturate};
use crate::clock::Timestamp;
use crate::heap::HeapSize;
use crate::limit::LimitParams;
use crate::outcome::Outcome;
use crate::quota::Quota;

/// A window is at most this many ticks, so that a count times a window stays within 2^53.
const MAX_TICKS: u32 = 1 << 24;

/// A quota, counted over two windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindow {
    max: u32,
    scale: Scale,
}

/// Two counts, as of the last charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Tick of the last charge; it tells which window is the running one.
    last: u64,
    previous: u32,
    current: u32,
}

impl HeapSize for State {}

/// A state brought forward to a moment.
#[derive(Clone, Copy)]
struct View {
    /// Tick at which the running window began.
    start: u64,
    /// Ticks since then.
    elapsed: u64,
    previous: u64,
    current: u64,
}

impl SlidingWindow {
    pub(crate) fn new(quota: &Quota) -> Self {
        Self { max: quota.max() as u32, scale: Scale::new(quota.window_us(), MAX_TICKS) }
    }

    pub(crate) fn quota(&self) -> Quota {
        Quota::of_parts(self.max, self.scale.window_us())
    }

    pub(crate) fn params(&self) -> LimitParams {
        self.scale.params(self.max, 0)
    }

    fn max(&self) -> u64 {
        u64::from(self.max)
    }

    #[inline(always)]
    fn view(&self, state: &State, now: Timestamp) -> View {
        let window = self.scale.window();
        let now = self.scale.tick(now).max(state.last);
        let start = state.last - state.last % window;
        let (previous, current) = (u64::from(state.previous), u64::from(state.current));
        let age = now - start;
        if age < window {
            View { start, elapsed: age, previous, current }
        } else if age < 2 * window {
            View { start: start + window, elapsed: age - window, previous: current, current: 0 }
        } else {
            let elapsed = now % window;
            View { start: now - elapsed, elapsed, previous: 0, current: 0 }
        }
    }

    /// The earliest tick of a window that began at `start` at which `previous` weighs at most `room`.
    fn weighs_at_most(&self, room: u64, previous: u64, start: u64) -> u64 {
        start + self.scale.window() - (room * self.scale.window()) / previous
    }
}

impl SlidingWindow {
    /// What counts in a view: the previous count by the share of it that the sliding window still covers.
    #[inline(always)]
    fn weigh(&self, view: &View) -> u64 {
        let window = self.scale.window();
        view.current + (view.previous * (window - view.elapsed)).div_ceil(window)
    }

    /// Returns whether `required` units are free in a view.
    #[inline(always)]
    fn judge(&self, view: &View, now: Timestamp, required: u64) -> Outcome {
        let View { start, previous, current, .. } = *view;
        let (max, window) = (self.max(), self.scale.window());
        let reset_after_us = self.expires_us(view).saturating_sub(now.as_micros());
        Outcome::judge((self.weigh(view), max), required, reset_after_us, || {
            let room = max - required;
            let fits_at = if current <= room {
                self.weighs_at_most(room - current, previous, start)
            } else {
                // Not before the running window has become the previous one.
                self.weighs_at_most(room, current, start + window)
            };
            self.scale.begins_us(fits_at) - now.as_micros()
        })
    }

    /// The end of the last window in which a count of the view weighs anything.
    fn expires_us(&self, view: &View) -> u64 {
        let windows = match view {
            View { current: 1.., .. } => 2,
            View { previous: 1.., .. } => 1,
            _ => return 0,
        };
        self.scale.begins_us(view.start + windows * self.scale.window())
    }
}

impl Counter for SlidingWindow {
    type State = State;

    #[inline(always)]
    fn peek(&self, state: &State, now: Timestamp, required: u64) -> Outcome {
        self.judge(&self.view(state, now), now, required)
    }

    #[inline(always)]
    fn charge(&self, state: &mut State, now: Timestamp, cost: u64) -> Charged {
        let mut view = self.view(state, now);
        view.previous = u64::from(saturate(view.previous));
        view.current = u64::from(saturate(view.current.saturating_add(cost)));
        *state = State {
            last: view.start + view.elapsed,
            previous: view.previous as u32,
            current: view.current as u32,
        };
        Charged {
            at: Timestamp::from_micros(self.scale.begins_us(state.last)),
            after: self.judge(&view, now, 1),
        }
    }

    fn revert(&self, state: &mut State, charged_at: Timestamp, cost: u64) {
        let start = state.last - state.last % self.scale.window();
        let charged_at = self.scale.tick(charged_at);
        let count = if charged_at >= start {
            &mut state.current
        } else if charged_at + self.scale.window() >= start {
            &mut state.previous
        } else {
            return;
        };
        *count = count.saturating_sub(saturate(cost));
    }

    /// Of the previous count, what still weighs is taken to be spread evenly over what is left of its window. So
    /// each unit of that goes together with its like that have left: the previous count becomes the largest that
    /// weighs so much less.
    fn refund(&self, state: &mut State, now: Timestamp, cost: u64) {
        if cost == 0 {
            return;
        }
        let window = self.scale.window();
        let age = self.scale.tick(now).max(state.last) - (state.last - state.last % window);
        // Which of the two counts is the previous one now, and for how many ticks more.
        let (previous, weighs_for) = match age {
            age if age < window => (&mut state.previous, window - age),
            age if age < 2 * window => (&mut state.current, 2 * window - age),
            _ => return,
        };
        let weight = (u64::from(*previous) * weighs_for).div_ceil(window);
        let left = weight.saturating_sub(cost);
        *previous = (left * window / weighs_for) as u32;
        if age < window {
            state.current = state.current.saturating_sub(saturate(cost.saturating_sub(weight)));
        }
    }

    fn expires_at(&self, state: &State) -> Timestamp {
        let start = state.last - state.last % self.scale.window();
        let (previous, current) = (state.previous.into(), state.current.into());
        let view = View { start, elapsed: state.last - start, previous, current };
        Timestamp::from_micros(self.expires_us(&view))
    }
}

/// Of the two windows.
impl Additive for SlidingWindow {
    fn shape(&self) -> Shape {
        Shape { bucket_us: self.scale.window_us(), buckets: 2 }
    }

    #[inline]
    fn running(&self, state: &State) -> u64 {
        state.last / self.scale.window()
    }

    fn units(&self, state: &State, bucket: u64) -> u64 {
        match self.running(state).checked_sub(bucket) {
            Some(0) => state.current.into(),
            Some(1) => state.previous.into(),
            _ => 0,
        }
    }

    fn gather(&self, last: Timestamp, mut units: impl FnMut(u64) -> u64) -> State {
        let last = self.scale.tick(last);
        let running = last / self.scale.window();
        let previous = running.checked_sub(1).map_or(0, &mut units);
        State { last, previous: saturate(previous), current: saturate(units(running)) }
    }

    fn used(&self, state: &State, now: Timestamp) -> u64 {
        self.weigh(&self.view(state, now))
    }

    fn last(&self, state: &State) -> Timestamp {
        Timestamp::from_micros(self.scale.begins_us(state.last))
    }
}
