//! The token bucket algorithm: the generic cell rate algorithm (GCRA), as a level that leaks max units per window and
//! has a capacity of `burst` units.
//!
//! The theoretical arrival time of GCRA is `last_charge_tick + level / max`. The level is an exact integer in units of
//! `1/window`: it falls by `max` each tick, and each charged unit adds `window`. Admits at most burst + max in any
//! window.
//!
//! Units that are charged without a check, such as reported ones, can raise the level above the burst. This debt leaks
//! at the same rate, so the limit denies requests for debt / max windows. The debt is at most `max_debt` units; units
//! above that are not charged.
//!
//! A change of max preserves the level. Until the next charge the level leaks at the rate of the last charge, so that
//! the expiry of a state is known when it is written.

use super::counter::{ChargeEffect, Counter, is_time_ahead_of_clock};
use super::tick::{LimitParams, TickResolution};
use crate::clock::Timestamp;
use crate::layout::{CompactU64, HeapSize};
use crate::outcome::Outcome;
use crate::quota::{MAX_SMALL_UNITS, Quota};

/// The largest number of ticks in a window. With this bound, a level is at most 2^53, so that Lua in Redis computes it
/// exactly.
const MAX_TICKS_PER_WINDOW: u32 = 1 << 24;

/// A quota that is enforced as a steady rate with a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    max: u32,
    burst: u32,
    max_debt: u32,
    resolution: TickResolution,
}

/// The level of a key's token bucket after the last charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The tick of the last charge.
    last_charge_tick: CompactU64,
    /// The charged units that have not leaked yet, in `1/window` of a unit.
    level: CompactU64,
    /// The decrease of the level per tick, which equals the max of the limit at the last charge.
    rate: u32,
}

impl HeapSize for State {}

impl State {
    #[inline]
    fn last_charge_tick(&self) -> u64 {
        self.last_charge_tick.get()
    }

    #[inline]
    fn level(&self) -> u64 {
        self.level.get()
    }

    /// Lowers the level by `excess`, at most to 0.
    fn reduce_level(&mut self, excess: u64) {
        self.level = self.level().saturating_sub(excess).into();
    }
}

impl TokenBucket {
    pub(crate) fn new(quota: &Quota, burst: u64, max_debt: u64) -> Self {
        Self {
            max: quota.max() as u32,
            burst: burst.min(MAX_SMALL_UNITS) as u32,
            max_debt: max_debt.min(MAX_SMALL_UNITS) as u32,
            resolution: TickResolution::new(quota.window_us(), MAX_TICKS_PER_WINDOW),
        }
    }

    pub(crate) fn quota(&self) -> Quota {
        Quota::from_parts(self.max.into(), self.resolution.window_us())
    }

    pub(crate) fn limit_params(&self) -> LimitParams {
        LimitParams {
            max_debt: self.max_debt,
            ..self.resolution.limit_params(self.max.into(), self.burst)
        }
    }

    #[inline]
    pub(crate) fn burst(&self) -> u64 {
        u64::from(self.burst)
    }

    pub(crate) fn max_debt(&self) -> u64 {
        u64::from(self.max_debt)
    }

    /// Returns the level at `tick`, which must not be before the last charge, in `1/window` of a unit.
    #[inline]
    fn level_at_tick(&self, state: &State, tick: u64) -> u64 {
        let leaked = (tick - state.last_charge_tick()).saturating_mul(u64::from(state.rate));
        state.level().saturating_sub(leaked)
    }

    /// Returns the outcome of a hit that requires `required` free units at `tick`, given the level at this tick. The
    /// level is 0 from `expires_at` on.
    #[inline]
    fn outcome(
        &self,
        (tick, level, rate): (u64, u64, u32),
        expires_at: Timestamp,
        now: Timestamp,
        required: u64,
    ) -> Outcome {
        let window = self.resolution.window_ticks();
        // With a max of 0 nothing fits, regardless of the burst.
        let burst = if self.max == 0 { 0 } else { self.burst() };
        let used = level.div_ceil(window);
        let reset_after_us = expires_at.as_micros().saturating_sub(now.as_micros());
        Outcome::from_used_units((used, burst), required, reset_after_us, || {
            let excess = level - (burst - required) * window;
            let fits_at = tick.saturating_add(ticks_to_leak(excess, rate));
            self.resolution.tick_start_us(fits_at).saturating_sub(now.as_micros())
        })
    }

    /// Returns the time from which a level is 0, given its value at `tick`.
    #[inline]
    fn level_expiry(&self, tick: u64, level: u64, rate: u32) -> Timestamp {
        match level {
            0 => Timestamp::default(),
            _ => Timestamp::from_micros(
                self.resolution.tick_start_us(tick.saturating_add(ticks_to_leak(level, rate))),
            ),
        }
    }

