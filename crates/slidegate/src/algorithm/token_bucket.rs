//! GCRA, written as a level that leaks: max units per window run out, and `burst` units fit.
//!
//! The theoretical arrival time of GCRA is `last + level / max`. Keeping the level in `1/window` of a
//! unit makes it an exact integer: it falls by `max` each tick, and a unit adds `window` to it. Admits at
//! most burst + max in any window.
//!
//! Units that are charged without a check, such as reported ones, can raise the level above the burst. This debt leaks
//! like the rest, so it denies for debt / max windows. It is at most `max_debt` units: what exceeds it is not charged.
//!
//! A change of max keeps what was charged. Until the next charge it leaks at the rate of the last one, so
//! that the moment at which a state expires is known when it is written.

use super::{Charged, Counter, Scale, lasts_us};
use crate::clock::Timestamp;
use crate::heap::HeapSize;
use crate::limit::LimitParams;
use crate::outcome::Outcome;
use crate::quota::{MAX_UNITS, Quota};

/// A window is at most this many ticks, so that a level stays within 2^53.
const MAX_TICKS: u32 = 1 << 24;

/// A quota, enforced as a steady rate with a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    max: u32,
    burst: u32,
    max_debt: u32,
    scale: Scale,
}

/// The level, as of the last charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Tick of the last charge.
    last: u64,
    /// What has not leaked yet, in `1/window` of a unit.
    level: u64,
    /// What leaks each tick: max, as of the last charge.
    rate: u32,
}

impl HeapSize for State {}

impl TokenBucket {
    pub(crate) fn new(quota: &Quota, burst: u64, max_debt: u64) -> Self {
        Self {
            max: quota.max() as u32,
            burst: burst.min(MAX_UNITS) as u32,
            max_debt: max_debt.min(MAX_UNITS) as u32,
            scale: Scale::new(quota.window_us(), MAX_TICKS),
        }
    }

    pub(crate) fn quota(&self) -> Quota {
        Quota::of_parts(self.max, self.scale.window_us())
    }

    pub(crate) fn params(&self) -> LimitParams {
        LimitParams { max_debt: self.max_debt, ..self.scale.params(self.max, self.burst) }
    }

    pub(crate) fn burst(&self) -> u64 {
        u64::from(self.burst)
    }

    pub(crate) fn max_debt(&self) -> u64 {
        u64::from(self.max_debt)
    }

    /// The level at `tick`, which is not before the last charge.
    fn level(&self, state: &State, tick: u64) -> u64 {
        let leaked = (tick - state.last).saturating_mul(u64::from(state.rate));
        state.level.saturating_sub(leaked)
    }
}

impl State {
    /// Ticks until `excess` has leaked.
    fn leaks_in(&self, excess: u64) -> u64 {
        // Only a state that was never charged has no rate, and then there is nothing to leak.
        excess.div_ceil(u64::from(self.rate.max(1)))
    }
}

impl Counter for TokenBucket {
    type State = State;

    fn peek(&self, state: &State, now: Timestamp, required: u64) -> Outcome {
        let tick = self.scale.tick(now).max(state.last);
        let level = self.level(state, tick);
        // With a max of 0 nothing fits, whatever the burst.
        let burst = if self.max == 0 { 0 } else { self.burst() };
        let capacity = burst * self.scale.window();
        let free = capacity.checked_sub(level);
        let remaining = free.unwrap_or_default() / self.scale.window();
        let fits = required <= remaining && free.is_some();
        let reset_after_us = lasts_us(self, state, now);
        Outcome::judge_fit((fits, remaining, burst), required, reset_after_us, || {
            let excess = level - (burst - required) * self.scale.window();
            self.scale.begins_us(tick + state.leaks_in(excess)) - now.as_micros()
        })
    }

    fn chargeable(&self, state: &State, now: Timestamp, cost: u64) -> u64 {
        let level = self.level(state, self.scale.tick(now).max(state.last));
        let max_level = (self.burst() + self.max_debt()).min(MAX_UNITS) * self.scale.window();
        let free = max_level.saturating_sub(level);
        match cost.checked_mul(self.scale.window()) {
            Some(added) if added <= free => cost,
            _ => free / self.scale.window(),
        }
    }

    fn charge(&self, state: &mut State, now: Timestamp, cost: u64) -> Charged {
        let tick = self.scale.tick(now).max(state.last);
        let level = self.level(state, tick) + cost.min(MAX_UNITS) * self.scale.window();
        *state = State {
            last: tick,
            level: level.min(MAX_UNITS * self.scale.window()),
            rate: self.max.max(1),
        };
        Charged {
            at: Timestamp::from_micros(self.scale.begins_us(tick)),
            after: self.peek(state, now, 1),
        }
    }

    fn revert(&self, state: &mut State, charged_at: Timestamp, cost: u64) {
        // A charge leaves by leaking: what of it may have leaked by the last charge has left.
        let elapsed = state.last.saturating_sub(self.scale.tick(charged_at));
        let charged = cost.min(MAX_UNITS) * self.scale.window();
        let rate = u64::from(self.max.max(state.rate));
        let left = charged.saturating_sub(elapsed.saturating_mul(rate));
        state.level = state.level.saturating_sub(left);
    }

    fn refund(&self, state: &mut State, _: Timestamp, cost: u64) {
        // The level leaks down to nothing and no further, so it is all one whether it is lowered before or after.
        let units = cost.min(MAX_UNITS) * self.scale.window();
        state.level = state.level.saturating_sub(units);
    }

    fn expires_at(&self, state: &State) -> Timestamp {
        match state.level {
            0 => Timestamp::default(),
            level => Timestamp::from_micros(
                self.scale.begins_us(state.last.saturating_add(state.leaks_in(level))),
            ),
        }
    }
}