    /// Charges a state. `level` is its level at `tick`.
    #[inline]
    fn charge_state_at_level(
        &self,
        state: &mut State,
        (tick, level): (u64, u64),
        now: Timestamp,
        cost: u64,
    ) -> ChargeEffect {
        let window = self.resolution.window_ticks();
        let level = (level + cost.min(MAX_SMALL_UNITS) * window).min(MAX_SMALL_UNITS * window);
        *state =
            State { last_charge_tick: tick.into(), level: level.into(), rate: self.max.max(1) };
        let expires_at = self.expires_at(state);
        ChargeEffect {
            expires_at,
            charged_at: Timestamp::from_micros(self.resolution.tick_start_us(tick)),
            outcome: self.outcome((tick, level, state.rate), expires_at, now, 1),
        }
    }
}

/// Returns the number of ticks in which a level falls by `excess`, given in `1/window` of a unit, at `rate` per tick.
fn ticks_to_leak(excess: u64, rate: u32) -> u64 {
    // The rate is 0 only in a state without charges, whose level is 0.
    excess.div_ceil(u64::from(rate.max(1)))
}

impl Counter for TokenBucket {
    type State = State;

    fn capacity(&self) -> u64 {
        self.burst()
    }

    fn peek(&self, state: &State, now: Timestamp, required: u64) -> Outcome {
        let tick = self.resolution.tick_at(now).max(state.last_charge_tick());
        let level = self.level_at_tick(state, tick);
        let expires_at = self.level_expiry(tick, level, state.rate);
        self.outcome((tick, level, state.rate), expires_at, now, required)
    }

    fn chargeable_units(&self, state: &State, now: Timestamp, cost: u64) -> u64 {
        let level =
            self.level_at_tick(state, self.resolution.tick_at(now).max(state.last_charge_tick()));
        let max_level =
            (self.burst() + self.max_debt()).min(MAX_SMALL_UNITS) * self.resolution.window_ticks();
        let free = max_level.saturating_sub(level);
        match cost.checked_mul(self.resolution.window_ticks()) {
            Some(added) if added <= free => cost,
            _ => free / self.resolution.window_ticks(),
        }
    }

    fn charge(&self, state: &mut State, now: Timestamp, cost: u64) -> ChargeEffect {
        let tick = self.resolution.tick_at(now).max(state.last_charge_tick());
        self.charge_state_at_level(state, (tick, self.level_at_tick(state, tick)), now, cost)
    }

    #[inline]
    fn charge_if_fits(
        &self,
        state: &mut State,
        now: Timestamp,
        cost: u64,
    ) -> Result<ChargeEffect, Outcome> {
        let tick = self.resolution.tick_at(now).max(state.last_charge_tick());
        let level = self.level_at_tick(state, tick);
        let fitting_level = self.burst().checked_sub(cost).filter(|_| self.max > 0);
        if fitting_level.is_some_and(|units| level <= units * self.resolution.window_ticks()) {
            return Ok(self.charge_state_at_level(state, (tick, level), now, cost));
        }
        let expires_at = self.level_expiry(tick, level, state.rate);
        Err(self.outcome((tick, level, state.rate), expires_at, now, cost))
    }

    fn revert(&self, state: &mut State, charged_at: Timestamp, cost: u64) {
        // The units of a charge leak from the bucket. The part that may have leaked before the last charge is not
        // subtracted again.
        let elapsed = state.last_charge_tick().saturating_sub(self.resolution.tick_at(charged_at));
        let charged = cost.min(MAX_SMALL_UNITS) * self.resolution.window_ticks();
        let rate = u64::from(self.max.max(state.rate));
        let left = charged.saturating_sub(elapsed.saturating_mul(rate));
        state.reduce_level(left);
    }

    fn refund(&self, state: &mut State, _: Timestamp, cost: u64) {
        // The level stops at 0, so the result is the same whether it is lowered before or after it leaks.
        let units = cost.min(MAX_SMALL_UNITS) * self.resolution.window_ticks();
        state.reduce_level(units);
    }

    fn is_ahead_of_clock(&self, state: &State, now: Timestamp) -> bool {
        is_time_ahead_of_clock(self.resolution.tick_start_us(state.last_charge_tick()), now)
    }

    fn set_state_back_to(&self, state: &mut State, now: Timestamp) {
        state.last_charge_tick = self.resolution.tick_at(now).into();
    }

    fn expires_at(&self, state: &State) -> Timestamp {
        self.level_expiry(state.last_charge_tick(), state.level(), state.rate)
    }
}
